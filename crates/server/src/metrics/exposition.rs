//! Exposition of all metrics for Prometheus.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_core::RuleId;
use tidegate_core::memory::{MemoryStats, RuleUsage};
use tidegate_redis::RedisStore;
use tidegate_redis::link::BreakerState;
use tidegate_redis::tier::{LeaseStats, Tier};
use tidegate_redis::write_behind::WriteBehindStats;
use tidegate_rules::{AdaptiveRate, Condition, Health, Mode, RuleSet, TierCounts};

use super::descriptor_counts::DescriptorOutcome;
use super::histogram::HistogramSnapshot;
use super::limit_counters::{LimitEvent, OTHER};
use super::page::{Labels, Page};
use super::process;
use super::{ConnectionCounts, Format, ListenerKind, Metrics, hot_keys};
use crate::engine::Engine;
use crate::identity::jwt::Verifier;
use crate::listen::Listening;
use crate::log;
use crate::state_file::StateFileStats;
use crate::store::AnyStore;

/// All metrics of an engine, and of the process that it runs in.
#[must_use]
pub fn exposition(engine: &Arc<Engine>, format: Format) -> String {
    let mut page = Page::new(format);
    let metrics = engine.metrics();
    let traces = if cfg!(feature = "otel") { "true" } else { "false" };
    let build = [("version", crate::version::short()), ("arch", std::env::consts::ARCH), ("otel", traces)];
    page.gauge("build_info", "Always 1; the labels identify the build", &[(&build, 1)]);
    if let Some(node) = metrics.node.get() {
        page.gauge("node_info", "Always 1; the label is the name of the node", &[(&[("name", &**node)], 1)]);
    }
    metrics.write_decisions(&mut page);
    metrics.write_listeners(&mut page);
    if let Some(gateway) = metrics.gateway.get() {
        gateway.write(&mut page);
    }
    if let Some(verifier) = metrics.tokens() {
        write_tokens(verifier, &mut page);
    }
    write_log(&mut page);
    if let Some(log) = metrics.access_log.get() {
        page.counter("access_log_lines", "Access log lines handed to the writer", &[(&[], log.taken())]);
        let help = "Access log lines dropped because the queue was full or the file could not be written";
        page.counter("access_log_lines_dropped", help, &[(&[], log.dropped())]);
    }
    if let Some(file) = metrics.state_file.get() {
        write_state_file(&file.stats(), &mut page);
    }
    write_rules(engine, &mut page);
    write_health(&engine.limiter().health(), &mut page);
    if let Some(tiers) = engine.limiter().with_rules(|present| present.rules.tiers().map(|tiers| tiers.counts())) {
        write_tiers(&tiers, &mut page);
    }
    match engine.limiter().store() {
        AnyStore::Memory(store) => write_memory(&store.stats(), &store.usage_by_rule(), &mut page),
        AnyStore::Redis(tier) => {
            write_redis(tier.behind(), &mut page);
            write_write_behind(&tier.stats(), &mut page);
        }
    }
    process::write(&mut page);
    page.finish()
}

impl Metrics {
    fn write_decisions(&self, page: &mut Page) {
        let requests = self.requests();
        page.counter(
            "requests",
            "Requests decided, by outcome",
            &[
                (&[("outcome", "allowed")], requests.allowed),
                (&[("outcome", "denied")], requests.denied),
                (&[("outcome", "refused")], requests.refused),
            ],
        );
        const OUTCOMES: [(LimitEvent, Mode, &str); 7] = [
            (LimitEvent::Allowed, Mode::Enforce, "allowed"),
            (LimitEvent::Denied, Mode::Enforce, "denied"),
            (LimitEvent::TooLarge, Mode::Enforce, "too_large"),
            (LimitEvent::Refused, Mode::Enforce, "refused"),
            (LimitEvent::ShadowAllowed, Mode::Shadow, "allowed"),
            (LimitEvent::ShadowDenied, Mode::Shadow, "denied"),
            (LimitEvent::ShadowTooLarge, Mode::Shadow, "too_large"),
        ];
        let modes = [Mode::Enforce, Mode::Shadow].map(|mode| (mode, mode.to_string()));
        let mode_name = |mode| modes.iter().find(|(known, _)| *known == mode).map_or("", |(_, name)| name.as_str());
        let mut limits = Vec::new();
        self.limits.each(|counters| limits.push((counters.id.clone(), counters.counts())));
        limits.sort_by(|(one, _), (other, _)| one.as_str().cmp(other.as_str()));
        let (mut labels, mut without, mut admitted) = (Vec::new(), Vec::new(), Vec::new());
        for (id, counts) in &limits {
            for (event, mode, outcome) in OUTCOMES {
                let count = counts[event as usize];
                // No series for modes that a rule was never in, nor for rare events that never happened.
                let shown = match event {
                    LimitEvent::Allowed | LimitEvent::Denied => counts[..3].iter().sum::<u64>() > 0,
                    LimitEvent::ShadowAllowed | LimitEvent::ShadowDenied => counts[3..6].iter().sum::<u64>() > 0,
                    LimitEvent::TooLarge
                    | LimitEvent::ShadowTooLarge
                    | LimitEvent::Refused
                    | LimitEvent::WithoutStore
                    | LimitEvent::AdmittedCost => count > 0,
                };
                if shown {
                    labels.push(([("rule", id.as_str()), ("mode", mode_name(mode)), ("outcome", outcome)], count));
                }
            }
            admitted.push(([("rule", id.as_str())], counts[LimitEvent::AdmittedCost as usize]));
            if counts[LimitEvent::WithoutStore as usize] > 0 {
                without.push(([("rule", id.as_str())], counts[LimitEvent::WithoutStore as usize]));
            }
        }
        let values: Vec<(Labels<'_>, u64)> = labels.iter().map(|(labels, count)| (&labels[..], *count)).collect();
        page.counter("decisions", "Decisions of each limit, by its mode and outcome", &values);
        let values: Vec<(Labels<'_>, u64)> = without.iter().map(|(labels, count)| (&labels[..], *count)).collect();
        page.counter(
            "decisions_without_store",
            "Decisions made by a rule's failure policy, without the store",
            &values,
        );
        let values: Vec<(Labels<'_>, u64)> = admitted.iter().map(|(labels, cost)| (&labels[..], *cost)).collect();
        let help =
            "Costs of admitted requests under each limit, estimates included; in shadow mode, those within the limit";
        page.counter("cost_admitted", help, &values);
        let unkeyed = self.unkeyed.all();
        let labels: Vec<_> = unkeyed.iter().map(|(rule, count)| ([("rule", &**rule)], *count)).collect();
        let values: Vec<(Labels<'_>, u64)> = labels.iter().map(|(labels, count)| (&labels[..], *count)).collect();
        let help = "Requests that lacked a part of a rule's key and were charged to a shared key";
        page.counter("requests_without_key", help, &values);
        self.write_descriptors(page);
        self.write_unsettled(page);
        self.settled.write(page);
        page.histogram(
            "decide_duration_seconds",
            "Time taken to decide a request, extrapolated from a sample",
            &[(&[], self.deciding.snapshot())],
        );
    }

    fn write_descriptors(&self, page: &mut Page) {
        let names = self.descriptors.all();
        let labels: Vec<_> = names
            .iter()
            .flat_map(|(name, hits)| {
                let each = DescriptorOutcome::ALL.iter().zip(hits);
                let shown = each.filter(|(outcome, hits)| match outcome {
                    DescriptorOutcome::Within | DescriptorOutcome::Over => true,
                    // A rule that was never in shadow mode has no such series.
                    DescriptorOutcome::OverInShadow => **hits > 0,
                    // These are counted as within, too.
                    DescriptorOutcome::NearLimit => false,
                });
                shown.map(|(outcome, hits)| ([("descriptor", &**name), ("outcome", outcome.as_str())], *hits))
            })
            .collect();
        let values: Vec<(Labels<'_>, u64)> = labels.iter().map(|(labels, count)| (&labels[..], *count)).collect();
        page.counter("descriptors", "Hits of Envoy descriptors, by whether they were within their limits", &values);
        let near: Vec<_> = names
            .iter()
            .map(|(name, hits)| ([("descriptor", &**name)], hits[DescriptorOutcome::NearLimit as usize]))
            .collect();
        let values: Vec<(Labels<'_>, u64)> = near.iter().map(|(labels, count)| (&labels[..], *count)).collect();
        let help = "Hits of Envoy descriptors that left less than a fifth of their limits";
        page.counter("descriptors_near_limit", help, &values);
        let unknown = self.unknown_domains.load(Ordering::Relaxed);
        page.counter("unknown_domain_requests", "Requests from Envoy for domains without limits", &[(&[], unknown)]);
    }

    fn write_unsettled(&self, page: &mut Page) {
        let all = self.unsettled.all();
        let labels: Vec<_> = all
            .iter()
            .map(|(limit, why, count)| ([("rule", limit.as_str()), ("reason", why.as_str())], *count))
            .collect();
        let values: Vec<(Labels<'_>, u64)> = labels.iter().map(|(labels, count)| (&labels[..], *count)).collect();
        page.counter(
            "unsettled",
            "Reservations that no response settled and that stay charged at their estimates, by reason",
            &values,
        );
    }

    fn write_listeners(&self, page: &mut Page) {
        let labels = ListenerKind::ALL.map(|listener| [("listener", listener.name())]);
        let connections = || labels.iter().zip(&self.connections);
        let open: Vec<(Labels<'_>, u64)> = connections()
            .map(|(labels, listener)| (&labels[..], u64::try_from(listener.open.load(Ordering::Relaxed)).unwrap_or(0)))
            .collect();
        page.gauge("connections", "Open connections", &open);
        let accepted: Vec<(Labels<'_>, u64)> =
            connections().map(|(labels, listener)| (&labels[..], listener.accepted.load(Ordering::Relaxed))).collect();
        page.counter("connections_accepted", "Connections accepted", &accepted);
        let of_listener = |value: fn(&Listening) -> u64| -> Vec<(Labels<'_>, u64)> {
            connections().map(|(labels, listener)| (&labels[..], listener.listening.get().map_or(0, value))).collect()
        };
        page.gauge(
            "connections_max",
            "Maximum number of open connections of the listener; 0 if it is off",
            &of_listener(|listening| listening.most_connections() as u64),
        );
        page.counter(
            "connections_full",
            "Times that a connection had to wait because the listener was full",
            &of_listener(Listening::times_full),
        );
        let expiry = |listener: &ConnectionCounts| listener.listening.get()?.certificate_expiry();
        let expiries: Vec<(Labels<'_>, u64)> =
            connections().filter_map(|(labels, listener)| Some((&labels[..], expiry(listener)?))).collect();
        page.gauge(
            "tls_certificate_expiry_timestamp_seconds",
            "Time at which the certificate of the listener expires, in seconds since the Unix epoch",
            &expiries,
        );
        page.counter(
            "connections_refused",
            "Connections closed because their address already held its share",
            &of_listener(Listening::refused),
        );
        let failures: Vec<(Labels<'_>, u64)> = connections()
            .map(|(labels, listener)| (&labels[..], listener.auth_failures.load(Ordering::Relaxed)))
            .collect();
        let counts = self.received.counts();
        // The admin API serves operators, not requests.
        let received: Vec<(Labels<'_>, u64)> = labels
            .iter()
            .zip(ListenerKind::ALL)
            .filter(|(_, listener)| *listener != ListenerKind::Admin)
            .map(|(labels, listener)| (&labels[..], counts[listener as usize]))
            .collect();
        page.counter("listener_requests", "Requests received; commands at the Redis listener", &received);
        page.counter("auth_failures", "Failed attempts to authenticate: wrong passwords and tokens", &failures);
    }
}

fn write_tokens(verifier: &Verifier, page: &mut Page) {
    let (counted, health) = (verifier.counted(), verifier.health());
    let valid = [("cached", counted.cached), ("verified", counted.verified)];
    let results: Vec<_> =
        valid.into_iter().chain(counted.refused).map(|(name, count)| ([("result", name)], count)).collect();
    let values: Vec<(Labels<'_>, u64)> = results.iter().map(|(labels, count)| (&labels[..], *count)).collect();
    page.counter("jwt_tokens", "Tokens checked, by result", &values);
    page.gauge("jwt_keys", "Keys in force that verify tokens", &[(&[], counted.keys as u64)]);
    let is_current = u64::from(health.problem.is_none());
    page.gauge(
        "jwt_keys_current",
        "Whether the last attempt to read or fetch the keys succeeded",
        &[(&[], is_current)],
    );
    let fetches: [(Labels<'_>, u64); 2] =
        [(&[("result", "success")], counted.fetched), (&[("result", "failure")], counted.fetch_failed)];
    page.counter("jwt_key_fetches", "Attempts to fetch the key set, by result", &fetches);
    page.gauge("jwt_cache_tokens", "Verified tokens in the cache", &[(&[], counted.cache.entries as u64)]);
    page.gauge(
        "jwt_cache_bytes",
        "Approximate size of the cache of verified tokens",
        &[(&[], counted.cache.bytes as u64)],
    );
}

fn write_log(page: &mut Page) {
    let log::Dropped { queue_full, repeated } = log::dropped();
    let reasons: [(Labels<'_>, u64); 2] =
        [(&[("reason", "queue_full")], queue_full), (&[("reason", "repeated")], repeated)];
    page.counter("log_lines_dropped", "Log lines that were not written, by reason", &reasons);
}

fn write_rules(engine: &Engine, page: &mut Page) {
    let present = engine.limiter().rules();
    let reloads = &engine.metrics().reloads;
    page.gauge("rules_generation", "Generation number of the rules in force", &[(&[], present.number)]);
    page.gauge("rules", "Rules in force", &[(&[], present.rules.rules().len() as u64)]);
    let (mut shadow, mut off) = (0, 0);
    for rule in present.rules.shown() {
        shadow += u64::from(rule.mode == Mode::Shadow);
        off += u64::from(rule.mode == Mode::Off);
    }
    let quiet: [(Labels<'_>, u64); 2] = [(&[("mode", "shadow")], shadow), (&[("mode", "off")], off)];
    page.gauge("rules_not_enforced", "Rules in shadow mode or off, as written or switched", &quiet);
    write_rates(&present.rules, page);
    let switches = present.rules.switches();
    let switched = switches.rules().len() as u64 + u64::from(switches.all().is_some());
    page.gauge("rules_switched", "Switches in force that override the modes in the rules files", &[(&[], switched)]);
    let results: [(Labels<'_>, u64); 2] = [
        (&[("result", "success")], reloads.good.load(Ordering::Relaxed)),
        (&[("result", "failure")], reloads.bad.load(Ordering::Relaxed)),
    ];
    page.counter("rules_reloads", "Attempts to reload the rules, by result", &results);
    let last = engine.metrics().last_reload();
    let good = u64::from(last.as_ref().is_none_or(|last| last.problem.is_none()));
    page.gauge(
        "rules_last_reload_successful",
        "Whether the last attempt to reload the rules succeeded",
        &[(&[], good)],
    );
    let at = last.map_or(0, |last| last.at_ms / 1_000);
    page.gauge(
        "rules_last_reload_timestamp_seconds",
        "Time of the last attempt to reload the rules; 0 if there was none since the start",
        &[(&[], at)],
    );
}

fn write_state_file(stats: &StateFileStats, page: &mut Page) {
    page.counter("state_saves", "Times that the state was saved to its file", &[(&[], stats.saves)]);
    page.counter("state_save_failures", "Times that the state could not be saved", &[(&[], stats.failures)]);
    let help = "Time at which the last saved state was read from memory, in seconds since the Unix epoch";
    page.gauge("state_saved_timestamp_seconds", help, &[(&[], stats.saved_at)]);
    page.gauge("state_saved_bytes", "Size of the last saved state", &[(&[], stats.bytes)]);
    let seconds = Duration::from_micros(stats.took).as_secs_f64();
    page.gauge("state_save_duration_seconds", "Time that the last save took", &[(&[], seconds)]);
}

/// Rates that adapt, in units of a second.
#[expect(clippy::cast_precision_loss, reason = "rates are shown with a few digits")]
fn write_rates(rules: &RuleSet, page: &mut Page) {
    let rates: Vec<_> = rules.adaptive_rates().collect();
    if rates.is_empty() {
        return;
    }
    let labels: Vec<_> = rates.iter().map(|rate| [("rule", rate.rule())]).collect();
    let per_second = |rate: &AdaptiveRate, tokens: u64| tokens as f64 * 1e6 / rate.period().get() as f64;
    let mut gauge = |name, help, tokens: fn(&AdaptiveRate) -> u64| {
        let values = rates.iter().map(|rate| per_second(rate, tokens(rate)));
        let values: Vec<(Labels<'_>, f64)> = labels.iter().map(|labels| &labels[..]).zip(values).collect();
        page.gauge(name, help, &values);
    };
    let present = "Present rate of rules that adapt, in units of cost per second";
    gauge("adaptive_rate", present, AdaptiveRate::tokens);
    gauge("adaptive_rate_min", "Lowest rate of rules that adapt", |rate| rate.bounds().0);
    gauge("adaptive_rate_max", "Highest rate of rules that adapt", |rate| rate.bounds().1);
    let counts: Vec<(Labels<'_>, u64)> =
        labels.iter().map(|labels| &labels[..]).zip(rates.iter().map(|rate| rate.decreases())).collect();
    page.counter("adaptive_rate_decreases", "Times that this node has lowered the rate because of overload", &counts);
}

fn write_health(health: &Health, page: &mut Page) {
    let healthy = |condition: &Condition| u64::from(condition.is_healthy());
    page.gauge("store_up", "Whether the store answers", &[(&[], healthy(&health.store))]);
    page.gauge("store_keys_up", "Whether the store can decide every key", &[(&[], healthy(&health.keys))]);
    page.counter("store_outages", "Times that the store stopped answering", &[(&[], health.outages)]);
    page.counter("store_unanswered", "Calls that the store did not answer", &[(&[], health.unanswered)]);
    let help = "Calls that the store did not answer but may have charged";
    page.counter("store_charged_unknown", help, &[(&[], health.charged_unknown)]);
    let decided = &health.decided;
    page.counter(
        "fallback_decisions",
        "Decisions made without the store, by policy and outcome",
        &[
            (&[("by", "allow")], decided.allow),
            (&[("by", "allow_ended")], decided.allow_ended),
            (&[("by", "deny")], decided.deny),
            (&[("by", "local_allowed")], decided.local_allowed),
            (&[("by", "local_denied")], decided.local_denied),
            (&[("by", "too_large")], decided.too_large),
        ],
    );
    let reports = &health.reports;
    page.gauge(
        "unreported_keys",
        "Keys with admissions that are still to be reported to the store",
        &[(&[], reports.waiting as u64)],
    );
    page.counter(
        "reported_keys",
        "Keys whose admissions during an outage were reported to the store",
        &[(&[], reports.keys)],
    );
    page.counter(
        "reports_lost",
        "Admissions during an outage that will not be reported to the store",
        &[(&[], reports.lost)],
    );
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

fn write_tiers(tiers: &TierCounts, page: &mut Page) {
    page.counter(
        "tier_lookups",
        "Tiers of API keys looked up in Redis, by result. Without a tier that is found, the default applies",
        &[
            (&[("result", "found")], tiers.found),
            (&[("result", "missing")], tiers.missing),
            (&[("result", "broken")], tiers.broken),
            (&[("result", "failed")], tiers.failed),
        ],
    );
    let help = "Times that the tier of an API key in Redis was one that no rule knows, and the default applied";
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
        "Reports to Redis, by result. Those that were not sent are sent again, those that were lost are not",
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
    let help = "Costs in reports whose answer was lost: Redis may have charged them or not";
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
