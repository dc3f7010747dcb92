//! Warns when a memory store fills up.

use std::collections::HashMap;

use tidegate_core::memory::RuleUsage;
use tidegate_core::{Clock, MemoryStore};

use crate::metrics::OTHER;

/// Checks the store and logs warnings, for each rule at most once a minute.
#[derive(Debug, Default)]
pub(super) struct MemoryPressure {
    overflowed: u64,
    by_rule: HashMap<String, RuleOverflow>,
    is_filling: bool,
}

/// Last known overflow of a rule, and the time until the next warning.
#[derive(Clone, Copy, Debug, Default)]
struct RuleOverflow {
    overflowed: u64,
    /// Number of checks to skip before the next warning.
    quiet_for: u32,
}

/// A warning.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PressureWarning {
    /// New keys of a rule are rejected for lack of room.
    Overflow { rule: String, used: u64, overflowed: u64 },
    /// The store is filling up.
    Filling { used: u64, cap: u64 },
    /// The store has room again.
    Relieved { used: u64, cap: u64 },
}

/// Threshold for warnings. Below two thirds, which is the maximum share of a single rule.
const FILLING_PERCENT: u128 = 60;
const RELIEVED_PERCENT: u128 = 50;
/// One warning a minute, with one check a second.
const CHECKS_BETWEEN_WARNINGS: u32 = 60;

impl MemoryPressure {
    /// Checks the store, and logs warnings.
    pub(super) fn check<C: Clock>(&mut self, store: &MemoryStore<C>) {
        let (used, cap) = store.used();
        let mut warnings = self.fullness(used, cap);
        // Rules are checked only if one has overflowed recently.
        let overflowed = store.overflowed();
        if overflowed != self.overflowed || !self.by_rule.is_empty() {
            self.overflowed = overflowed;
            warnings.extend(self.overflows(&store.usage_by_rule()));
        }
        for warning in warnings {
            match warning {
                PressureWarning::Overflow { rule, used, overflowed } => tracing::warn!(
                    rule,
                    used,
                    overflowed,
                    cap,
                    "no room for new keys of a rule: they share one bucket; raise `store.keys`, or find the clients that flood it"
                ),
                PressureWarning::Filling { used, cap } => {
                    tracing::warn!(
                        used,
                        cap,
                        "the store is filling up: when it is full, new keys share one bucket; raise `store.keys`"
                    );
                }
                PressureWarning::Relieved { used, cap } => tracing::info!(used, cap, "the store has room again"),
            }
        }
    }

    fn fullness(&mut self, used: u64, cap: u64) -> Vec<PressureWarning> {
        let was_filling = self.is_filling;
        let percent = if was_filling { RELIEVED_PERCENT } else { FILLING_PERCENT };
        self.is_filling = u128::from(used) * 100 >= u128::from(cap) * percent;
        match (was_filling, self.is_filling) {
            (false, true) => vec![PressureWarning::Filling { used, cap }],
            (true, false) => vec![PressureWarning::Relieved { used, cap }],
            _ => Vec::new(),
        }
    }

    fn overflows(&mut self, usage: &[RuleUsage]) -> Vec<PressureWarning> {
        let mut warnings = Vec::new();
        let mut seen = HashMap::new();
        for RuleUsage { rule, used, overflowed } in usage.iter().filter(|usage| usage.overflowed > 0) {
            let rule = rule.as_ref().map_or(OTHER, |rule| rule.as_str()).to_owned();
            let mut rule_seen = self.by_rule.get(&rule).copied().unwrap_or_default();
            rule_seen.quiet_for = rule_seen.quiet_for.saturating_sub(1);
            if *overflowed != rule_seen.overflowed && rule_seen.quiet_for == 0 {
                warnings.push(PressureWarning::Overflow { rule: rule.clone(), used: *used, overflowed: *overflowed });
                rule_seen = RuleOverflow { overflowed: *overflowed, quiet_for: CHECKS_BETWEEN_WARNINGS };
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
    fn a_store_that_fills_up_is_reported_once_until_it_has_room_again() {
        let mut pressure = MemoryPressure::default();
        let said: Vec<_> = [0, 599, 600, 700, 550, 499, 550, 600].map(|used| pressure.fullness(used, 1_000)).concat();
        let (filling, relieved) =
            (PressureWarning::Filling { used: 600, cap: 1_000 }, PressureWarning::Relieved { used: 499, cap: 1_000 });
        assert_eq!(said, [filling.clone(), relieved, filling]);
    }

    #[test]
    fn each_rule_that_overflows_is_reported_at_most_once_a_minute() {
        let mut pressure = MemoryPressure::default();
        let mut warned = Vec::new();
        for second in 0..150 {
            let usage = [usage(Some("flooded"), 9, 1 + second), usage(Some("quiet"), 5, 0), usage(None, 3, 7)];
            let rules = pressure.overflows(&usage).into_iter().map(|warning| match warning {
                PressureWarning::Overflow { rule, .. } => (second, rule),
                other => panic!("{other:?}"),
            });
            warned.extend(rules);
        }
        let expected = [(0, "flooded"), (0, OTHER), (60, "flooded"), (120, "flooded")];
        assert_eq!(warned, expected.map(|(second, rule)| (second, rule.to_owned())));
    }
}
