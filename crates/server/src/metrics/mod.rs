//! Metrics: counting, and exposition.
//!
//! Every decision is counted under its limit (`limit_counters.rs`), without hashing a name and without contention
//! between threads (`thread_counters.rs`). Costlier work, reading a clock and ranking keys (`top.rs`), is
//! done for a sample of requests (`sample_epoch.rs`). Memory is bounded for any input: limits come from rules and share
//! counters past a bound, names chosen by clients have counters up to a bound (`descriptor_counts.rs`), and keys go to
//! a sketch of fixed size. `exposition.rs` and `store_exposition.rs` write all metrics for Prometheus (`page.rs`, `format.rs`),
//! and `view.rs` for the admin API.

mod cause;
mod denials;
mod descriptor_counts;
mod exposition;
mod format;
mod gateway;
mod histogram;
mod limit_counters;
mod listener_kind;
mod page;
mod process;
mod region;
mod sample_epoch;
mod settled;
mod shed_decisions;
mod store_exposition;
mod store_keys;
mod thread_counters;
mod top;
mod unkeyed;
mod unsettled;
mod view;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tidegate_core::disclosure::Disclosure;
use tidegate_core::limit::Recovery;
use tidegate_core::{Clock, Decision, Key, RuleId, SystemClock, Timestamp};
use tidegate_redis::fleet::NodeDemand;
use tidegate_rules::{DecidedBy, Generation, Matched, RuleSet, Ruled, RuledCharge, Ruling};
use tidegate_tower::Unsettled;

pub(crate) use self::cause::FailureCause;
pub use self::denials::Denial;
use self::descriptor_counts::DescriptorCounts;
pub(crate) use self::descriptor_counts::DescriptorOutcome;
pub use self::exposition::exposition;
pub use self::format::Format;
pub(crate) use self::gateway::{Ended, GatewayMetrics, RouteMetrics, UpstreamMetrics};
use self::histogram::Histogram;
use self::limit_counters::{LimitCounters, LimitTable};
pub use self::limit_counters::{MOST_LIMITS, OTHER};
pub use self::listener_kind::ListenerKind;
pub use self::region::{OutgoingShare, OwnRegion, OwnShare};
use self::sample_epoch::{SampleEpoch, Weight};
use self::settled::SettledCosts;
use self::shed_decisions::ShedDecisions;
pub(crate) use self::store_keys::{hot as hot_keys, name as key_name, top as top_store_keys};
use self::thread_counters::ThreadCounters;
pub(crate) use self::top::KeyName;
use self::top::KeyRanking;
pub use self::top::{Ranking, TopKey, TopKeys};
use self::unkeyed::UnkeyedCounters;
use self::unsettled::UnsettledCosts;
pub use self::view::{RateView, Reload, Requests, RuleView, StoreView, TierView, View};
use crate::access_log::AccessLog;
use crate::identity::jwt::Verifier;
use crate::listen::Listening;
use crate::state_file::StateFile;

/// Metrics of a server.
pub struct Metrics {
    clock: Arc<dyn Clock>,
    counter: quanta::Clock,
    epoch: SampleEpoch,
    requests: ThreadCounters<8>,
    limits: LimitTable,
    descriptors: DescriptorCounts,
    unknown_domains: AtomicU64,
    /// Name of the server.
    node: OnceLock<Box<str>>,
    unkeyed: UnkeyedCounters,
    /// Decisions of shed rules.
    shed: ShedDecisions,
    top: KeyRanking,
    recent: denials::RecentDenials,
    deciding: Histogram,
    connections: [ConnectionCounts; ListenerKind::ALL.len()],
    /// Requests by listener.
    received: ThreadCounters<{ ListenerKind::ALL.len() }>,
    reloads: Reloads,
    /// Access log, if enabled.
    access_log: OnceLock<Arc<AccessLog>>,
    state_file: OnceLock<Arc<StateFile>>,
    /// Demand that this node reports to its region.
    demand: OnceLock<NodeDemand>,
    /// Gateway, if enabled.
    gateway: OnceLock<Arc<GatewayMetrics>>,
    /// Verifier of tokens, with its counters.
    tokens: OnceLock<Arc<Verifier>>,
    /// Rules whose limits have counters.
    counted: Mutex<Option<RuleSet>>,
    unsettled: UnsettledCosts,
    settled: SettledCosts,
}

#[derive(Debug, Default)]
struct ConnectionCounts {
    open: AtomicI64,
    accepted: AtomicU64,
    auth_failures: AtomicU64,
    /// Source of the number of refused connections.
    listening: OnceLock<Listening>,
}

#[derive(Debug, Default)]
struct Reloads {
    good: AtomicU64,
    bad: AtomicU64,
    last: Mutex<Option<Arc<Reload>>>,
}

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestOutcome {
    Allowed,
    Denied,
    Refused,
}

/// A sampled request. Created before the decision, to measure its duration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampledRequest {
    pub(crate) weight: Weight,
    pub(crate) begun: u64,
}

/// The remaining inspections of a counted request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inspection {
    weight: Option<Weight>,
    /// Whether a limit denied for the first time in this epoch.
    denials: bool,
}

impl Inspection {
    /// Whether there is anything to inspect.
    #[inline]
    pub(crate) const fn is_needed(self) -> bool {
        self.weight.is_some() || self.denials
    }
}

impl Metrics {
    /// Empty metrics, with the system's clock.
    #[must_use]
    pub fn new() -> Metrics {
        Metrics::with_clock(Arc::new(SystemClock::new()))
    }

    /// Empty metrics. `clock` supplies the times of denials, and the windows of top keys.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Metrics {
        let top = KeyRanking::new(clock.now());
        Metrics {
            clock,
            counter: quanta::Clock::new(),
            epoch: SampleEpoch::new(),
            requests: ThreadCounters::new(),
            limits: LimitTable::new(),
            descriptors: DescriptorCounts::new(),
            unknown_domains: AtomicU64::new(0),
            node: OnceLock::new(),
            unkeyed: UnkeyedCounters::default(),
            top,
            recent: denials::RecentDenials::default(),
            deciding: Histogram::default(),
            connections: Default::default(),
            received: ThreadCounters::new(),
            reloads: Reloads::default(),
            access_log: OnceLock::new(),
            state_file: OnceLock::new(),
            demand: OnceLock::new(),
            gateway: OnceLock::new(),
            tokens: OnceLock::new(),
            counted: Mutex::new(None),
            shed: ShedDecisions::default(),
            unsettled: UnsettledCosts::default(),
            settled: SettledCosts::default(),
        }
    }

    /// Call before a request is decided.
    #[inline]
    pub(crate) fn begin(&self) -> Option<SampledRequest> {
        let weight = self.epoch.sample()?;
        Some(SampledRequest { weight, begun: self.counter.raw() })
    }

    /// Counts a request decided by rules. Returns what remains to be inspected.
    #[inline]
    pub(crate) fn count(&self, ruling: &Ruling<'_>, sample: Option<SampledRequest>) -> Inspection {
        let outcome = match (&ruling.refused, ruling.verdict.is_allowed()) {
            (Some(_), _) => RequestOutcome::Refused,
            (None, true) => RequestOutcome::Allowed,
            (None, false) => RequestOutcome::Denied,
        };
        self.requests.add(outcome as usize, 1);
        if let Some(refused) = &ruling.refused {
            self.limits.with(&RuleId::new(&refused.rule), LimitCounters::refuse);
        }
        if let Some(rules) = &ruling.unkeyed {
            self.unkeyed.count(rules);
        }
        let epoch = self.epoch.now();
        let denials = self.limits.with_all(|limits| {
            let mut denials = false;
            for Ruled { id, mode, decision, by, cost, .. } in &ruling.ruled {
                let is_admitted = outcome == RequestOutcome::Allowed && decision.is_allowed();
                let admitted = if is_admitted { *cost } else { 0 };
                denials |= limits.of(id).decided(*mode, decision, *by, admitted, epoch);
            }
            denials
        });
        self.end(sample);
        Inspection { weight: sample.map(|sample| sample.weight), denials }
    }

    /// Counts the decisions of shed rules, by the priority of the request.
    #[inline]
    pub(crate) fn count_shed(&self, matched: &Matched<'_, '_>, ruling: &Ruling<'_>) {
        self.shed.count(matched, ruling);
    }

    /// Counts a decision on a request of this cost, under a limit that the request contains.
    #[inline]
    pub(crate) fn count_inline(
        &self,
        rule: &RuleId,
        (key, cost): (&Key<'_>, u64),
        (decision, by): &(Decision, DecidedBy),
        sample: Option<SampledRequest>,
    ) {
        let mode = tidegate_rules::Mode::Enforce;
        let (outcome, admitted) = match decision.is_allowed() {
            true => (RequestOutcome::Allowed, cost),
            false => (RequestOutcome::Denied, 0),
        };
        self.requests.add(outcome as usize, 1);
        let denials = self.limits.with(rule, |counters| {
            counters.mark_inline();
            counters.decided(mode, decision, *by, admitted, self.epoch.now())
        });
        self.end(sample);
        let inspection = Inspection { weight: sample.map(|sample| sample.weight), denials };
        if inspection.is_needed() {
            let ruled = Ruled {
                id: Cow::Borrowed(rule),
                mode,
                decision: *decision,
                recovery: Recovery::OnRelease,
                disclosure: Disclosure::DEFAULT,
                by: *by,
                cost,
            };
            self.inspect(inspection, &ruled, key, || KeyName {
                readable: tidegate_rules::readable_key(key),
                in_full: None,
            });
        }
    }

    /// Counts the outcome of a descriptor, by its name in Envoy's metrics. The number of names from requests
    /// (`is_from_request`) is bounded.
    pub(crate) fn count_descriptor(&self, name: &str, is_from_request: bool, outcome: DescriptorOutcome, hits: u64) {
        self.descriptors.count(name, is_from_request, outcome, hits);
    }

    /// Sets the name of the node. Only the first call has an effect.
    pub(crate) fn set_node_name(&self, name: &str) {
        let _ = self.node.set(name.into());
    }

    /// Counts a request for an unknown domain.
    pub(crate) fn unknown_domain(&self) {
        self.unknown_domains.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a cost that no response settled, and that stays charged as estimated.
    pub(crate) fn unsettled(&self, limit: &RuleId, cost: u64, why: Unsettled) {
        self.unsettled.count(limit, why);
        self.settled.leave(limit, cost);
    }

    /// Counts a cost that was reserved at `taken` and settled at `actual`.
    pub(crate) fn settled(&self, limit: &RuleId, taken: u64, actual: u64) {
        self.settled.settle(limit, taken, actual);
    }

    /// Counts a cost settled by a receipt. Receipts come from clients, so limits that are not in `rules` are ignored.
    pub(crate) fn settled_by_receipt(&self, rules: &RuleSet, limit: &RuleId, taken: u64, actual: u64) {
        if self.settled.knows(limit) || rules.limit_ids().any(|known| known == limit) {
            self.settled.settle(limit, taken, actual);
        }
    }

    /// Counts a cost that is refunded.
    pub(crate) fn refunded(&self, limit: &RuleId, cost: u64) {
        self.settled.refund(limit, cost);
    }

    #[inline]
    fn end(&self, sample: Option<SampledRequest>) {
        if let Some(SampledRequest { weight, begun }) = sample {
            self.deciding.observe(self.counter.delta(begun, self.counter.raw()), weight.get());
        }
    }

    /// Inspects the keys charged by the rules of a decided request.
    #[cold]
    pub(crate) fn inspect_charges<'m>(&self, inspection: Inspection, charges: impl Iterator<Item = RuledCharge<'m>>) {
        for RuledCharge { matched, charge, ruled, .. } in charges {
            self.inspect(inspection, ruled, charge.key, || store_keys::of_rule(matched.rule, charge.key));
        }
    }

    /// Inspects the key charged by one limit.
    #[cold]
    pub(crate) fn inspect(
        &self,
        inspection: Inspection,
        ruled: &Ruled<'_>,
        key: &Key<'_>,
        named: impl Fn() -> KeyName,
    ) {
        let denied = !ruled.decision.is_allowed();
        if let Some(weight) = inspection.weight {
            self.top.note(&ruled.id, key, weight.get(), denied, &named);
        }
        if denied && inspection.denials {
            let denial = self.recent.push(ruled, named().readable, self.clock.now());
            self.limits.with(&ruled.id, |counters| counters.keep_first(Arc::clone(&denial)));
        }
    }

    /// Call about once a second. Logs denials, ends the sampling epoch, and removes data that is old or belongs to
    /// removed rules.
    pub fn tick(&self, present: &Generation) {
        self.epoch.tick();
        self.top.turn(self.clock.now());
        self.follow(&present.rules);
        let mut lines = Vec::new();
        self.limits.each(|counters| {
            let (denials, first) = counters.denied_since();
            if denials > 0 {
                lines.push((counters.id.clone(), denials, first));
            }
        });
        let lines: Vec<_> = lines.iter().map(|(id, denials, first)| (id.as_str(), *denials, first.clone())).collect();
        denials::log(&lines);
    }

    /// Removes data of removed rules. A change of modes removes nothing.
    fn follow(&self, present: &RuleSet) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let before = counted.replace(present.clone());
        if before.is_some_and(|before| !before.shares_rules_with(present)) {
            self.forget_all_but(present);
        }
    }

    fn forget_all_but(&self, rules: &RuleSet) {
        let of_rules = rules.rules().iter().map(|rule| RuleId::new(rule.id()).stable_hash());
        let known: std::collections::HashSet<u128> =
            rules.limit_ids().map(RuleId::stable_hash).chain(of_rules).collect();
        self.limits.retain(|id| known.contains(&id.stable_hash()));
        self.unkeyed.retain(|id| rules.rules().iter().any(|rule| rule.id() == id));
        self.unsettled.retain(|id| known.contains(&id.stable_hash()));
        self.settled.retain(|id| known.contains(&id.stable_hash()));
        self.shed.retain(|id| known.contains(&id.stable_hash()));
        self.descriptors.forget();
    }

    /// Top keys.
    #[must_use]
    pub fn top_keys(&self, ranking: Ranking, most: usize) -> TopKeys {
        self.top.first(ranking, most, self.clock.now())
    }

    /// Recent sampled denials with a higher number than this, oldest first.
    #[must_use]
    pub fn denials_after(&self, number: u64) -> Vec<Arc<Denial>> {
        self.recent.after(number)
    }

    /// Counts a connection as open until the result is dropped.
    #[must_use]
    pub fn connection(self: &Arc<Self>, listener: ListenerKind) -> OpenConnection {
        let connections = &self.connections[listener as usize];
        connections.open.fetch_add(1, Ordering::Relaxed);
        connections.accepted.fetch_add(1, Ordering::Relaxed);
        OpenConnection { metrics: Arc::clone(self), listener }
    }

    /// Counts requests that a listener has received.
    #[inline]
    pub(crate) fn received(&self, listener: ListenerKind, requests: u64) {
        self.received.add(listener as usize, requests);
    }

    /// Includes the counts of this listener. Only the first call has an effect.
    pub fn watch_listener(&self, listener: ListenerKind, listening: Listening) {
        let _ = self.connections[listener as usize].listening.set(listening);
    }

    /// Includes the counts of the access log. Only the first call has an effect.
    pub(crate) fn watch_access_log(&self, log: Arc<AccessLog>) {
        let _ = self.access_log.set(log);
    }

    /// Adds the demand that this node reports to its region. Only the first call has an effect.
    pub(crate) fn watch_demand(&self, demand: NodeDemand) {
        let _ = self.demand.set(demand);
    }

    /// Demand at this node in requests per second, by the names of shares in the regions' records.
    pub(crate) fn region_demand(&self) -> BTreeMap<String, f64> {
        self.demand.get().map(NodeDemand::per_second).unwrap_or_default()
    }

    /// Adds the counts of snapshots of the state.
    pub(crate) fn watch_state_file(&self, file: Arc<StateFile>) {
        let _ = self.state_file.set(file);
    }

    /// Includes the counts of the gateway. Only the first call has an effect.
    pub(crate) fn watch_gateway(&self, gateway: Arc<GatewayMetrics>) {
        let _ = self.gateway.set(gateway);
    }

    /// Includes the counts of this verifier. Only the first call has an effect.
    pub fn watch_tokens(&self, verifier: Arc<Verifier>) {
        let _ = self.tokens.set(verifier);
    }

    /// Verifier of tokens, if there is one.
    #[must_use]
    pub fn tokens(&self) -> Option<&Verifier> {
        self.tokens.get().map(|verifier| &**verifier)
    }

    /// Counts a wrong password or token.
    pub fn auth_failed(&self, listener: ListenerKind) {
        self.connections[listener as usize].auth_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Records a reload of the rules, with the problem if they are invalid.
    pub fn reloaded(&self, problem: Option<String>) {
        let Reloads { good, bad, last } = &self.reloads;
        if problem.is_none() { good } else { bad }.fetch_add(1, Ordering::Relaxed);
        let reload = Arc::new(Reload { at_ms: self.clock.now().as_micros() / 1_000, problem });
        *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(reload);
    }

    /// Last reload of the rules; `None` if there was none since the start.
    #[must_use]
    pub fn last_reload(&self) -> Option<Arc<Reload>> {
        self.reloads.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

/// Counts a connection as open until dropped.
pub struct OpenConnection {
    metrics: Arc<Metrics>,
    listener: ListenerKind,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.metrics.connections[self.listener as usize].open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
