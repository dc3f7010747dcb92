//! Keys with the most calls to Redis, by name.

use tidegate_core::{Key, RuleId};
use tidegate_redis::RedisStore;
use tidegate_redis::tier::{StoreKey, StoreKeys, Tier};
use tidegate_rules::{Limiter, Rule, RuleSet};

use super::{KeyName, TopKey, TopKeys};
use crate::store::AnyStore;

/// Maximum number of hot keys per server: each has at least 1 % of the calls.
const MOST_HOT: usize = 100;

/// Keys with the most calls to Redis. For a cluster, assumes that keys are spread evenly.
pub(crate) fn called(tier: &Tier<RedisStore>, most: usize) -> StoreKeys {
    tier.store_keys(servers(tier), most)
}

/// The hot keys of a Redis store, busiest first, and the busiest key overall.
pub(crate) fn hot(tier: &Tier<RedisStore>) -> (Vec<StoreKey>, StoreKeys) {
    let servers = servers(tier);
    let mut called = tier.store_keys(servers, MOST_HOT * servers);
    let hot = called.keys.iter().filter(|key| key.is_hot).cloned().collect();
    called.keys.truncate(1);
    (hot, called)
}

fn servers(tier: &Tier<RedisStore>) -> usize {
    tier.behind().stats().servers.len().max(1)
}

/// The `most` keys with the most calls to Redis; `None` if the store is in memory.
pub(crate) fn top(limiter: &Limiter<AnyStore>, most: usize) -> Option<TopKeys> {
    let AnyStore::Redis(store) = limiter.store() else { return None };
    let tier = store.behind();
    let (StoreKeys { period, calls, keys }, present) = (called(tier, most), limiter.rules());
    let shown = |StoreKey { rule, key, calls, error, is_hot }: StoreKey| {
        let KeyName { readable, in_full } = name(&present.rules, &rule, &key);
        let leased = tier.leases_key(&rule, &key);
        TopKey { rule: rule.as_str().to_owned(), key: readable, in_full, count: calls, error, hot: is_hot, leased }
    };
    let seconds = (period.get() / 1_000_000).max(1);
    Some(TopKeys { seconds, total: calls, keys: keys.into_iter().map(shown).collect() })
}

/// Name of a key under a limit, with secrets hidden.
pub(crate) fn name(rules: &RuleSet, limit: &RuleId, key: &Key<'_>) -> KeyName {
    match rules.rule_of(limit.as_str()) {
        Some(rule) => of_rule(rule, key),
        // A limit from a request, or of a removed rule.
        None => KeyName { readable: tidegate_rules::readable_key(key), in_full: tidegate_rules::key_in_full(key) },
    }
}

pub(super) fn of_rule(rule: &Rule, key: &Key<'_>) -> KeyName {
    KeyName { readable: rule.readable(key), in_full: rule.in_full(key) }
}
