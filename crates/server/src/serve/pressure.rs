//! Warnings that the store in memory fills up.

use std::collections::HashMap;

use tidegate_core::memory::RuleUsage;
use tidegate_core::{Clock, MemoryStore};

use crate::metrics::OTHER;

/// Looks at the store now and then and warns in the log, once for each rule and not again for a while.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    overflowed: u64,
    by_rule: HashMap<String, Seen>,
    is_filling: bool,
}

/// What was last seen of a rule.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    overflowed: u64,
    /// Looks to let pass before the next warning.
    quiet_for: u32,
}

/// What there is to warn of.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Warning {
    /// Keys of a rule find no room.
    Overflow { rule: String, used: u64, overflowed: u64 },
    /// The store has become fuller than is comfortable.
    Filling { used: u64, cap: u64 },
    /// It is no longer.
    Relieved { used: u64, cap: u64 },
}

/// A rule alone finds no more room at two thirds.
const FILLING_PERCENT: u128 = 60;
const RELIEVED_PERCENT: u128 = 50;
/// With a look each second, a warning a minute.
const LOOKS_BETWEEN_WARNINGS: u32 = 60;

impl Pressure {
    /// Looks at the store, and writes to the log what has changed for the worse.
    pub(super) fn look<C: Clock>(&mut self, store: &MemoryStore<C>) {
        let (used, cap) = store.used();
        let mut warnings = self.fullness(used, cap);
        // The rules are gone through only if one of them has found no room, or did so a short while ago.
        let overflowed = store.overflowed();
        if overflowed != self.overflowed || !self.by_rule.is_empty() {
            self.overflowed = overflowed;
            warnings.extend(self.overflows(&store.usage_by_rule()));
        }
        for warning in warnings {
            match warning {
                Warning::Overflow { rule, used, overflowed } => tracing::warn!(
                    rule,
                    used,
                    overflowed,
                    cap,
                    "no room for new keys of a rule: they share one bucket; raise `store.keys`, or find the clients that flood it"
                ),
                Warning::Filling { used, cap } => {
                    tracing::warn!(
                        used,
                        cap,
                        "the store is filling up: when it is full, new keys share one bucket; raise `store.keys`"
                    );
                }
                Warning::Relieved { used, cap } => tracing::info!(used, cap, "the store has room again"),
            }
        }
    }

    fn fullness(&mut self, used: u64, cap: u64) -> Vec<Warning> {
        let was_filling = self.is_filling;
        let percent = if was_filling { RELIEVED_PERCENT } else { FILLING_PERCENT };
        self.is_filling = u128::from(used) * 100 >= u128::from(cap) * percent;
        match (was_filling, self.is_filling) {
            (false, true) => vec![Warning::Filling { used, cap }],
            (true, false) => vec![Warning::Relieved { used, cap }],
            _ => Vec::new(),
        }
    }

    fn overflows(&mut self, usage: &[RuleUsage]) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let mut seen = HashMap::new();
        for RuleUsage { rule, used, overflowed } in usage.iter().filter(|usage| usage.overflowed > 0) {
            let rule = rule.as_ref().map_or(OTHER, |rule| rule.as_str()).to_owned();
            let mut rule_seen = self.by_rule.get(&rule).copied().unwrap_or_default();
            rule_seen.quiet_for = rule_seen.quiet_for.saturating_sub(1);
            if *overflowed != rule_seen.overflowed && rule_seen.quiet_for == 0 {
                warnings.push(Warning::Overflow { rule: rule.clone(), used: *used, overflowed: *overflowed });
                rule_seen = Seen { overflowed: *overflowed, quiet_for: LOOKS_BETWEEN_WARNINGS };
            }
            seen.insert(rule, rule_seen);
        }
        self.by_rule = seen;
        warnings
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::RuleId;

    use super::*;

    fn usage(rule: Option<&str>, used: u64, overflowed: u64) -> RuleUsage {
        RuleUsage { rule: rule.map(RuleId::new), used, overflowed }
    }

    #[test]
    fn a_store_that_fills_up_is_warned_of_once_until_it_has_room_again() {
        let mut pressure = Pressure::default();
        let said: Vec<_> = [0, 599, 600, 700, 550, 499, 550, 600].map(|used| pressure.fullness(used, 1_000)).concat();
        let (filling, relieved) =
            (Warning::Filling { used: 600, cap: 1_000 }, Warning::Relieved { used: 499, cap: 1_000 });
        assert_eq!(said, [filling.clone(), relieved, filling]);
    }

    #[test]
    fn each_rule_that_overflows_is_warned_of_at_most_once_a_minute() {
        let mut pressure = Pressure::default();
        let mut warned = Vec::new();
        for second in 0..150 {
            let usage = [usage(Some("flooded"), 9, 1 + second), usage(Some("quiet"), 5, 0), usage(None, 3, 7)];
            let rules = pressure.overflows(&usage).into_iter().map(|warning| match warning {
                Warning::Overflow { rule, .. } => (second, rule),
                other => panic!("{other:?}"),
            });
            warned.extend(rules);
        }
        let expected = [(0, "flooded"), (0, OTHER), (60, "flooded"), (120, "flooded")];
        assert_eq!(warned, expected.map(|(second, rule)| (second, rule.to_owned())));
    }
}
