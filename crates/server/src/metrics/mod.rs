//! What is counted, and how it is shown.
//!
//! Every decision is counted under the limit that made it (`tally.rs`), without hashing a name and without threads waiting
//! for each other. What costs more, reading a clock and telling keys apart (`top.rs`, `sketch.rs`), is done for a sample
//! (`sampling.rs`). Memory is bounded whatever clients send: limits come from rules, and past a bound they are counted
//! together; names that clients can make up are counted apart only up to a bound (`names.rs`); keys go to a sketch of a
//! fixed size. `exposition.rs` writes it all down for Prometheus (`page.rs`, `format.rs`), `view.rs` for the admin door.

mod denials;
mod exposition;
mod format;
mod gateway;
mod histogram;
mod names;
mod page;
mod process;
mod sampling;
mod settled;
mod sketch;
mod spread;
mod tally;
mod top;
mod unkeyed;
mod unsettled;
mod view;

use std::borrow::Cow;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tidegate_core::disclosure::Disclosure;
use tidegate_core::limit::Recovery;
use tidegate_core::{Clock, Decision, Key, RuleId, SystemClock, Timestamp};
use tidegate_rules::{DecidedBy, Generation, RuleSet, Ruled, RuledCharge, Ruling};
use tidegate_tower::Unsettled;

pub use self::denials::Denial;
pub use self::exposition::exposition;
pub use self::format::Format;
pub(crate) use self::gateway::{Cause, Ended, GatewayMetrics, RouteMetrics, UpstreamMetrics};
use self::histogram::Histogram;
pub(crate) use self::names::DescriptorOutcome;
use self::names::Names;
use self::sampling::{Pulse, Weight};
use self::settled::SettledCosts;
use self::spread::Spread;
pub use self::tally::{MOST_LIMITS, OTHER};
use self::tally::{Tallies, Tally};
pub(crate) use self::top::KeyName;
use self::top::Top;
pub use self::top::{Ranking, TopKey, TopKeys};
use self::unkeyed::Unkeyed;
use self::unsettled::UnsettledCosts;
pub use self::view::{Reload, Requests, RuleView, StoreView, View};
use crate::access_log::AccessLog;
use crate::identity::jwt::Verifier;
use crate::listen::Listening;

/// A way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Door {
    /// HTTP decisions and forward-auth.
    Http,
    /// Envoy's rate-limit service.
    Envoy,
    /// The Redis protocol.
    Resp,
    /// The operators' own.
    Admin,
    /// The gateway.
    Gateway,
}

impl Door {
    /// All of them.
    pub const ALL: [Door; 5] = [Door::Http, Door::Envoy, Door::Resp, Door::Admin, Door::Gateway];

    /// Its name in metrics and in the log, which is that of its section in the settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Door::Http => "api",
            Door::Envoy => "rls",
            Door::Resp => "resp",
            Door::Admin => "admin",
            Door::Gateway => "gateway",
        }
    }
}

/// Everything that a server counts.
pub struct Metrics {
    clock: Arc<dyn Clock>,
    counter: quanta::Clock,
    pulse: Pulse,
    requests: Spread<8>,
    tallies: Tallies,
    names: Names,
    unknown_domains: AtomicU64,
    /// The server's name.
    node: OnceLock<Box<str>>,
    unkeyed: Unkeyed,
    top: Top,
    recent: denials::Recent,
    deciding: Histogram,
    connections: [Connections; Door::ALL.len()],
    reloads: Reloads,
    /// The access log, if there is one.
    access_log: OnceLock<Arc<AccessLog>>,
    /// The gateway, if it is open.
    gateway: OnceLock<Arc<GatewayMetrics>>,
    /// Who verifies tokens, and counts them.
    tokens: OnceLock<Arc<Verifier>>,
    /// The rules whose limits are counted.
    counted: Mutex<Option<RuleSet>>,
    unsettled: UnsettledCosts,
    settled: SettledCosts,
}

#[derive(Debug, Default)]
struct Connections {
    open: AtomicI64,
    accepted: AtomicU64,
    auth_failures: AtomicU64,
    /// The listener itself, which counts what it does not accept.
    listener: OnceLock<Listening>,
}

#[derive(Debug, Default)]
struct Reloads {
    good: AtomicU64,
    bad: AtomicU64,
    last: Mutex<Option<Arc<Reload>>>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestOutcome {
    Allowed,
    Denied,
    Refused,
}

/// A request that is looked at closely. Begun before it is decided, so that its time can be told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) weight: Weight,
    pub(crate) begun: u64,
}

/// What is still to be looked at of a request that was counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    weight: Option<Weight>,
    /// Whether a limit has denied for the first time in a while.
    denials: bool,
}

impl Wanted {
    /// Whether anything is.
    #[inline]
    pub(crate) const fn is_any(self) -> bool {
        self.weight.is_some() || self.denials
    }
}

impl Metrics {
    /// Nothing counted yet. Times of denials are the machine's.
    #[must_use]
    pub fn new() -> Metrics {
        Metrics::with_clock(Arc::new(SystemClock::new()))
    }

    /// Nothing counted yet. Times of denials, and what is too long ago, are what `clock` says.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Metrics {
        let top = Top::new(clock.now());
        Metrics {
            clock,
            counter: quanta::Clock::new(),
            pulse: Pulse::new(),
            requests: Spread::new(),
            tallies: Tallies::new(),
            names: Names::new(),
            unknown_domains: AtomicU64::new(0),
            node: OnceLock::new(),
            unkeyed: Unkeyed::default(),
            top,
            recent: denials::Recent::default(),
            deciding: Histogram::default(),
            connections: Default::default(),
            reloads: Reloads::default(),
            access_log: OnceLock::new(),
            gateway: OnceLock::new(),
            tokens: OnceLock::new(),
            counted: Mutex::new(None),
            unsettled: UnsettledCosts::default(),
            settled: SettledCosts::default(),
        }
    }

    /// To be called before a request is decided.
    #[inline]
    pub(crate) fn begin(&self) -> Option<Sample> {
        let weight = self.pulse.sample()?;
        Some(Sample { weight, begun: self.counter.raw() })
    }

    /// Counts a request that was decided by rules. Says what else is wanted of it.
    #[inline]
    pub(crate) fn count(&self, ruling: &Ruling<'_>, sample: Option<Sample>) -> Wanted {
        let outcome = match (&ruling.refused, ruling.verdict.is_allowed()) {
            (Some(_), _) => RequestOutcome::Refused,
            (None, true) => RequestOutcome::Allowed,
            (None, false) => RequestOutcome::Denied,
        };
        self.requests.add(outcome as usize, 1);
        if let Some(refused) = &ruling.refused {
            self.tallies.with(&RuleId::new(&refused.rule), Tally::refuse);
        }
        if let Some(rules) = &ruling.unkeyed {
            self.unkeyed.count(rules);
        }
        let beat = self.pulse.now();
        let denials = self.tallies.with_all(|tallies| {
            let mut denials = false;
            for Ruled { id, mode, decision, by, cost, .. } in &ruling.ruled {
                let is_admitted = outcome == RequestOutcome::Allowed && decision.is_allowed();
                let admitted = if is_admitted { *cost } else { 0 };
                denials |= tallies.of(id).decided(*mode, decision, *by, admitted, beat);
            }
            denials
        });
        self.end(sample);
        Wanted { weight: sample.map(|sample| sample.weight), denials }
    }

    /// Counts a decision on a request of this cost, under a limit that it brought.
    #[inline]
    pub(crate) fn count_brought(
        &self,
        rule: &RuleId,
        (key, cost): (&Key<'_>, u64),
        (decision, by): &(Decision, DecidedBy),
        sample: Option<Sample>,
    ) {
        let mode = tidegate_rules::Mode::Enforce;
        let (outcome, admitted) = match decision.is_allowed() {
            true => (RequestOutcome::Allowed, cost),
            false => (RequestOutcome::Denied, 0),
        };
        self.requests.add(outcome as usize, 1);
        let denials = self.tallies.with(rule, |tally| {
            tally.is_brought();
            tally.decided(mode, decision, *by, admitted, self.pulse.now())
        });
        self.end(sample);
        let wanted = Wanted { weight: sample.map(|sample| sample.weight), denials };
        if wanted.is_any() {
            let ruled = Ruled {
                id: Cow::Borrowed(rule),
                mode,
                decision: *decision,
                recovery: Recovery::OnRelease,
                disclosure: Disclosure::DEFAULT,
                by: *by,
                cost,
            };
            self.look_at(wanted, &ruled, key, || KeyName {
                readable: tidegate_rules::readable_key(key),
                in_full: None,
            });
        }
    }

    /// Counts what became of a descriptor, by the name that Envoy's users know it by. Names that clients can make up are
    /// counted apart only up to a bound.
    pub(crate) fn count_descriptor(&self, name: &str, is_made_up: bool, outcome: DescriptorOutcome, hits: u64) {
        self.names.count(name, is_made_up, outcome, hits);
    }

    /// Says what the server is called. The first name stays.
    pub(crate) fn call_node(&self, name: &str) {
        let _ = self.node.set(name.into());
    }

    /// Counts a request for a domain that no file has.
    pub(crate) fn unknown_domain(&self) {
        self.unknown_domains.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a cost that no response settled, and that stays at its estimate.
    pub(crate) fn unsettled(&self, limit: &RuleId, cost: u64, why: Unsettled) {
        self.unsettled.count(limit, why);
        self.settled.leave(limit, cost);
    }

    /// Counts a cost that was reserved at `taken` and settled at `actual`.
    pub(crate) fn settled(&self, limit: &RuleId, taken: u64, actual: u64) {
        self.settled.settle(limit, taken, actual);
    }

    /// The same for a cost that a receipt tells of. Receipts come from clients, so limits that are not in `rules` are left out.
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
    fn end(&self, sample: Option<Sample>) {
        if let Some(Sample { weight, begun }) = sample {
            self.deciding.observe(self.counter.delta(begun, self.counter.raw()), weight.get());
        }
    }

    /// Looks at the keys that the rules of a request charged, once it is decided.
    #[cold]
    pub(crate) fn look_at_charges<'m>(&self, wanted: Wanted, charges: impl Iterator<Item = RuledCharge<'m>>) {
        for RuledCharge { matched, charge, ruled, .. } in charges {
            let named =
                || KeyName { readable: matched.rule.readable(charge.key), in_full: matched.rule.in_full(charge.key) };
            self.look_at(wanted, ruled, charge.key, named);
        }
    }

    /// Looks at whom one limit charged.
    #[cold]
    pub(crate) fn look_at(&self, wanted: Wanted, ruled: &Ruled<'_>, key: &Key<'_>, named: impl Fn() -> KeyName) {
        let denied = !ruled.decision.is_allowed();
        if let Some(weight) = wanted.weight {
            self.top.note(&ruled.id, key, weight.get(), denied, &named);
        }
        if denied && wanted.denials {
            let denial = self.recent.push(ruled, named().readable, self.clock.now());
            self.tallies.with(&ruled.id, |tally| tally.keep_first(Arc::clone(&denial)));
        }
    }

    /// To be called about once a second: writes to the log what was denied, and forgets what is too long ago or belongs to
    /// rules that are gone.
    pub fn beat(&self, present: &Generation) {
        self.pulse.beat();
        self.top.turn(self.clock.now());
        self.follow(&present.rules);
        let mut lines = Vec::new();
        self.tallies.each(|tally| {
            let (denials, first) = tally.denied_since();
            if denials > 0 {
                lines.push((tally.id.clone(), denials, first));
            }
        });
        let lines: Vec<_> = lines.iter().map(|(id, denials, first)| (id.as_str(), *denials, first.clone())).collect();
        denials::log(&lines);
    }

    /// Forgets what belongs to rules that are gone. Rules in other modes are still the same.
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
        self.tallies.retain(|id| known.contains(&id.stable_hash()));
        self.unkeyed.retain(|id| rules.rules().iter().any(|rule| rule.id() == id));
        self.unsettled.retain(|id| known.contains(&id.stable_hash()));
        self.settled.retain(|id| known.contains(&id.stable_hash()));
        self.names.forget();
    }

    /// The keys that come first.
    #[must_use]
    pub fn top_keys(&self, ranking: Ranking, most: usize) -> TopKeys {
        self.top.first(ranking, most, self.clock.now())
    }

    /// The denials that were looked at last: those with a higher number than this, the oldest first.
    #[must_use]
    pub fn denials_after(&self, number: u64) -> Vec<Arc<Denial>> {
        self.recent.after(number)
    }

    /// Counts a connection as open until what is returned is dropped.
    #[must_use]
    pub fn connection(self: &Arc<Self>, door: Door) -> OpenConnection {
        let connections = &self.connections[door as usize];
        connections.open.fetch_add(1, Ordering::Relaxed);
        connections.accepted.fetch_add(1, Ordering::Relaxed);
        OpenConnection { metrics: Arc::clone(self), door }
    }

    /// Shows what this listener counts, as that of `door`. The first one stays.
    pub fn watch_listener(&self, door: Door, listening: Listening) {
        let _ = self.connections[door as usize].listener.set(listening);
    }

    /// Shows what the access log counts. The first one stays.
    pub(crate) fn watch_access_log(&self, log: Arc<AccessLog>) {
        let _ = self.access_log.set(log);
    }

    /// Shows what the gateway counts. The first one stays.
    pub(crate) fn watch_gateway(&self, gateway: Arc<GatewayMetrics>) {
        let _ = self.gateway.set(gateway);
    }

    /// Shows what this one counts. The first one stays.
    pub fn watch_tokens(&self, verifier: Arc<Verifier>) {
        let _ = self.tokens.set(verifier);
    }

    /// Who verifies tokens, if anybody does.
    #[must_use]
    pub fn tokens(&self) -> Option<&Verifier> {
        self.tokens.get().map(|verifier| &**verifier)
    }

    /// Counts a wrong password or token.
    pub fn auth_failed(&self, door: Door) {
        self.connections[door as usize].auth_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that rules were read again, and what is wrong with them if they cannot be used.
    pub fn reloaded(&self, problem: Option<String>) {
        let Reloads { good, bad, last } = &self.reloads;
        if problem.is_none() { good } else { bad }.fetch_add(1, Ordering::Relaxed);
        let reload = Arc::new(Reload { at_ms: self.clock.now().as_micros() / 1_000, problem });
        *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(reload);
    }

    /// What came of reading the rules the last time; `None` if that was when the server started.
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

/// A connection that counts as open.
pub struct OpenConnection {
    metrics: Arc<Metrics>,
    door: Door,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.metrics.connections[self.door as usize].open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
