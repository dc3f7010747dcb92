//! `split`: a limit in several parts, each under a key of its own.
//!
//! A shaper or a log cannot be leased. If one key of such a limit is too busy for one server of the store, its rule can split
//! it: each part has an equal share of the limit, and each node charges one of them, chosen by its name. All parts together are the
//! limit, so nothing is admitted beyond it. Nodes that share a part, and parts without a node, are the price.

use std::num::NonZeroU8;

use tidegate_core::limit::Algorithm;
use tidegate_core::{Limit, RuleId};

use super::RuleSet;

/// The fewest parts, and the most.
pub(crate) const PARTS: std::ops::RangeInclusive<u64> = 2..=64;

/// The number of parts of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split(NonZeroU8);

impl Split {
    /// `None` if there are too few or too many.
    pub(crate) fn into(parts: u64) -> Option<Split> {
        let parts = PARTS.contains(&parts).then_some(parts)?;
        u8::try_from(parts).ok().and_then(NonZeroU8::new).map(Split)
    }

    pub(crate) const fn parts(self) -> u8 {
        self.0.get()
    }

    /// One part of a limit. `None` if it would admit nothing.
    pub(crate) fn part_of(self, limit: &Limit) -> Option<Limit> {
        let is_enough = limit.capacity() >= u64::from(self.parts()) && count(limit) >= u64::from(self.parts());
        is_enough.then(|| limit.equal_part(self.0).ok()).flatten()
    }

    /// The part that a node charges, counted from 1. The same on every machine and in every version.
    fn chosen_by(self, node: &str) -> u8 {
        let number = RuleId::new(node).stable_hash() % u128::from(self.parts());
        u8::try_from(number).unwrap_or_default() + 1
    }
}

/// Whether a limit can be split. Others are leased instead, or hold slots.
pub(crate) fn can_be_split(limit: &Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::Shaper(_) | Algorithm::SlidingLog(_))
}

/// The number that a part has a whole number of at least.
fn count(limit: &Limit) -> u64 {
    match limit.algorithm() {
        Algorithm::SlidingLog(log) => log.limit(),
        _ => limit.capacity(),
    }
}

impl RuleSet {
    /// The rules as a node of this name applies them: of every limit with `split`, its own part. Part 2 of 4 of the limit
    /// `exports` is called `exports~2of4`.
    #[must_use]
    pub fn at_node(self, node: &str) -> RuleSet {
        let is_split = |rule: &super::Rule| rule.limits.all().any(|limit| limit.split.is_some());
        if !self.rules().iter().any(is_split) {
            return self;
        }
        let mut rules = self.written.rules.clone();
        for rule in rules.iter_mut().filter(|rule| is_split(rule)) {
            rule.limits.make_own();
            for limit in rule.limits.all_mut() {
                let part = limit.split.and_then(|split| Some((split, split.part_of(&limit.limit)?)));
                if let Some((split, part)) = part {
                    limit.id = RuleId::new(&format!("{}~{}of{}", limit.id, split.chosen_by(node), split.parts()));
                    limit.limit = part;
                    limit.split = None;
                }
            }
        }
        self.with_limits_of(rules)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Limiter;
    use crate::facts::Request;
    use tidegate_core::MemoryStore;

    fn rules(text: &str) -> RuleSet {
        RuleSet::parse("rules.yaml", text).unwrap().rules
    }

    fn limits(rules: &RuleSet) -> Vec<(String, String)> {
        let all = rules.rules().iter().flat_map(|rule| rule.limits.all());
        all.map(|limit| (limit.id.to_string(), limit.limit.to_string())).collect()
    }

    const RULES: &str = "
rules:
  - { id: exports, limit: shaper 100/s queue 50, split: 4 }
  - { id: api, limit: 100/s }
  - id: both
    limits:
      - { name: log, limit: log 1000/min, split: 3 }
      - { name: day, limit: fixed 5000/day }
    tiers: { paid: [{ name: log, limit: log 9000/min, split: 3 }] }
";

    #[test]
    fn a_node_has_one_part_of_each_split_limit() {
        let parts = limits(&rules(RULES).at_node("node-1"));
        assert!(parts[0].0.starts_with("exports~") && parts[0].0.ends_with("of4"), "{parts:?}");
        assert_eq!(parts[0].1, "shaper 1/40ms queue 12");
        assert_eq!(parts[1], ("api".to_owned(), "100/s".to_owned()));
        assert!(parts[2].0.starts_with("both/log~") && parts[2].1 == "log 333/min", "{parts:?}");
        assert_eq!(parts[3], ("both/day".to_owned(), "fixed 5000/day".to_owned()));
        assert!(parts[4].0 == parts[2].0 && parts[4].1 == "log 3000/min", "{parts:?}");
        // The same part every time, and no part of a part.
        let again = rules(RULES).at_node("node-1").at_node("node-2");
        assert_eq!(limits(&again), parts);
    }

    #[test]
    fn nodes_are_spread_over_all_parts() {
        let part = |node: usize| limits(&rules(RULES).at_node(&format!("node-{node}")))[0].0.clone();
        let parts: BTreeSet<String> = (0..50).map(part).collect();
        let all = (1..=4).map(|number| format!("exports~{number}of4"));
        assert_eq!(parts, all.collect());
    }

    #[test]
    fn rules_without_a_split_stay_the_same() {
        let all = rules("rules: [{ id: api, limit: log 100/s }]");
        assert!(all.clone().at_node("node-1").shares_rules_with(&all));
    }

    #[test]
    fn a_limiter_at_a_node_splits_the_rules_that_come_later_too() {
        let whole = "rules: [{ id: a, limit: log 8/day }]";
        let split = "rules: [{ id: a, limit: log 8/day, split: 4 }]";
        let admitted = |limiter: &Limiter<MemoryStore>| {
            let request = Request::new("GET", "/");
            (0..20).filter(|_| limiter.check_now(&request).is_allowed()).count()
        };
        let limiter = Limiter::new(rules(split), MemoryStore::new()).at_node("node-1");
        assert_eq!(admitted(&limiter), 2);
        // One node alone has the whole limit.
        assert_eq!(admitted(&Limiter::new(rules(split), MemoryStore::new())), 8);
        let limiter = Limiter::new(rules(whole), MemoryStore::new()).at_node("node-1");
        assert_eq!(admitted(&limiter), 8);
        limiter.replace(rules(split));
        assert_eq!(admitted(&limiter), 2);
        limiter.replace_switched(rules(whole));
        assert_eq!(admitted(&limiter), 0);
    }
}
