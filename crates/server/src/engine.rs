//! The engine shared by all listeners.

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;

use futures_util::future::Either;
use tidegate_core::store::NowOrLater;
use tidegate_core::{Decision, Key, Limit, Micros, Receipt, RuleId, Settlement, StoreError};
use tidegate_rules::envoy::Domain;
use tidegate_rules::{
    Charging, DecidedBy, DescriptorRequest, DescriptorsRuling, DomainTerms, Facts, Generation, Hits, InlineLimit,
    Limiter, Matched, NoSuchKey, OnStoreFailure, ResetError, RuledCharge, Ruling,
};

use crate::metrics::{DescriptorOutcome, KeyName, Metrics, SampledRequest};
use crate::store::AnyStore;
use crate::traces::{SpanAttributes, Traces};

/// Name of the rule for `CL.THROTTLE` in metrics, top keys and the admin API. No rule in a file can have this name. Its
/// keys have one part.
pub const THROTTLE_RULE: &str = "@cl.throttle";

/// Decides the requests of all listeners, which share it in an `Arc`.
///
/// ```
/// use tidegate::engine::Engine;
/// use tidegate_rules::{Limiter, Request, RuleSet};
/// use tidegate_core::MemoryStore;
///
/// let rules = RuleSet::parse("rules.yaml", "rules: [{ id: api, key: user, limit: 1/min }]")?.rules;
/// let engine = Engine::new(Limiter::new(rules, MemoryStore::new().into()));
/// let request = Request::new("GET", "/").user("alice");
/// assert!(engine.check(&request).now().is_some_and(|ruling| ruling.is_allowed()));
/// assert!(engine.check(&request).now().is_some_and(|ruling| !ruling.is_allowed()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine {
    limiter: Arc<Limiter<AnyStore>>,
    metrics: Arc<Metrics>,
    traces: Traces,
}

impl Engine {
    /// An engine that decides with `limiter`.
    #[must_use]
    pub fn new(limiter: Limiter<AnyStore>) -> Engine {
        Engine::with_metrics(limiter, Metrics::new())
    }

    /// An engine that decides with `limiter`, and counts in `metrics`.
    #[must_use]
    pub fn with_metrics(limiter: Limiter<AnyStore>, metrics: Metrics) -> Engine {
        Engine { limiter: Arc::new(limiter), metrics: Arc::new(metrics), traces: Traces::default() }
    }

    /// Adds traces of decisions.
    #[must_use]
    pub fn with_traces(self, traces: Traces) -> Engine {
        Engine { traces, ..self }
    }

    /// Traces of requests.
    #[must_use]
    pub const fn traces(&self) -> &Traces {
        &self.traces
    }

    /// Metrics of the engine.
    #[must_use]
    pub const fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Limiter, for everything that is not a request: settling, peeking, replacing the rules.
    #[must_use]
    pub fn limiter(&self) -> &Limiter<AnyStore> {
        &self.limiter
    }

    /// The limiter, in a shared pointer.
    #[must_use]
    pub fn shared_limiter(&self) -> Arc<Limiter<AnyStore>> {
        Arc::clone(&self.limiter)
    }

    /// Decides a request, and charges it if it is allowed. The ruling is available immediately if the store does not
    /// wait.
    pub fn check(
        &self,
        facts: &(impl Facts + Sync + ?Sized),
    ) -> NowOrLater<Ruling<'static>, impl Future<Output = Ruling<'static>>> {
        let sample = self.metrics.begin();
        let counted = move |matched: &Matched<'_, '_>, ruling: &mut Ruling<'_>| self.counted(matched, ruling, sample);
        self.traces.span("tidegate.check", move || self.limiter.check_then(facts, counted), SpanAttributes::of)
    }

    /// Decides a request, and reserves its cost for `ttl`, to be settled at the actual cost.
    pub fn reserve(
        &self,
        facts: &(impl Facts + Sync + ?Sized),
        ttl: Micros,
    ) -> NowOrLater<Ruling<'static>, impl Future<Output = Ruling<'static>>> {
        let sample = self.metrics.begin();
        let counted = move |matched: &Matched<'_, '_>, ruling: &mut Ruling<'_>| self.counted(matched, ruling, sample);
        self.traces.span("tidegate.reserve", move || self.limiter.reserve_then(facts, ttl, counted), SpanAttributes::of)
    }

    fn counted(
        &self,
        matched: &Matched<'_, '_>,
        ruling: &mut Ruling<'_>,
        sample: Option<SampledRequest>,
    ) -> Ruling<'static> {
        self.count(matched, ruling, sample);
        ruling.take()
    }

    /// Counts a request that was decided here, or by a caller with the [limiter](Engine::shared_limiter). `matched` are
    /// the rules that decided it.
    #[inline]
    pub(crate) fn count(&self, matched: &Matched<'_, '_>, ruling: &Ruling<'_>, sample: Option<SampledRequest>) {
        let inspection = self.metrics.count(ruling, sample);
        self.metrics.count_shed(matched, ruling);
        if inspection.is_needed() {
            self.metrics.inspect_charges(inspection, ruling.charges(matched));
        }
    }

    /// Like [`Engine::check`], but passes the ruling by reference, to avoid moving it.
    pub(crate) fn check_then<T>(
        &self,
        facts: &(impl Facts + Sync + ?Sized),
        inspect: impl FnOnce(&Ruling<'_>) -> T,
    ) -> NowOrLater<T, impl Future<Output = T>> {
        if self.traces.is_on() {
            return self.check(facts).map(|ruling| inspect(&ruling)).map_later(Either::Left);
        }
        let sample = self.metrics.begin();
        let inspect = move |matched: &Matched<'_, '_>, ruling: &mut Ruling<'_>| {
            self.count(matched, ruling, sample);
            inspect(ruling)
        };
        self.limiter.check_then(facts, inspect).map_later(Either::Right)
    }

    /// Decides a request given as descriptors of one of Envoy's domains in `generation`, and charges it if it is
    /// allowed.
    pub async fn check_descriptors<'d, 'e>(
        &self,
        generation: &'d Generation,
        domain: &'d Domain,
        asked: &[DescriptorRequest<'e>],
        terms: &DomainTerms,
    ) -> DescriptorsRuling<'d, 'e> {
        let sample = self.metrics.begin();
        let decide = || NowOrLater::Later(self.limiter.check_descriptors(generation, domain, asked, terms));
        let decided = self.traces.span("tidegate.check", decide, |decided| SpanAttributes::of(&decided.ruling)).await;
        let inspection = self.metrics.count(&decided.ruling, sample);
        for (descriptor, asked) in decided.descriptors.iter().zip(asked) {
            let Some(found) = &descriptor.found else { continue };
            let name = found.metric();
            let outcome = match (descriptor.is_over_in_shadow, descriptor.is_over) {
                (true, _) => DescriptorOutcome::OverInShadow,
                (false, true) => DescriptorOutcome::Over,
                (false, false) => DescriptorOutcome::Within,
            };
            let hits = match asked.hits {
                Hits::Take(hits) => hits.get(),
                Hits::Check | Hits::Refund(_) => 0,
            };
            let is_from_request = matches!(name, Cow::Owned(_));
            self.metrics.count_descriptor(&name, is_from_request, outcome, hits);
            let is_near = |ruled: &tidegate_rules::Ruled<'_>| ruled.decision.remaining < ruled.decision.limit / 5;
            if outcome == DescriptorOutcome::Within && decided.binding(descriptor).is_some_and(is_near) {
                self.metrics.count_descriptor(&name, is_from_request, DescriptorOutcome::NearLimit, hits);
            }
            if inspection.is_needed()
                && let Some(ruled) = decided.binding(descriptor)
            {
                let named = || KeyName {
                    readable: tidegate_rules::readable_key(&found.key),
                    in_full: tidegate_rules::key_in_full(&found.key),
                };
                self.metrics.inspect(inspection, ruled, &found.key, named);
            }
        }
        decided
    }

    /// Decides a request given as descriptors under Tidegate's own rules.
    pub async fn check_entries<'d, 'e>(
        &self,
        generation: &'d Generation,
        asked: &[DescriptorRequest<'e>],
        charging: Charging,
    ) -> DescriptorsRuling<'d, 'e> {
        let sample = self.metrics.begin();
        let count = |ruling: &Ruling<'_>, charges: &mut dyn Iterator<Item = RuledCharge<'_>>| {
            let inspection = self.metrics.count(ruling, sample);
            if inspection.is_needed() {
                self.metrics.inspect_charges(inspection, charges);
            }
        };
        let decide = || NowOrLater::Later(self.limiter.check_entries_then(generation, asked, charging, count));
        self.traces.span("tidegate.check", decide, |decided| SpanAttributes::of(&decided.ruling)).await
    }

    /// Charges `cost` to `key` under a limit that the request brings.
    #[inline]
    pub fn charge(
        &self,
        limit: &InlineLimit,
        key: &Key<'_>,
        cost: u64,
    ) -> NowOrLater<(Decision, DecidedBy), impl Future<Output = (Decision, DecidedBy)>> {
        let sample = self.metrics.begin();
        let tell = |(decision, by): &(Decision, DecidedBy)| SpanAttributes::of_inline(limit.rule(), decision, *by);
        let decided = self.traces.span("tidegate.throttle", move || self.limiter.charge(limit, key, cost), tell);
        decided.map(move |decided| {
            self.metrics.count_inline(limit.rule(), (key, cost), &decided, sample);
            decided
        })
    }

    /// Settles a receipt at the actual cost, as [`Limiter::settle`] does, and counts the costs.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Result<Settlement, StoreError> {
        let settlement = self.limiter.settle(receipt, actual).await?;
        if let Settlement::Settled { .. } = settlement {
            let rules = self.limiter.rules();
            for (number, (held, actual)) in receipt.held.iter().zip(actual).enumerate() {
                // Slots are not a cost, and a cost that two rules share is counted once.
                if !held.limit.holds_slots() && !receipt.is_alias(number) {
                    self.metrics.settled_by_receipt(&rules.rules, &held.rule, held.taken, *actual);
                }
            }
        }
        Ok(settlement)
    }

    /// Resets a key under one rule, given the values of its parts. [`THROTTLE_RULE`] is accepted as a rule.
    /// Returns the number of limits under which the key had any state.
    ///
    /// # Errors
    /// If the rule does not exist, if its key has other parts, or if the store fails.
    pub async fn reset_key(&self, rule: &str, parts: &[&str]) -> Result<usize, ResetError> {
        if rule != THROTTLE_RULE {
            return self.limiter.reset_key(rule, parts).await;
        }
        let key = throttle_key(parts)?;
        Ok(usize::from(self.limiter.reset_inline(&RuleId::new(THROTTLE_RULE), &key).await?))
    }

    /// State of a key of `CL.THROTTLE` under a limit. The limit is an argument because only clients know it.
    ///
    /// # Errors
    /// If the key does not have exactly one part.
    pub async fn peek_throttle(&self, parts: &[&str], limit: Limit) -> Result<(Decision, DecidedBy), NoSuchKey> {
        let key = throttle_key(parts)?;
        let limit = InlineLimit::new(RuleId::new(THROTTLE_RULE), limit, OnStoreFailure::default());
        Ok(self.limiter.peek_inline(&limit, &key).await)
    }
}

fn throttle_key<'k>(parts: &[&'k str]) -> Result<Key<'k>, NoSuchKey> {
    match parts {
        [key] => Ok(Key::from(*key)),
        _ => {
            Err(NoSuchKey::Parts { rule: THROTTLE_RULE.to_owned(), parts: vec!["key".to_owned()], given: parts.len() })
        }
    }
}
