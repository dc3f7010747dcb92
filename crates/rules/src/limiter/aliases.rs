//! Aliases: one key under two names, whose decisions count as one.
//!
//! While the secret that names keys is rotated, a rule charges a key under its present and its previous name. Stores get
//! two charges, of which the second is an [alias](Charge::alias). Rulings contain one limit, with the stricter decision.

use smallvec::SmallVec;

use super::charges::ChargeList;
use super::decided_by::DecidedBy;
use tidegate_core::store::Decisions;
use tidegate_core::{Charge, Decision, Micros, Verdict};

/// Charges without their aliases, and the decisions on them.
#[derive(Debug, Default)]
pub(super) struct FoldedAliases<'a> {
    pub(super) charges: ChargeList<'a>,
    pub(super) decisions: Decisions,
    /// Empty if the store made all decisions.
    pub(super) by: SmallVec<[DecidedBy; 4]>,
    /// For each decision, the earlier of the reset times of both names.
    pub(super) soonest_reset: SmallVec<[Micros; 4]>,
}

/// Merges aliases into the charges that they repeat. Charges must be ordered by rule, with the aliases of a rule after its
/// own charges and in the same order.
pub(super) fn fold<'a>(charges: &[Charge<'a>], decisions: &[Decision], by: &[DecidedBy]) -> FoldedAliases<'a> {
    let mut folded = FoldedAliases::default();
    let mut decided = charges.iter().zip(decisions).enumerate();
    let mut rest = charges;
    while !rest.is_empty() {
        let own = rest.iter().take_while(|charge| !charge.alias).count();
        let (own, behind) = rest.split_at(own);
        let aliases = behind.iter().take_while(|charge| charge.alias).count();
        for (number, (charge, decision)) in decided.by_ref().take(own.len()) {
            folded.charges.push(*charge);
            folded.decisions.push(*decision);
            folded.soonest_reset.push(decision.reset_after);
            folded.by.extend(by.get(number).copied());
        }
        let first = folded.decisions.len().saturating_sub(aliases);
        for (place, (number, (_, decision))) in (first..).zip(decided.by_ref().take(aliases)) {
            folded.add_alias(place, decision, by.get(number).copied());
        }
        rest = &behind[aliases..];
    }
    folded
}

impl FoldedAliases<'_> {
    fn add_alias(&mut self, place: usize, decision: &Decision, by: Option<DecidedBy>) {
        if let Some(own) = self.decisions.get_mut(place) {
            *own = stricter(own, decision);
        }
        if let Some(soonest) = self.soonest_reset.get_mut(place) {
            *soonest = (*soonest).min(decision.reset_after);
        }
        // If the store did not decide both names, the decision does not count as the store's.
        if let (Some(own @ DecidedBy::Store), Some(by)) = (self.by.get_mut(place), by) {
            *own = by;
        }
    }
}

/// The stricter of two decisions: the worse outcome, the smallest remainder, the longest reset.
fn stricter(one: &Decision, other: &Decision) -> Decision {
    Decision {
        outcome: Verdict::of(&[*one, *other]).outcome,
        limit: one.limit.min(other.limit),
        remaining: one.remaining.min(other.remaining),
        reset_after: one.reset_after.max(other.reset_after),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::limit::Limit;
    use tidegate_core::{Key, Outcome, RuleId};

    fn decision(wait: u64, remaining: u64, reset: u64) -> Decision {
        let retry_after = Micros::from_secs(wait);
        let outcome = if wait == 0 { Outcome::Allow { delay: Micros::ZERO } } else { Outcome::Deny { retry_after } };
        Decision { outcome, limit: 10, remaining, reset_after: Micros::from_secs(reset) }
    }

    #[test]
    fn each_alias_is_folded_into_its_own_charge() {
        let (limit, key): (Limit, _) = ("10/s".parse().unwrap(), Key::from("k"));
        let ids = ["a", "b", "c", "d"].map(RuleId::new);
        let charge = |id: usize, alias| Charge { alias, ..Charge::new(&ids[id], &key, &limit) };
        // A rule without aliases, a rule with two limits and aliases, and another rule without aliases.
        let charges =
            [(0, false), (1, false), (2, false), (1, true), (2, true), (3, false)].map(|(id, alias)| charge(id, alias));
        let decisions = [
            decision(0, 9, 1),
            decision(0, 5, 4),
            decision(7, 0, 7),
            decision(0, 3, 2),
            decision(2, 0, 9),
            decision(0, 1, 1),
        ];
        let folded = fold(&charges, &decisions, &[]);
        let names: Vec<&str> = folded.charges.iter().map(|charge| charge.rule.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
        let expected = [decision(0, 9, 1), decision(0, 3, 4), decision(7, 0, 9), decision(0, 1, 1)];
        assert_eq!(folded.decisions[..], expected);
        assert_eq!(folded.soonest_reset[..], [1, 2, 7, 1].map(Micros::from_secs));
        assert!(folded.by.is_empty());

        let store = DecidedBy::Store;
        let by = [store, store, store, DecidedBy::Local, store, DecidedBy::Allow];
        assert_eq!(fold(&charges, &decisions, &by).by[..], [store, DecidedBy::Local, store, DecidedBy::Allow]);
    }

    #[test]
    fn decisions_that_are_missing_are_missing_afterwards() {
        let (limit, key, id): (Limit, _, _) = ("10/s".parse().unwrap(), Key::from("k"), RuleId::new("a"));
        let charge = Charge::new(&id, &key, &limit);
        let charges = [charge, Charge { alias: true, ..charge }];
        assert_eq!(fold(&charges, &[decision(0, 1, 1)], &[]).decisions[..], [decision(0, 1, 1)]);
        assert!(fold(&charges, &[], &[]).decisions.is_empty());
        assert!(fold(&[], &[], &[]).charges.is_empty());
    }
}
