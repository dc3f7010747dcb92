//! Metrics of the store: memory and its file, Redis, leases, write-behind, tiers of API keys.

use std::time::Duration;

use tidegate_core::RuleId;
use tidegate_core::memory::{MemoryStats, RuleUsage};
use tidegate_redis::RedisStore;
use tidegate_redis::link::BreakerState;
use tidegate_redis::tier::{LeaseStats, Tier};
use tidegate_redis::write_behind::WriteBehindStats;
use tidegate_rules::TierCounts;

use super::histogram::HistogramSnapshot;
use super::hot_keys;
use super::limit_counters::OTHER;
use super::page::{Labels, Page};
use crate::state_file::StateFileStats;
use crate::store::AnyStore;

pub(super) fn write(store: &AnyStore, page: &mut Page) {
    match store {
        AnyStore::Memory(store) => write_memory(&store.stats(), &store.usage_by_rule(), page),
        AnyStore::Redis(tier) => {
            write_redis(tier.behind(), page);
            write_write_behind(&tier.stats(), page);
        }
    }
}

pub(super) fn write_state_file(stats: &StateFileStats, page: &mut Page) {
    page.counter("state_saves", "Times that the state was saved to its file", &[(&[], stats.saves)]);
    page.counter("state_save_failures", "Times that the state could not be saved", &[(&[], stats.failures)]);
    let help = "Time at which the last saved state was read from memory, in seconds since the Unix epoch";
    page.gauge("state_saved_timestamp_seconds", help, &[(&[], stats.saved_at)]);
    page.gauge("state_saved_bytes", "Size of the last saved state", &[(&[], stats.bytes)]);
    let seconds = Duration::from_micros(stats.took).as_secs_f64();
    page.gauge("state_save_duration_seconds", "Time that the last save took", &[(&[], seconds)]);
}

fn write_memory(stats: &MemoryStats, usage: &[RuleUsage], page: &mut Page) {
    page.gauge("memory_keys", "Keys held in memory", &[(&[], stats.keys as u64)]);
    let help = "Used capacity: 1 for each key, and more for logs, leases and reservations, by their size";
    page.gauge("memory_keys_used", help, &[(&[], stats.used as u64)]);
    page.gauge("memory_keys_max", "Capacity: maximum number of keys in the store", &[(&[], stats.max_keys as u64)]);
    page.gauge("memory_table_bytes", "Size of the tables that hold keys", &[(&[], stats.table_bytes as u64)]);
    let help = "Size of state outside the tables: logs, leases and reservations";
    page.gauge("memory_heap_bytes", help, &[(&[], stats.heap_bytes as u64)]);
    page.gauge("memory_reservations", "Reservations that are not settled yet", &[(&[], stats.reservations as u64)]);
    page.counter("memory_swept", "Recovered keys removed by sweeping", &[(&[], stats.swept)]);
    page.counter("memory_evicted", "Recovered keys removed to make room for new ones", &[(&[], stats.evicted)]);
    let help = "Times that a new key found no room and shared a bucket with others";
    page.counter("memory_overflowed", help, &[(&[], stats.overflowed)]);
    let name = |usage: &'_ RuleUsage| usage.rule.as_ref().map_or(OTHER, RuleId::as_str).to_owned();
    let names: Vec<String> = usage.iter().map(name).collect();
    let labels: Vec<_> = names.iter().map(|name| [("rule", name.as_str())]).collect();
    let by_rule = |value: fn(&RuleUsage) -> u64| -> Vec<(Labels<'_>, u64)> {
        labels.iter().zip(usage).map(|(labels, usage)| (&labels[..], value(usage))).collect()
    };
    page.gauge("memory_rule_keys_used", "Used capacity, by rule", &by_rule(|usage| usage.used));
    let help = "Times that a new key of the rule found no room and shared a bucket with others";
    page.counter("memory_rule_overflowed", help, &by_rule(|usage| usage.overflowed));
}

fn write_redis(tier: &Tier<RedisStore>, page: &mut Page) {
    let stats = tier.stats();
    let by_lease = stats.leases.map_or(0, |leases| leases.admitted + leases.denied);
    page.counter(
        "tier_requests",
        "Requests by where they were decided: in Redis, or locally by a cached denial or a lease",
        &[(&[("by", "redis")], stats.asked), (&[("by", "memory")], stats.spared), (&[("by", "lease")], by_lease)],
    );
    page.gauge("tier_keys", "Keys with a cached denial", &[(&[], stats.keys as u64)]);
    write_hot_keys(tier, page);
    if let Some(leases) = stats.leases {
        write_leases(&leases, page);
    }
    let times = tier.behind().call_times();
    let mut buckets: Vec<(f64, u64)> = times.buckets.to_vec();
    if let Some(last) = buckets.last_mut() {
        last.0 = f64::MAX;
    }
    let shown = HistogramSnapshot { sum: times.seconds, count: buckets.iter().map(|(_, count)| count).sum(), buckets };
    page.histogram("redis_call_duration_seconds", "Time taken by calls to Redis, successful or not", &[(&[], shown)]);
    let labels: Vec<_> = times.errors.iter().map(|(code, count)| ([("code", *code)], *count)).collect();
    let errors: Vec<(Labels<'_>, u64)> = labels.iter().map(|(labels, count)| (&labels[..], *count)).collect();
    page.counter("redis_errors", "Calls to Redis that failed, by error code", &errors);
    write_servers(tier.behind(), page);
}

pub(super) fn write_tiers(tiers: &TierCounts, page: &mut Page) {
    page.counter(
        "tier_lookups",
        "Tiers of API keys looked up in Redis, by result. The default tier applies if none is found",
        &[
            (&[("result", "found")], tiers.found),
            (&[("result", "missing")], tiers.missing),
            (&[("result", "broken")], tiers.broken),
            (&[("result", "failed")], tiers.failed),
        ],
    );
    let help = "Look-ups of an API key in Redis whose tier no rule names, so that the default applied";
    page.counter("tiers_unknown", help, &[(&[], tiers.unknown)]);
    page.gauge("tier_lookup_keys", "API keys whose tiers are kept in memory", &[(&[], tiers.keys as u64)]);
}

fn write_write_behind(stats: &WriteBehindStats, page: &mut Page) {
    page.counter(
        "write_behind_decisions",
        "Charges of limits with write_behind, by outcome: allowed or denied by this node's copy, or asked of Redis",
        &[
            (&[("outcome", "allowed")], stats.admitted),
            (&[("outcome", "denied")], stats.denied),
            (&[("outcome", "asked")], stats.asked),
        ],
    );
    page.counter(
        "write_behind_reports",
        "Reports to Redis, by result. Those that were not sent are sent again; those that were lost are not",
        &[
            (&[("result", "success")], stats.reports),
            (&[("result", "not_sent")], stats.not_sent),
            (&[("result", "lost")], stats.lost),
        ],
    );
    page.counter(
        "write_behind_cost_reported",
        "Costs that Redis has charged by reports",
        &[(&[], stats.cost_reported)],
    );
    let help = "Costs in reports whose reply was lost: Redis may or may not have charged them";
    page.counter("write_behind_cost_lost", help, &[(&[], stats.cost_lost)]);
    let help = "Costs that this node has admitted and that Redis is not known to have charged";
    page.gauge("write_behind_cost_unreported", help, &[(&[], stats.cost_unreported)]);
    page.gauge("write_behind_keys", "Keys of which this node has a copy", &[(&[], stats.keys as u64)]);
    let help = "Nodes that share limits with write_behind; 0 if the number is unknown, and Redis decides";
    page.gauge("write_behind_nodes", help, &[(&[], u64::from(stats.nodes))]);
}

fn write_hot_keys(tier: &Tier<RedisStore>, page: &mut Page) {
    let (hot, called) = hot_keys(tier);
    let help = "Keys that each take 1 % or more of the calls to their Redis server";
    page.gauge("store_hot_keys", help, &[(&[], hot.len() as u64)]);
    let busiest = called.keys.first().map_or(0.0, |key| key.calls as f64 / (called.calls as f64).max(1.0));
    page.gauge("store_busiest_key_ratio", "Part of the calls to Redis that the busiest key takes", &[(&[], busiest)]);
}

fn write_leases(leases: &LeaseStats, page: &mut Page) {
    page.counter(
        "lease_decisions",
        "Requests decided by leases, by outcome",
        &[(&[("outcome", "allowed")], leases.admitted), (&[("outcome", "denied")], leases.denied)],
    );
    page.counter("lease_calls", "Calls to Redis that renewed or returned leases", &[(&[], leases.calls)]);
    let renewals: [(Labels<'_>, u64); 2] = [
        (&[("result", "success")], leases.renewals.saturating_sub(leases.failed)),
        (&[("result", "failure")], leases.failed),
    ];
    page.counter("lease_renewals", "Renewals and returns of leases, one for each key of a call, by result", &renewals);
    page.counter("lease_cost_granted", "Costs that Redis granted to leases", &[(&[], leases.granted)]);
    page.counter("lease_cost_returned", "Costs returned unspent", &[(&[], leases.returned)]);
    page.counter("lease_cost_ended", "Costs of leases that ended unspent; they count as spent", &[(&[], leases.ended)]);
    let help = "Time in which a limit was used up and this node had spent its share, over all keys";
    page.counter("lease_short_seconds", help, &[(&[], leases.short.get() as f64 / 1e6)]);
    page.gauge("lease_keys", "Keys that are leased or observed", &[(&[], leases.keys as u64)]);
    page.gauge("lease_keys_held", "Keys that this node holds a lease of", &[(&[], leases.leased as u64)]);
    page.gauge("lease_cost_held", "Unspent costs of the leases that this node holds", &[(&[], leases.outstanding)]);
    page.gauge("lease_slots_held", "Slots of concurrency limits that this node leases", &[(&[], leases.slots)]);
    page.gauge("lease_slots_in_use", "Leased slots that requests hold", &[(&[], leases.slots_in_use)]);
}

fn write_servers(store: &RedisStore, page: &mut Page) {
    let servers = store.stats().servers;
    let names: Vec<String> = servers
        .iter()
        .map(|server| server.address.as_ref().map_or_else(|| "unknown".to_owned(), ToString::to_string))
        .collect();
    let labels: Vec<_> = names.iter().map(|name| [("server", name.as_str())]).collect();
    let each = |value: fn(&tidegate_redis::link::ServerStats) -> u64| -> Vec<(Labels<'_>, u64)> {
        labels.iter().zip(&servers).map(|(labels, server)| (&labels[..], value(server))).collect()
    };
    page.gauge(
        "redis_connected",
        "Whether there is a connection to the server",
        &each(|server| u64::from(server.connected)),
    );
    let is_open = |server: &tidegate_redis::link::ServerStats| u64::from(server.breaker != BreakerState::Closed);
    page.gauge("redis_breaker_open", "Whether the circuit breaker of the server is open", &each(is_open));
    page.counter(
        "redis_breaker_opened",
        "Times that the circuit breaker of the server opened",
        &each(|server| server.opened),
    );
    page.gauge("redis_waiting", "Calls queued for the server", &each(|server| server.waiting as u64));
    page.counter("redis_answered", "Calls that the server answered", &each(|server| server.counts.answered));
    page.counter("redis_not_run", "Failed calls that certainly did not run", &each(|server| server.counts.not_run));
    page.counter("redis_unknown", "Failed calls that may have run", &each(|server| server.counts.unknown));
    page.counter("redis_batches", "Batches of calls sent to the server", &each(|server| server.counts.batches));
    page.counter("redis_connections", "Connections made to the server", &each(|server| server.counts.connections));
}
