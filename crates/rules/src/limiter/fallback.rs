//! Decisions without the store, by the failure policy of each rule.

use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;

use super::charges::ChargeList;
use super::decided_by::DecidedBy;
use super::outage_ledger::OutageLedger;
use super::ruling::Decided;
use crate::{MatchedRule, OnStoreFailure};
use tidegate_core::limit::Limit;
use tidegate_core::store::Decisions;
use tidegate_core::{Charge, Clock, Decision, Key, MemoryStore, Micros, Outcome, Receipt, RuleId, Settlement};

/// Maximum number of keys with their own state while this process decides alone.
const MOST_LOCAL_KEYS: usize = 1 << 20;

const SHORTEST_WAIT: Micros = Micros::from_secs(1);
const LONGEST_WAIT: Micros = Micros::from_secs(30);

/// The failure policy of a charge's rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutageTerms<'m> {
    pub(super) rule: &'m str,
    pub(super) policy: OnStoreFailure,
    /// The share of the limit that this process may decide alone.
    pub(super) share: Option<&'m Limit>,
}

/// The terms of these rules' charges, in order.
pub(super) fn terms<'m>(rules: impl Iterator<Item = &'m MatchedRule<'m, 'm>>) -> SmallVec<[OutageTerms<'m>; 4]> {
    let of = |matched: &'m MatchedRule<'m, 'm>| {
        let (rule, policy) = (matched.rule.id(), matched.rule.on_store_failure());
        matched.shares().map(move |share| OutageTerms { rule, policy, share })
    };
    rules.flat_map(of).collect()
}

/// An outage of the store, from the view of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outage {
    /// The time for which the store has been unavailable.
    pub(super) duration: Micros,
    /// Whether the store may nevertheless have charged the request.
    pub(super) may_have_charged: bool,
}

/// The way in which charges are decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChargeMode {
    /// Makes all charges, or none.
    Commit,
    /// Only peeks at the charges, each separately.
    Peek,
    /// Peeks, because the request is refused for another reason: charges that would be allowed report the remaining quota.
    PeekRemaining,
}

/// Decisions without the store: by policy alone, or with a store in this process.
pub(super) struct Fallback<C> {
    local: MemoryStore<C>,
    /// Costs that the local store has admitted and that the store does not know.
    pub(super) ledger: OutageLedger,
    /// Whether the local store has ever issued a receipt.
    has_given: AtomicBool,
}

impl<C: Clock> Fallback<C> {
    pub(super) fn new(clock: C) -> Fallback<C> {
        let local = MemoryStore::with_clock_and_cap(clock, MOST_LOCAL_KEYS);
        Fallback { local, ledger: OutageLedger::new(), has_given: AtomicBool::new(false) }
    }

    pub(super) const fn clock(&self) -> &C {
        self.local.clock()
    }

    /// Decides the charges by their terms. If any is denied, none is made.
    pub(super) fn decide(
        &self,
        charges: &[Charge<'_>],
        terms: &[OutageTerms<'_>],
        outage: Outage,
        taking: ChargeMode,
    ) -> Decided {
        let alone: SmallVec<[Option<(Decision, DecidedBy)>; 4]> =
            charges.iter().zip(terms).map(|(charge, terms)| terms.alone(charge, outage.duration)).collect();
        let local: ChargeList<'_> =
            charges.iter().zip(terms).filter_map(|(charge, terms)| terms.local(charge)).collect();
        let refused = alone.iter().flatten().any(|(decision, _)| !decision.is_allowed());
        let (decisions, receipt) = match taking {
            ChargeMode::Commit if !refused => self.take(&local),
            ChargeMode::Commit | ChargeMode::PeekRemaining => (self.left(&local), None),
            ChargeMode::Peek => (self.local.peek(&local), None),
        };
        let all_allowed = decisions.len() == local.len() && decisions.iter().all(Decision::is_allowed);
        // Costs that the store may already know are not reported to it.
        if taking == ChargeMode::Commit && !refused && all_allowed && !outage.may_have_charged {
            let now = self.clock().now();
            let admitted = charges.iter().zip(terms).filter(|(charge, terms)| terms.local(charge).is_some());
            admitted.for_each(|(charge, _)| self.ledger.note(charge, now));
        }
        let mut local = decisions.into_iter();
        let mut decided = Decided { receipts: receipt.into_iter().collect(), ..Decided::default() };
        for (charge, alone) in charges.iter().zip(alone) {
            let (decision, by) = alone.unwrap_or_else(|| match local.next() {
                Some(decision) => in_share(charge, decision, outage.duration),
                None => (denial(charge, outage.duration), DecidedBy::Local),
            });
            decided.push(decision, by);
        }
        decided
    }

    fn left(&self, local: &[Charge<'_>]) -> Decisions {
        let one = |charge: &Charge<'_>| {
            let decision = self.local.peek_one(charge);
            if decision.is_allowed() { self.local.peek_one(&charge.cost(0)) } else { decision }
        };
        local.iter().map(one).collect()
    }

    fn take(&self, local: &[Charge<'_>]) -> (Decisions, Option<Receipt>) {
        if local.is_empty() {
            return (Decisions::new(), None);
        }
        match self.local.decide(local) {
            Ok(answer) => {
                if answer.receipt.is_some() {
                    self.has_given.store(true, Ordering::Relaxed);
                }
                (answer.decisions, answer.receipt)
            }
            // The local store has no room for the reservations, so each of them is denied.
            Err(_full) => (Decisions::new(), None),
        }
    }

    /// Settles a receipt of the local store. `None` if the receipt is not one of those.
    pub(super) fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Option<Settlement> {
        if !self.has_given.load(Ordering::Relaxed) {
            return None;
        }
        match self.local.settle(receipt, actual) {
            Settlement::Gone => None,
            settled @ Settlement::Settled { .. } => {
                self.ledger.settle(receipt, actual, self.clock().now());
                Some(settled)
            }
        }
    }

    /// Resets a key in the local store. Returns whether anything was spent.
    pub(super) fn reset(&self, rule: &RuleId, key: &Key<'_>) -> bool {
        self.local.reset(rule, key)
    }

    /// Renews a receipt of the local store. `false` if the receipt is not one of those.
    pub(super) fn renew(&self, receipt: &Receipt) -> bool {
        self.has_given.load(Ordering::Relaxed) && self.local.renew(receipt)
    }
}

impl<'m> OutageTerms<'m> {
    /// The decision, where it needs no state; `None` if this process's share decides.
    fn alone(&self, charge: &Charge<'_>, unavailable_for: Micros) -> Option<(Decision, DecidedBy)> {
        let max = charge.limit.capacity();
        let (decision, by) = match self.policy {
            OnStoreFailure::Allow { at_most } if at_most.is_none_or(|at_most| unavailable_for < at_most) => {
                let outcome = Outcome::Allow { delay: Micros::ZERO };
                (Decision { outcome, limit: max, remaining: max, reset_after: Micros::ZERO }, DecidedBy::Allow)
            }
            OnStoreFailure::Allow { .. } => (denial(charge, unavailable_for), DecidedBy::AllowEnded),
            OnStoreFailure::Local { .. } if self.share.is_some() => return None,
            OnStoreFailure::Deny | OnStoreFailure::Local { .. } => (denial(charge, unavailable_for), DecidedBy::Deny),
        };
        if charge.cost > max {
            return Some((Decision { outcome: Outcome::TooLarge { max }, ..decision }, DecidedBy::Limit));
        }
        Some((decision, by))
    }

    /// The charge under this process's share of the limit.
    fn local<'a>(&self, charge: &Charge<'a>) -> Option<Charge<'a>>
    where
        'm: 'a,
    {
        match self.policy {
            OnStoreFailure::Local { .. } => self.share.map(|limit| Charge { limit, ..*charge }),
            OnStoreFailure::Allow { .. } | OnStoreFailure::Deny => None,
        }
    }
}

/// Converts a decision of the share to the whole limit. A cost that is too large for the share may fit the limit.
fn in_share(charge: &Charge<'_>, decision: Decision, unavailable_for: Micros) -> (Decision, DecidedBy) {
    let max = charge.limit.capacity();
    let (outcome, by) = match decision.outcome {
        Outcome::TooLarge { .. } if charge.cost > max => (Outcome::TooLarge { max }, DecidedBy::Limit),
        Outcome::TooLarge { .. } => (Outcome::Deny { retry_after: wait(unavailable_for) }, DecidedBy::Local),
        outcome => (outcome, DecidedBy::Local),
    };
    (Decision { outcome, ..decision }, by)
}

fn denial(charge: &Charge<'_>, unavailable_for: Micros) -> Decision {
    let retry_after = wait(unavailable_for);
    let outcome = Outcome::Deny { retry_after };
    Decision { outcome, limit: charge.limit.capacity(), remaining: 0, reset_after: retry_after }
}

/// The time until the next attempt: as long as the store has been unavailable, within reason.
fn wait(unavailable_for: Micros) -> Micros {
    unavailable_for.clamp(SHORTEST_WAIT, LONGEST_WAIT)
}
