//! Keys that the store is called for: those that leases and remembered denials do not keep away from it.
//!
//! One key lies on one server, which has one thread. A key that takes a large part of a server's calls is a bottleneck that
//! more servers do not remove, so it is worth knowing.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ahash::RandomState;
use tidegate_core::sketch::{Sketch, SketchEntry};
use tidegate_core::{Key, Micros, RuleId, Timestamp};

/// The most keys with a counter. Every key with more than so small a part of all calls has one.
const KEYS: usize = 1024;
/// The length of a window. Counts cover one to two windows.
const WINDOW: Micros = Micros::from_secs(10);
/// The calls in a window up to which each is counted. Beyond that, one in a power of two is, with that weight.
const COUNTED: u64 = 20_000;
/// The largest weight.
const MOST_WEIGHT: u32 = 64;
/// A key is hot if it takes one in so many of its server's calls, and so many a second at least.
const HOT_PART: u64 = 100;
const HOT_CALLS_A_SECOND: u64 = 50;

/// The keys that the store was called for most often in the last 10 to 20 seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreKeys {
    /// The time that was counted.
    pub period: Micros,
    /// The calls for all keys in it. A call for several keys counts for each.
    pub calls: u64,
    /// The keys, the busiest first.
    pub keys: Vec<StoreKey>,
}

/// A key that the store is called for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreKey {
    /// The limit.
    pub rule: RuleId,
    /// The key.
    pub key: Key<'static>,
    /// Upper bound of the number of calls.
    pub calls: u64,
    /// By how much that may be too large.
    pub error: u64,
    /// Whether it takes at least 1 % of the calls to its server, and at least 50 a second.
    pub is_hot: bool,
}

/// Counts the calls of each key.
pub(super) struct StoreCalls {
    hasher: RandomState,
    /// One call in so many is counted. A power of two.
    weight: AtomicU32,
    windows: Mutex<Windows>,
}

struct Windows {
    since: Timestamp,
    past_since: Timestamp,
    present: Sketch<Name>,
    past: Sketch<Name>,
}

#[derive(Clone)]
struct Name {
    rule: RuleId,
    key: Key<'static>,
}

impl StoreCalls {
    pub(super) fn new() -> StoreCalls {
        // The first call begins a window, unless the clock counts from about now.
        let since = Timestamp::EPOCH;
        let windows = Windows { since, past_since: since, present: Sketch::new(KEYS), past: Sketch::new(KEYS) };
        StoreCalls { hasher: RandomState::new(), weight: AtomicU32::new(1), windows: Mutex::new(windows) }
    }

    /// Counts a call for these keys.
    pub(super) fn count<'k>(&self, keys: impl Iterator<Item = (&'k RuleId, &'k Key<'k>)>, now: Timestamp) {
        let weight = self.weight.load(Ordering::Relaxed);
        if weight > 1 && fastrand::u32(..weight) > 0 {
            return;
        }
        let mut windows = self.windows();
        self.turn(&mut windows, now);
        for (rule, key) in keys {
            let hash = self.hasher.hash_one((rule.stable_hash(), key));
            windows.present.add(hash, weight.into(), || Name { rule: rule.clone(), key: key.owned() });
        }
    }

    /// Begins a new window if the present one is over.
    fn turn(&self, windows: &mut Windows, now: Timestamp) {
        let lasted = now.since(windows.since);
        if lasted < WINDOW && now >= windows.since {
            return;
        }
        let past = std::mem::replace(&mut windows.present, Sketch::new(KEYS));
        let wanted = past.total().saturating_mul(WINDOW.get()) / lasted.get().max(1) / COUNTED;
        let weight = u32::try_from(wanted).unwrap_or(MOST_WEIGHT).clamp(1, MOST_WEIGHT).next_power_of_two();
        self.weight.store(weight, Ordering::Relaxed);
        // After a pause there is no past window.
        let is_recent = lasted.get() < 2 * WINDOW.get() && now >= windows.since;
        (windows.past, windows.past_since) = if is_recent { (past, windows.since) } else { (Sketch::new(KEYS), now) };
        windows.since = now;
    }

    /// The keys that the store was called for most often, if the keys are spread evenly over so many servers.
    pub(super) fn top(&self, servers: u64, most: usize, now: Timestamp) -> StoreKeys {
        let mut windows = self.windows();
        self.turn(&mut windows, now);
        let (calls, period) = (windows.present.total() + windows.past.total(), now.since(windows.past_since));
        let mut all: Vec<SketchEntry<Name>> = windows.present.entries().to_vec();
        let mut places: std::collections::HashMap<u64, usize> =
            all.iter().enumerate().map(|(place, entry)| (entry.hash(), place)).collect();
        for entry in windows.past.entries() {
            match places.get(&entry.hash()).and_then(|&place| all.get_mut(place)) {
                Some(known) => (known.count, known.error) = (known.count + entry.count, known.error + entry.error),
                None => {
                    places.insert(entry.hash(), all.len());
                    all.push(entry.clone());
                }
            }
        }
        drop(windows);
        all.sort_by_key(|entry| (std::cmp::Reverse(entry.count), entry.hash()));
        all.truncate(most);
        let is_hot = |certain: u64| {
            let part = u128::from(certain) * u128::from(HOT_PART) * u128::from(servers.max(1));
            let speed = u128::from(certain) * 1_000_000;
            // Too short a time says nothing about the next.
            period >= WINDOW
                && part >= u128::from(calls)
                && speed >= u128::from(HOT_CALLS_A_SECOND) * u128::from(period.get())
        };
        let keys = all.into_iter().map(|SketchEntry { name: Name { rule, key }, count, error, .. }| StoreKey {
            rule,
            key,
            calls: count,
            error,
            is_hot: is_hot(count - error),
        });
        StoreKeys { period, calls, keys: keys.collect() }
    }

    fn windows(&self) -> MutexGuard<'_, Windows> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Timestamp {
        Timestamp::from_secs(1_000 + count)
    }

    /// Ten seconds of calls for the hot key, and of others for keys of their own, so many a second.
    fn called(calls: &StoreCalls, from: u64, hot: u64, others: u64) {
        let (rule, key) = (RuleId::new("api"), Key::from("hot"));
        for second in from..from + 10 {
            (0..hot).for_each(|_| calls.count([(&rule, &key)].into_iter(), seconds(second)));
            for number in 0..others {
                let key = Key::of([format!("{second}-{number}")]);
                calls.count([(&rule, &key)].into_iter(), seconds(second));
            }
        }
    }

    #[test]
    fn a_key_is_hot_at_a_hundredth_of_its_servers_calls() {
        for (hot, others, servers, is_hot) in [
            (60, 5_000, 1, true),
            (60, 9_000, 1, false),
            (60, 9_000, 2, true),
            // Few calls are no load, however few others there are.
            (30, 0, 1, false),
            (60, 0, 1, true),
        ] {
            let calls = StoreCalls::new();
            called(&calls, 0, hot, others);
            let top = calls.top(servers, 10, seconds(10));
            let case = format!("{hot} of {others} on {servers}: {:?}", top.keys.first());
            assert_eq!(top.calls, 10 * (hot + others), "{case}");
            assert_eq!((top.keys[0].key == Key::from("hot"), top.keys[0].is_hot), (true, is_hot), "{case}");
            assert_eq!(top.keys.iter().filter(|key| key.is_hot).count(), usize::from(is_hot), "{case}");
        }
    }

    #[test]
    fn nothing_is_hot_before_a_window_has_passed_nor_after_two_without_calls() {
        let calls = StoreCalls::new();
        called(&calls, 0, 100, 0);
        assert!(!calls.top(1, 10, seconds(9)).keys[0].is_hot);
        assert!(calls.top(1, 10, seconds(10)).keys[0].is_hot);
        assert!(calls.top(1, 10, seconds(19)).keys[0].is_hot);
        assert!(calls.top(1, 10, seconds(40)).keys.is_empty());
        assert!(calls.top(1, 10, seconds(60)).keys.is_empty());
    }

    #[test]
    fn many_calls_are_sampled_and_counted_about_right() {
        let calls = StoreCalls::new();
        called(&calls, 0, 200, 10_000);
        called(&calls, 10, 200, 10_000);
        assert!(calls.weight.load(Ordering::Relaxed) > 1);
        called(&calls, 20, 200, 10_000);
        let top = calls.top(1, 10, seconds(30));
        assert!(top.calls.abs_diff(102_000) < 10_000, "{}", top.calls);
        let hot = &top.keys[0];
        assert!(hot.key == Key::from("hot") && hot.is_hot && hot.calls.abs_diff(2_000) < 700, "{hot:?}");
    }
}
