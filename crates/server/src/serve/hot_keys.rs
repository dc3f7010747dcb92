//! Logs keys that cause a large part of the calls to Redis.

use std::collections::HashMap;

use tidegate_core::{Key, RuleId};
use tidegate_redis::RedisStore;
use tidegate_redis::tier::{StoreKey, Tier};
use tidegate_rules::RuleSet;

use crate::metrics::{hot_keys, key_name};

/// Seconds between checks of the keys.
const REPORT_INTERVAL: u32 = 5;
/// Number of checks during which a reported key is not reported again: ten minutes.
const QUIET_CHECKS: u32 = 120;
/// Maximum number of log lines per check. Further keys are only counted.
const MOST_LINES: usize = 3;
/// Maximum number of reported keys that are remembered.
const MOST_REPORTED: usize = 10_000;

/// Reports each key once when it becomes hot.
#[derive(Debug, Default)]
pub(super) struct HotKeys {
    seconds: u32,
    /// Reported keys, with the number of checks until they may be reported again. It restarts while the key is hot.
    reported: HashMap<(RuleId, Key<'static>), u32>,
}

impl HotKeys {
    /// Call once a second.
    pub(super) fn check(&mut self, tier: &Tier<RedisStore>, rules: &RuleSet) {
        self.seconds += 1;
        if self.seconds < REPORT_INTERVAL {
            return;
        }
        self.seconds = 0;
        let (hot, called) = hot_keys(tier);
        let new = self.new_among(&hot);
        for key in new.iter().take(MOST_LINES) {
            let percent = 100.0 * key.calls as f64 / (called.calls as f64).max(1.0);
            tracing::warn!(
                rule = key.rule.as_str(),
                key = key_name(rules, &key.rule, &key.key).readable.join(", "),
                calls_per_second = key.calls * 1_000_000 / called.period.get().max(1),
                percent_of_calls = format_args!("{percent:.1}"),
                leased = tier.leases_key(&key.rule, &key.key),
                "hot key: it takes a large part of the calls to Redis; see \"Hot keys\" in docs/leases.md"
            );
        }
        if let Some(more) = new.len().checked_sub(MOST_LINES).filter(|more| *more > 0) {
            tracing::warn!(keys = more, "further hot keys are not listed: see /v1/keys/top?by=store");
        }
    }

    /// Keys that have become hot.
    fn new_among<'k>(&mut self, hot: &'k [StoreKey]) -> Vec<&'k StoreKey> {
        self.reported.retain(|_, looks| {
            *looks -= 1;
            *looks > 0
        });
        let mut new = Vec::new();
        for key in hot {
            let name = (key.rule.clone(), key.key.clone());
            let is_known = self.reported.contains_key(&name);
            if is_known || self.reported.len() < MOST_REPORTED {
                self.reported.insert(name, QUIET_CHECKS);
                new.extend((!is_known).then_some(key));
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hot(names: &[&str]) -> Vec<StoreKey> {
        let key = |name: &&str| StoreKey {
            rule: RuleId::new("api"),
            key: Key::of([*name]),
            calls: 9,
            error: 0,
            is_hot: true,
        };
        names.iter().map(key).collect()
    }

    #[test]
    fn a_key_is_reported_when_it_becomes_hot_and_again_after_ten_quiet_minutes() {
        let mut keys = HotKeys::default();
        let mut new = |names: &[&str]| keys.new_among(&hot(names)).len();
        assert_eq!([new(&["a"]), new(&["a", "b"]), new(&["b", "a"])], [1, 1, 0]);
        // The key becomes hot repeatedly.
        for _ in 0..20 {
            assert_eq!((0..100).map(|_| new(&[])).sum::<usize>() + new(&["a"]), 0);
        }
        assert_eq!((0..119).map(|_| new(&[])).sum::<usize>() + new(&["a"]), 1);
        assert_eq!(new(&["b"]), 1);
    }
}
