//! The keys that are asked about most, and those that are denied most.

use std::sync::{Mutex, PoisonError};

use ahash::RandomState;
use serde::{Deserialize, Serialize};
use tidegate_core::{Key, Micros, RuleId, Timestamp};

use super::sketch::{Entry, Sketch};

/// How many keys are followed for each of the two questions.
const KEYS: usize = 256;
/// How long is looked back: this long at least, and twice as long at most.
const LOOK_BACK: Micros = Micros::from_secs(60);

/// What keys are ranked by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ranking {
    /// How often they were asked about.
    #[default]
    Traffic,
    /// How often they were denied, or would have been by a rule in the shadow.
    Denials,
}

/// A key that comes often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopKey {
    /// The limit that it is charged under.
    pub rule: String,
    /// Its parts; secrets are hidden, long ones cut. None if all share the key.
    pub key: Vec<String>,
    /// Its parts in full, by which it can be asked for; left out if it cannot be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_full: Option<Vec<String>>,
    /// How often it came in the time looked back at: this often at most.
    pub count: u64,
    /// By how much the count may be too large.
    pub error: u64,
}

/// The keys that came most often, and what they came most often of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopKeys {
    /// The time looked back at, in seconds.
    pub seconds: u64,
    /// All that was counted in that time, of these keys and others.
    pub total: u64,
    /// The most frequent first.
    pub keys: Vec<TopKey>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    rule: RuleId,
    key: KeyName,
}

/// A key as people are told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyName {
    /// Its parts; secrets are hidden, long ones cut.
    pub(crate) readable: Vec<String>,
    /// Its parts in full, if it can be asked for by them.
    pub(crate) in_full: Option<Vec<String>>,
}

/// Follows keys.
pub(super) struct Top {
    hasher: RandomState,
    windows: Mutex<Windows>,
}

struct Windows {
    present: Window,
    past: Window,
}

struct Window {
    since: Timestamp,
    traffic: Sketch<Name>,
    denials: Sketch<Name>,
}

impl Window {
    fn new(since: Timestamp) -> Window {
        Window { since, traffic: Sketch::new(KEYS), denials: Sketch::new(KEYS) }
    }

    const fn of(&self, ranking: Ranking) -> &Sketch<Name> {
        match ranking {
            Ranking::Traffic => &self.traffic,
            Ranking::Denials => &self.denials,
        }
    }
}

impl Top {
    pub(super) fn new(now: Timestamp) -> Top {
        let windows = Windows { present: Window::new(now), past: Window::new(now) };
        Top { hasher: RandomState::new(), windows: Mutex::new(windows) }
    }

    /// Counts a key that was asked about, `weight` times.
    pub(super) fn note(&self, rule: &RuleId, key: &Key<'_>, weight: u32, denied: bool, named: impl Fn() -> KeyName) {
        let hash = self.hasher.hash_one((rule.stable_hash(), key));
        let name = || Name { rule: rule.clone(), key: named() };
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        windows.present.traffic.add(hash, weight.into(), name);
        if denied {
            windows.present.denials.add(hash, weight.into(), name);
        }
    }

    /// Forgets what is too long ago.
    pub(super) fn turn(&self, now: Timestamp) {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if now.since(windows.present.since) >= LOOK_BACK || now < windows.present.since {
            windows.past = std::mem::replace(&mut windows.present, Window::new(now));
        }
    }

    /// The `most` keys that come first.
    pub(super) fn first(&self, ranking: Ranking, most: usize, now: Timestamp) -> TopKeys {
        let windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let (present, past) = (windows.present.of(ranking), windows.past.of(ranking));
        let seconds = (now.since(windows.past.since).get() / 1_000_000).max(1);
        let mut all: Vec<Entry<Name>> = present.entries().to_vec();
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
        let shown = |Entry { name, count, error, .. }: Entry<Name>| TopKey {
            rule: name.rule.as_str().to_owned(),
            key: name.key.readable,
            in_full: name.key.in_full,
            count,
            error,
        };
        TopKeys { seconds, total, keys: all.into_iter().take(most).map(shown).collect() }
    }
}
