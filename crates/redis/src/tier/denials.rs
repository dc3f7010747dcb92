//! Denials that are remembered, in a bounded table.
//!
//! Keys are chosen by whoever sends requests, so they are hashed with a secret. The hash says in which small set a key is
//! looked for; a set that is full forgets what would be forgotten first. Forgetting is always right: the store is asked.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ahash::RandomState;
use smallvec::SmallVec;
use tidegate_core::charge::groups;
use tidegate_core::store::Answer;
use tidegate_core::{Charge, Decision, Key, Limit, Micros, Outcome, RuleId, Timestamp};

use super::Settings;
use super::countdown::{refusal, standing};

const KEYS_A_SET: usize = 8;

/// Clocks of two machines do not run at quite the same pace. A denial is trusted for this part of its wait less.
const DRIFT: u64 = 1_024;

/// A rule and a key, as a number that nobody outside can predict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fingerprint(u64, u64);

/// What the store last said of a key.
#[derive(Clone, Copy, Debug)]
struct Known {
    of: Fingerprint,
    limit: Limit,
    /// What was asked for, if it was refused.
    cost: u64,
    decision: Decision,
    /// When the answer came: what it says was true then, or a little earlier.
    answered: Timestamp,
    /// Until when it is surely still true, if nobody gave anything back.
    until: Timestamp,
}

impl Known {
    /// Whether it still holds for this charge.
    fn holds(&self, charge: &Charge<'_>, now: Timestamp) -> bool {
        self.limit == *charge.limit && self.answered <= now && now < self.until
    }
}

#[derive(Default)]
struct Set {
    /// How often one of the set's keys was changed otherwise than by a request.
    changes: u32,
    known: Vec<Known>,
}

/// What is known of a charge before the store is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    of: Fingerprint,
    changes: u32,
    /// What the charge asks for, together with those to the same key before it.
    cost: u64,
    /// What to say of the charge if the store is not asked.
    pub(super) told: Decision,
}

impl Seen {
    /// Whether the charge is sure to be refused.
    pub(super) const fn is_denied(&self) -> bool {
        !self.told.is_allowed()
    }
}

pub(super) struct Denials {
    hashers: [RandomState; 2],
    sets: Box<[Mutex<Set>]>,
    settings: Settings,
}

impl Denials {
    pub(super) fn new(settings: Settings) -> Denials {
        let sets = settings.most_keys.div_ceil(KEYS_A_SET).max(1);
        Denials {
            hashers: [RandomState::new(), RandomState::new()],
            sets: (0..sets).map(|_| Mutex::default()).collect(),
            settings,
        }
    }

    fn fingerprint(&self, rule: &RuleId, key: &Key<'_>) -> Fingerprint {
        let hash = |state: &RandomState| {
            let mut hasher = state.build_hasher();
            rule.hash(&mut hasher);
            key.hash(&mut hasher);
            hasher.finish()
        };
        Fingerprint(hash(&self.hashers[0]), hash(&self.hashers[1]))
    }

    fn set(&self, of: Fingerprint) -> MutexGuard<'_, Set> {
        let number = usize::try_from(of.0 % self.sets.len() as u64).unwrap_or_default();
        self.sets[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many keys something is remembered of.
    pub(super) fn keys(&self) -> usize {
        self.sets.iter().map(|set| set.lock().unwrap_or_else(PoisonError::into_inner).known.len()).sum()
    }

    /// What is known of the charges of a request.
    pub(super) fn look(&self, charges: &[Charge<'_>], now: Timestamp) -> SmallVec<[Seen; 4]> {
        let mut seen: SmallVec<[Seen; 4]> = SmallVec::new();
        for charge in charges {
            let of = self.fingerprint(charge.rule, charge.key);
            // Several charges to one key are judged by their sum.
            let mut before = seen.iter().zip(charges).filter(|(_, other)| other.group == charge.group);
            let earlier = before.rfind(|(earlier, _)| earlier.of == of).map_or(0, |(earlier, _)| earlier.cost);
            let cost = charge.cost.saturating_add(earlier);
            let set = self.set(of);
            let known = set.known.iter().find(|known| known.of == of && known.holds(charge, now));
            let told = known.map_or_else(|| unknown(charge), |known| known.tell(cost, now));
            seen.push(Seen { of, changes: set.changes, cost, told });
        }
        seen
    }

    /// Learns from an answer to a question that was asked at one instant and answered at another.
    pub(super) fn learn(
        &self,
        charges: &[Charge<'_>],
        seen: &[Seen],
        answer: &Answer,
        asked: Timestamp,
        answered: Timestamp,
    ) {
        let (counting, shadows) = groups(charges);
        let (of_counting, mut rest) = seen.split_at(counting.len().min(seen.len()));
        let denied = !answer.is_allowed();
        self.learn_group(counting, of_counting, &answer.decisions, denied, asked, answered);
        for (shadow, told) in shadows.zip(&answer.shadows) {
            let (seen, others) = rest.split_at(shadow.len().min(rest.len()));
            rest = others;
            self.learn_group(shadow, seen, &told.decisions, denied || !told.is_allowed(), asked, answered);
        }
    }

    /// Learns from the decisions on charges that were made together, or, if any of them was denied, not made.
    fn learn_group(
        &self,
        charges: &[Charge<'_>],
        seen: &[Seen],
        decisions: &[Decision],
        denied: bool,
        asked: Timestamp,
        answered: Timestamp,
    ) {
        for ((charge, seen), decision) in charges.iter().zip(seen).zip(decisions) {
            let mut set = self.set(seen.of);
            if denied && set.changes != seen.changes {
                continue;
            }
            let until = if denied { self.trusted_until(charge, decision, asked) } else { None };
            match until {
                Some(until) => {
                    let (of, limit, cost) = (seen.of, *charge.limit, seen.cost);
                    set.add(Known { of, limit, cost, decision: *decision, answered, until }, charge, answered);
                }
                None => set.known.retain(|known| known.of != seen.of),
            }
        }
    }

    /// Until when a decision of a request that was denied can be told again; `None` if it cannot.
    fn trusted_until(&self, charge: &Charge<'_>, decision: &Decision, asked: Timestamp) -> Option<Timestamp> {
        let longest = match charge.reserve {
            Some(_) => self.settings.longest_reserved,
            None => self.settings.longest,
        };
        let trusted = match decision.outcome {
            // Slots come back at any instant.
            Outcome::Deny { .. } if charge.limit.holds_slots() => return None,
            // Counted from when it was asked: the store may have looked at any instant since.
            Outcome::Deny { retry_after } => {
                longest.min(Micros::new(retry_after.get() - retry_after.get().div_ceil(DRIFT)))
            }
            Outcome::TooLarge { .. } | Outcome::Allow { .. } => longest,
        };
        Some(asked + trusted)
    }

    /// Forgets what is remembered of a key, and what is on its way.
    pub(super) fn forget(&self, rule: &RuleId, key: &Key<'_>) {
        let of = self.fingerprint(rule, key);
        let mut set = self.set(of);
        set.changes = set.changes.wrapping_add(1);
        set.known.retain(|known| known.of != of);
    }
}

impl Known {
    /// What it says of a charge of `cost`.
    fn tell(&self, cost: u64, now: Timestamp) -> Decision {
        let passed = now.since(self.answered);
        refusal(&self.limit, &self.decision, self.cost, cost, passed)
            .unwrap_or_else(|| standing(&self.limit, &self.decision, passed))
    }
}

impl Set {
    fn add(&mut self, new: Known, charge: &Charge<'_>, now: Timestamp) {
        // A denial says more than what is left, and of two in one answer the one at the smaller cost.
        let says_more = |known: &Known| {
            known.of == new.of
                && known.holds(charge, now)
                && !known.decision.is_allowed()
                && (new.decision.is_allowed() || known.answered == new.answered && known.cost <= new.cost)
        };
        if self.known.iter().any(says_more) {
            return;
        }
        self.known.retain(|known| known.of != new.of && now < known.until);
        if self.known.len() >= KEYS_A_SET {
            let first = (0..self.known.len()).min_by_key(|&index| self.known[index].until);
            self.known.swap_remove(first.unwrap_or_default());
        }
        self.known.push(new);
    }
}

/// Nothing is known of the charge, so nothing is promised.
const fn unknown(charge: &Charge<'_>) -> Decision {
    let outcome = Outcome::Allow { delay: Micros::ZERO };
    Decision { outcome, limit: charge.limit.capacity(), remaining: 0, reset_after: Micros::ZERO }
}
