//! Keys for which the store is called despite leases and remembered denials.
//!
//! Each key is on one server, which has one thread. A key with a large part of a server's calls is a bottleneck that more
//! servers do not remove, so it is reported.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ahash::RandomState;
use tidegate_core::sketch::{Sketch, SketchEntry};
use tidegate_core::{Key, Micros, RuleId, Timestamp};

/// Maximum number of keys with a counter. Every key with more than this fraction of all calls has one.
const KEYS: usize = 1024;
/// Length of a window. Counts cover one to two windows.
const WINDOW: Micros = Micros::from_secs(10);
/// Number of calls in a window up to which each call is counted. Beyond that, one call in a power of two is counted, with
/// that weight.
const COUNTED: u64 = 20_000;
/// The largest weight.
const MOST_WEIGHT: u32 = 64;
/// A key is hot from one in this many of its server's calls, with a minimum per second that follows.
const HOT_PART: u64 = 100;
const HOT_CALLS_A_SECOND: u64 = 50;

/// The keys for which the store was called most often in the last 10 to 20 seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreKeys {
    /// The length of the counted period.
    pub period: Micros,
    /// The number of calls for all keys in that period. A call for several keys counts for each.
    pub calls: u64,
    /// The keys, busiest first.
    pub keys: Vec<StoreKey>,
}

/// A key for which the store is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreKey {
    /// The limit.
    pub rule: RuleId,
    /// The key.
    pub key: Key<'static>,
    /// Upper bound on the number of calls.
    pub calls: u64,
    /// Upper bound on the error of that number.
    pub error: u64,
    /// Whether the key takes at least 1 % of the calls to its server, and at least 50 calls per second.
    pub is_hot: bool,
}

/// Counts the calls of each key.
pub(super) struct StoreCalls {
    hasher: RandomState,
    /// One call in this many is counted. A power of two.
    weight: AtomicU32,
    windows: Mutex<CallWindows>,
}

struct CallWindows {
    since: Timestamp,
    past_since: Timestamp,
    present: Sketch<CalledKey>,
    past: Sketch<CalledKey>,
}

#[derive(Clone)]
struct CalledKey {
    rule: RuleId,
    key: Key<'static>,
}

impl StoreCalls {
    pub(super) fn new() -> StoreCalls {
        // The first call begins a window, unless the clock has just started.
        let since = Timestamp::EPOCH;
        let windows = CallWindows { since, past_since: since, present: Sketch::new(KEYS), past: Sketch::new(KEYS) };
        StoreCalls { hasher: RandomState::new(), weight: AtomicU32::new(1), windows: Mutex::new(windows) }
    }

    /// Counts a call for these keys.
    pub(super) fn count<'k>(&self, keys: impl Iterator<Item = (&'k RuleId, &'k Key<'k>)>, now: Timestamp) {
        let weight = self.weight.load(Ordering::Relaxed);
        if weight > 1 && fastrand::u32(..weight) > 0 {
            return;
        }
        let mut windows = self.windows();
        self.rotate(&mut windows, now);
        for (rule, key) in keys {
            let hash = self.hasher.hash_one((rule.stable_hash(), key));
            windows.present.add(hash, weight.into(), || CalledKey { rule: rule.clone(), key: key.owned() });
        }
    }

    /// Begins a new window if the present one is over.
    fn rotate(&self, windows: &mut CallWindows, now: Timestamp) {
        let lasted = now.since(windows.since);
        if lasted < WINDOW && now >= windows.since {
            return;
        }
        let past = std::mem::replace(&mut windows.present, Sketch::new(KEYS));
        let wanted = past.total().saturating_mul(WINDOW.get()) / lasted.get().max(1) / COUNTED;
        let weight = u32::try_from(wanted).unwrap_or(MOST_WEIGHT).clamp(1, MOST_WEIGHT).next_power_of_two();
        self.weight.store(weight, Ordering::Relaxed);
        // After a pause there is no previous window.
        let is_recent = lasted.get() < 2 * WINDOW.get() && now >= windows.since;
        (windows.past, windows.past_since) = if is_recent { (past, windows.since) } else { (Sketch::new(KEYS), now) };
        windows.since = now;
    }

    /// The keys for which the store was called most often, if the keys are spread evenly over `servers`.
    pub(super) fn top(&self, servers: u64, most: usize, now: Timestamp) -> StoreKeys {
        let mut windows = self.windows();
        self.rotate(&mut windows, now);
        let (calls, period) = (windows.present.total() + windows.past.total(), now.since(windows.past_since));
        let mut all: Vec<SketchEntry<CalledKey>> = windows.present.entries().to_vec();
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
            // A shorter period is not representative.
            period >= WINDOW
                && part >= u128::from(calls)
                && speed >= u128::from(HOT_CALLS_A_SECOND) * u128::from(period.get())
        };
        let keys = all.into_iter().map(|SketchEntry { name: CalledKey { rule, key }, count, error, .. }| StoreKey {
            rule,
            key,
            calls: count,
            error,
            is_hot: is_hot(count - error),
        });
        StoreKeys { period, calls, keys: keys.collect() }
    }

    fn windows(&self) -> MutexGuard<'_, CallWindows> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Timestamp {
        Timestamp::from_secs(1_000 + count)
    }

    /// Ten seconds of calls: `hot` per second for the hot key, and `others` per second for keys of their own.
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
            // A few calls are not load, even if there are hardly any others.
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
