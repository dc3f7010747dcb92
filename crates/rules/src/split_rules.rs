//! Rules as applied by one node, which charges one part of each limit with `split`.

use tidegate_core::RuleId;

use super::rule::Rule;
use super::rule_set::RuleSet;

impl RuleSet {
    /// The rules as applied by a node with this name: of every limit with `split`, its own part. Part 2 of 4 of the limit
    /// `exports` has the id `exports~2of4`.
    #[must_use]
    pub fn at_node(self, node: &str) -> RuleSet {
        let is_split = |rule: &Rule| rule.limits.all().any(|limit| limit.split.is_some());
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
        // The same part every time, and not a part of a part.
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
        // A limiter without a node name has the whole limit.
        assert_eq!(admitted(&Limiter::new(rules(split), MemoryStore::new())), 8);
        let limiter = Limiter::new(rules(whole), MemoryStore::new()).at_node("node-1");
        assert_eq!(admitted(&limiter), 8);
        limiter.replace(rules(split));
        assert_eq!(admitted(&limiter), 2);
        limiter.replace_switched(rules(whole));
        assert_eq!(admitted(&limiter), 0);
    }
}
