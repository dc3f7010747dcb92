//! Exposition of all metrics for Prometheus.

use std::sync::atomic::Ordering;

use tidegate_rules::{AdaptiveRate, Condition, Health, Limiter, Mode, RuleSet};

use super::descriptor_counts::DescriptorOutcome;
use super::limit_counters::LimitEvent;
use super::page::{Labels, Page};
use super::process;
use super::{ConnectionCounts, Format, ListenerKind, Metrics, region, store_exposition};
use crate::identity::jwt::Verifier;
use crate::listen::Listening;
use crate::log;
use crate::store::AnyStore;

/// All metrics of a limiter, and of the process that it runs in.
#[must_use]
pub fn exposition(metrics: &Metrics, limiter: &Limiter<AnyStore>, format: Format) -> String {
    let mut page = Page::new(format);
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
        store_exposition::write_state_file(&file.stats(), &mut page);
    }
    write_rules(metrics, limiter, &mut page);
    if let Some(region) = limiter.region() {
        region::write(&region, &metrics.region_demand(), &mut page);
    }
    write_health(&limiter.health(), &mut page);
    if let Some(tiers) = limiter.with_rules(|present| present.rules.tiers().map(|tiers| tiers.counts())) {
        store_exposition::write_tiers(&tiers, &mut page);
    }
    store_exposition::write(limiter.store(), &mut page);
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
                // Omits modes that a rule was never in, and rare events that never happened.
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
        self.shed.write(page);
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
                    // Omitted for rules that were never in shadow mode.
                    DescriptorOutcome::OverInShadow => **hits > 0,
                    // Counted as within the limit already.
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
            "Times that the listener reached its maximum of open connections",
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
        // The admin API is excluded, because it serves operators.
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

fn write_rules(metrics: &Metrics, limiter: &Limiter<AnyStore>, page: &mut Page) {
    let present = limiter.rules();
    let reloads = &metrics.reloads;
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
    let last = metrics.last_reload();
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

/// Writes adaptive rates, in units per second.
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
