//! A bounded table of remembered denials.
//!
//! Clients choose keys, so keys are hashed with a secret. The hash selects a small set for a key. A full set drops the
//! entry that would expire first. Dropping an entry is always correct: the store is called instead.

use std::hash::{BuildHasher, Hash, Hasher};
use std::slice::from_ref;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ahash::RandomState;
use smallvec::SmallVec;
use tidegate_core::store::Answer;
use tidegate_core::{Charge, Decision, Key, Limit, Micros, Outcome, Question, RuleId, Timestamp};

use super::Settings;
use super::countdown::{refusal, standing};

const KEYS_A_SET: usize = 8;

/// Clocks drift, so the lifetime of a denial is shorter than its wait by this fraction.
const DRIFT: u64 = 1_024;

/// The keyed hash of a rule and a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChargeHash(u64, u64);

/// The last decision of the store on a key.
#[derive(Clone, Copy, Debug)]
struct Remembered {
    of: ChargeHash,
    limit: Limit,
    /// The cost that was denied.
    cost: u64,
    decision: Decision,
    /// When the answer was received. The decision was made then or slightly earlier.
    answered: Timestamp,
    /// The end of its lifetime.
    until: Timestamp,
}

impl Remembered {
    /// Whether it applies to this charge now.
    fn holds(&self, charge: &Charge<'_>, now: Timestamp) -> bool {
        self.limit == *charge.limit && self.answered <= now && now < self.until
    }
}

#[derive(Default)]
struct DenialSet {
    /// Number of changes to keys of the set, other than by requests.
    changes: u32,
    known: Vec<Remembered>,
}

/// The remembered decision on a charge, before the store is called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookup {
    of: ChargeHash,
    changes: u32,
    /// The cost of the charge, plus those of earlier charges to the same key.
    cost: u64,
    /// The decision if the store is not called.
    pub(super) decision: Decision,
}

impl Lookup {
    /// Whether the charge is certain to be denied.
    pub(super) const fn is_denied(&self) -> bool {
        !self.decision.is_allowed()
    }
}

pub(super) struct Denials {
    hashers: [RandomState; 2],
    sets: Box<[Mutex<DenialSet>]>,
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

    fn fingerprint(&self, rule: &RuleId, key: &Key<'_>) -> ChargeHash {
        let hash = |state: &RandomState| {
            let mut hasher = state.build_hasher();
            rule.hash(&mut hasher);
            key.hash(&mut hasher);
            hasher.finish()
        };
        ChargeHash(hash(&self.hashers[0]), hash(&self.hashers[1]))
    }

    fn set(&self, of: ChargeHash) -> MutexGuard<'_, DenialSet> {
        let number = usize::try_from(of.0 % self.sets.len() as u64).unwrap_or_default();
        self.sets[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of remembered keys.
    pub(super) fn keys(&self) -> usize {
        self.sets.iter().map(|set| set.lock().unwrap_or_else(PoisonError::into_inner).known.len()).sum()
    }

    /// Looks up one charge.
    pub(super) fn look_up_charge(&self, charge: &Charge<'_>, now: Timestamp) -> Lookup {
        self.look_up(charge, self.fingerprint(charge.rule, charge.key), charge.cost, now)
    }

    fn look_up(&self, charge: &Charge<'_>, of: ChargeHash, cost: u64, now: Timestamp) -> Lookup {
        let set = self.set(of);
        let known = set.known.iter().find(|known| known.of == of && known.holds(charge, now));
        let decision = known.map_or_else(|| unknown(charge), |known| known.decision(cost, now));
        Lookup { of, changes: set.changes, cost, decision }
    }

    /// Looks up the charges of a request.
    pub(super) fn look_up_all(&self, question: Question<'_>, now: Timestamp) -> SmallVec<[Lookup; 4]> {
        let mut seen: SmallVec<[Lookup; 4]> = SmallVec::new();
        for group in question.groups() {
            let first = seen.len();
            for charge in group {
                let of = self.fingerprint(charge.rule, charge.key);
                // Several charges to one key are decided by their sum.
                let earlier = seen[first..].iter().rfind(|earlier| earlier.of == of).map_or(0, |earlier| earlier.cost);
                let cost = charge.cost.saturating_add(earlier);
                seen.push(self.look_up(charge, of, cost, now));
            }
        }
        seen
    }

    /// Records an answer of the store. The call was made at `asked` and answered at `answered`.
    pub(super) fn learn(
        &self,
        question: Question<'_>,
        seen: &[Lookup],
        answer: &Answer,
        asked: Timestamp,
        answered: Timestamp,
    ) {
        let Question { counting, shadows } = question;
        let (of_counting, mut rest) = seen.split_at(counting.len().min(seen.len()));
        let denied = !answer.is_allowed();
        self.learn_group(counting, of_counting, &answer.decisions, denied, asked, answered);
        for (shadow, answer) in shadows.iter().zip(&answer.shadows) {
            let (seen, others) = rest.split_at(shadow.len().min(rest.len()));
            rest = others;
            self.learn_group(shadow, seen, &answer.decisions, denied || !answer.is_allowed(), asked, answered);
        }
    }

    /// Records the denial of one charge.
    pub(super) fn learn_one(
        &self,
        charge: &Charge<'_>,
        seen: &Lookup,
        decision: &Decision,
        asked: Timestamp,
        answered: Timestamp,
    ) {
        let (charge, seen, decision) = (from_ref(charge), from_ref(seen), from_ref(decision));
        self.learn_group(charge, seen, decision, true, asked, answered);
    }

    /// Records the decisions on charges that were decided together.
    fn learn_group(
        &self,
        charges: &[Charge<'_>],
        seen: &[Lookup],
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
            // A key in debt denies even a cost of zero. The waits of other costs cannot be derived exactly from such a
            // denial.
            let is_useful = denied && (seen.cost > 0 || decision.is_allowed());
            let until = if is_useful { self.trusted_until(charge, decision, asked) } else { None };
            match until {
                Some(until) => {
                    let (of, limit, cost) = (seen.of, *charge.limit, seen.cost);
                    set.add(Remembered { of, limit, cost, decision: *decision, answered, until }, charge, answered);
                }
                None => set.known.retain(|known| known.of != seen.of),
            }
        }
    }

    /// The end of the lifetime of a decision on a denied request; `None` if it must not be remembered.
    fn trusted_until(&self, charge: &Charge<'_>, decision: &Decision, asked: Timestamp) -> Option<Timestamp> {
        let longest = match charge.reserve {
            Some(_) => self.settings.longest_reserved,
            None => self.settings.longest,
        };
        let trusted = match decision.outcome {
            // Slots may be released at any time.
            Outcome::Deny { .. } if charge.limit.holds_slots() => return None,
            // Counted from the call, because the store may have decided at any instant after it.
            Outcome::Deny { retry_after } => {
                longest.min(Micros::new(retry_after.get() - retry_after.get().div_ceil(DRIFT)))
            }
            Outcome::TooLarge { .. } | Outcome::Allow { .. } => longest,
        };
        Some(asked + trusted)
    }

    /// Forgets a key, and ignores answers about it that are in flight.
    pub(super) fn forget(&self, rule: &RuleId, key: &Key<'_>) {
        let of = self.fingerprint(rule, key);
        let mut set = self.set(of);
        set.changes = set.changes.wrapping_add(1);
        set.known.retain(|known| known.of != of);
    }
}

impl Remembered {
    /// The decision on a charge of `cost`.
    fn decision(&self, cost: u64, now: Timestamp) -> Decision {
        let passed = now.since(self.answered);
        refusal(&self.limit, &self.decision, self.cost, cost, passed)
            .unwrap_or_else(|| standing(&self.limit, &self.decision, passed))
    }
}

impl DenialSet {
    fn add(&mut self, new: Remembered, charge: &Charge<'_>, now: Timestamp) {
        // A denial takes precedence over an allowance, and of two denials in one answer the one with the smaller cost.
        let says_more = |known: &Remembered| {
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

/// The decision on an unknown charge: allowed, with nothing remaining.
const fn unknown(charge: &Charge<'_>) -> Decision {
    let outcome = Outcome::Allow { delay: Micros::ZERO };
    Decision { outcome, limit: charge.limit.capacity(), remaining: 0, reset_after: Micros::ZERO }
}
