//! Busiest keys, and most denied keys.

use std::sync::{Mutex, PoisonError};

use ahash::RandomState;
use serde::{Deserialize, Serialize};
use tidegate_core::sketch::{Sketch, SketchEntry};
use tidegate_core::{Key, Micros, RuleId, Timestamp};

/// Number of keys tracked for each ranking.
const KEYS: usize = 256;
/// Length of a window. Rankings cover one to two windows.
const WINDOW: Micros = Micros::from_secs(60);

/// Ranking of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ranking {
    /// By number of requests.
    #[default]
    Traffic,
    /// By number of denials, including would-be denials in shadow mode.
    Denials,
}

/// A frequent key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopKey {
    /// Limit that the key is charged under.
    pub rule: String,
    /// Parts of the key; secrets are hidden, long parts cut. Empty if all requests share the key.
    pub key: Vec<String>,
    /// Full parts, accepted by `/v1/keys/peek`; absent if the key cannot be looked up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_full: Option<Vec<String>>,
    /// Upper bound of the count in the period.
    pub count: u64,
    /// Maximum error of the count.
    pub error: u64,
    /// In the ranking by calls to the store: whether the key has at least 1 % of the calls to its server.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hot: bool,
    /// In the ranking by calls to the store: whether this node leases the key, or is about to.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leased: bool,
}

/// Ranking of keys, with the total of all keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopKeys {
    /// Length of the period, in seconds.
    pub seconds: u64,
    /// Total count of all keys in the period.
    pub total: u64,
    /// Keys, most frequent first.
    pub keys: Vec<TopKey>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct TrackedKey {
    rule: RuleId,
    key: KeyName,
}

/// Readable name of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyName {
    /// Parts; secrets are hidden, long parts cut.
    pub(crate) readable: Vec<String>,
    /// Full parts, if the key can be looked up by them.
    pub(crate) in_full: Option<Vec<String>>,
}

/// Tracks frequent keys.
pub(super) struct KeyRanking {
    hasher: RandomState,
    windows: Mutex<TopWindows>,
}

struct TopWindows {
    present: TopWindow,
    past: TopWindow,
}

struct TopWindow {
    since: Timestamp,
    traffic: Sketch<TrackedKey>,
    denials: Sketch<TrackedKey>,
}

impl TopWindow {
    fn new(since: Timestamp) -> TopWindow {
        TopWindow { since, traffic: Sketch::new(KEYS), denials: Sketch::new(KEYS) }
    }

    const fn of(&self, ranking: Ranking) -> &Sketch<TrackedKey> {
        match ranking {
            Ranking::Traffic => &self.traffic,
            Ranking::Denials => &self.denials,
        }
    }
}

impl KeyRanking {
    pub(super) fn new(now: Timestamp) -> KeyRanking {
        let windows = TopWindows { present: TopWindow::new(now), past: TopWindow::new(now) };
        KeyRanking { hasher: RandomState::new(), windows: Mutex::new(windows) }
    }

    /// Counts a request of a key, `weight` times.
    pub(super) fn note(&self, rule: &RuleId, key: &Key<'_>, weight: u32, denied: bool, named: impl Fn() -> KeyName) {
        let hash = self.hasher.hash_one((rule.stable_hash(), key));
        let name = || TrackedKey { rule: rule.clone(), key: named() };
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        windows.present.traffic.add(hash, weight.into(), name);
        if denied {
            windows.present.denials.add(hash, weight.into(), name);
        }
    }

    /// Starts a new window if the current one has ended.
    pub(super) fn turn(&self, now: Timestamp) {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if now.since(windows.present.since) >= WINDOW || now < windows.present.since {
            windows.past = std::mem::replace(&mut windows.present, TopWindow::new(now));
        }
    }

    /// The first `most` keys of a ranking.
    pub(super) fn first(&self, ranking: Ranking, most: usize, now: Timestamp) -> TopKeys {
        let windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let (present, past) = (windows.present.of(ranking), windows.past.of(ranking));
        let seconds = (now.since(windows.past.since).get() / 1_000_000).max(1);
        let mut all: Vec<SketchEntry<TrackedKey>> = present.entries().to_vec();
        for entry in past.entries() {
            match all.iter_mut().find(|known| known.hash() == entry.hash()) {
                Some(known) => (known.count, known.error) = (known.count + entry.count, known.error + entry.error),
                None => all.push(entry.clone()),
            }
        }
        let total = present.total() + past.total();
        drop(windows);
        all.sort_by(|one, other| {
            other.count.cmp(&one.count).then_with(|| one.name.key.readable.cmp(&other.name.key.readable))
        });
        let shown = |SketchEntry { name, count, error, .. }: SketchEntry<TrackedKey>| TopKey {
            rule: name.rule.as_str().to_owned(),
            key: name.key.readable,
            in_full: name.key.in_full,
            count,
            error,
            ..TopKey::default()
        };
        TopKeys { seconds, total, keys: all.into_iter().take(most).map(shown).collect() }
    }
}
