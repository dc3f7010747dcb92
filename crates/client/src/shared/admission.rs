//! Waiting until the limiter allows a request.

use std::sync::Arc;
use std::time::Duration;

use http::{Extensions, HeaderMap, Method, Uri};
use tidegate_core::limit::Algorithm;
use tidegate_core::{Charge, Clock as StoreClock, Micros, Outcome, RuleId, Store};
use tidegate_rules::{
    KeyRefusal, Limiter, Matched, MatchedRule, Mode, Refundable, RefusingRule, Request as Facts, Ruled, Ruling,
};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::error::{RuleRefused, TooLarge};
use super::queues::ChargedKey;
use super::reservation::{ChargedRequest, Reserved, Unspent};
use super::to_the_end::ToTheEnd;
use crate::BoxError;
use crate::counters::HostCounters;
use crate::deadline::{self, last_instant, later};
use crate::environment::Environment;
use crate::hosts::Host;
use crate::pace::Paced;
use crate::tokens::Tokens;

/// The limiter, and the settings of waits for it.
pub(crate) struct SharedTerms<S, C> {
    pub(super) limiter: Arc<Limiter<S, C>>,
    pub(super) environment: Environment,
    pub(super) longest: Duration,
    pub(super) reserves: Option<Micros>,
}

impl<S, C> Clone for SharedTerms<S, C> {
    fn clone(&self) -> SharedTerms<S, C> {
        let SharedTerms { limiter, environment, longest, reserves } = self;
        SharedTerms {
            limiter: Arc::clone(limiter),
            environment: environment.clone(),
            longest: *longest,
            reserves: *reserves,
        }
    }
}

/// The answer of the limiter.
enum Admission<S: Store + 'static, C: StoreClock + 'static> {
    /// Charged: the request is to be sent after this delay.
    After(Duration, Unspent<S, C>),
    /// Not charged: the limiter has room at this instant at the earliest. The key is the one that the request has to wait for.
    NotBefore(Instant, ChargedKey),
}

impl<S: Store + 'static, C: StoreClock + 'static> SharedTerms<S, C> {
    /// Waits until the limiter allows a request. Returns what it charged.
    pub(super) async fn admit(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> Result<Unspent<S, C>, BoxError> {
        let host = self.environment.host_of(uri, headers);
        HostCounters::add(&host.counters.calls);
        let since = self.environment.clock.now();
        let last = last_instant(since, self.longest, deadline::of(headers, extensions, since));
        let asked = Arc::new(PacedRequest::of(method, uri, headers, extensions, &host.name));
        let never = |error: BoxError| {
            tracing::debug!(host = %host.name, %error, "not sending");
            error
        };
        // A request that can never be sent need not stand behind others to be told so.
        let keys = self.keys_if_possible(&asked.facts).map_err(never)?;
        // While others wait for one of its keys, this request goes behind them.
        let (mut key, mut until) = match host.queues.awaited(&keys) {
            Some(key) => (key, since),
            None => match self.ask(&asked, last).await.map_err(never)? {
                Admission::After(delay, unspent) => return Ok(self.wait_to_send(&host, delay, unspent).await),
                Admission::NotBefore(until, _) if until > last => return Err(self.refused(&host, since, until)),
                Admission::NotBefore(until, key) => (key, until),
            },
        };
        HostCounters::add(&host.counters.waits);
        let waiting = host.counters.begin_wait();
        loop {
            let queued = host.queues.join(key);
            let Ok(turn) = timeout_at(last, queued.turn()).await else {
                return Err(self.refused(&host, since, last));
            };
            let awaited = key;
            while key == awaited {
                sleep_until(until).await;
                match self.ask(&asked, last).await.map_err(never)? {
                    Admission::After(delay, unspent) => {
                        // Others need not wait until this one is sent.
                        drop((turn, waiting));
                        let waited = self.environment.clock.now().saturating_duration_since(since);
                        host.counters.waited(waited);
                        tracing::debug!(host = %host.name, ?waited, "sending after a wait for the shared pace");
                        drop(queued);
                        return Ok(self.wait_to_send(&host, delay, unspent).await);
                    }
                    Admission::NotBefore(until, _) if until > last => return Err(self.refused(&host, since, until)),
                    Admission::NotBefore(next, held_by) => (until, key) = (next, held_by),
                }
            }
        }
    }

    /// Waits for the place in a shaper's queue. A request that is dropped meanwhile gives the place back, if it is the last.
    async fn wait_to_send(&self, host: &Host, delay: Duration, unspent: Unspent<S, C>) -> Unspent<S, C> {
        if !delay.is_zero() {
            let _waiting = host.counters.begin_wait();
            sleep(delay).await;
            host.counters.waited(delay);
        }
        unspent
    }

    fn refused(&self, host: &Host, since: Instant, until: Instant) -> BoxError {
        HostCounters::add(&host.counters.pace_refusals);
        let wait = until.saturating_duration_since(since);
        tracing::debug!(host = %host.name, ?wait, "not sending: the wait for the shared pace is too long");
        Paced { host: host.name.to_string(), wait }.into()
    }

    /// The keys that a request charges. Fails for a request that can never be admitted, as far as the present rules tell.
    fn keys_if_possible(&self, facts: &Facts) -> Result<Vec<ChargedKey>, BoxError> {
        self.limiter.with_rules(|generation| {
            let matched = generation.rules.matching(facts);
            if let Some(RefusingRule { rule, fault }) = matched.refused {
                return Err(RuleRefused { rule: rule.id().to_string(), fault }.into());
            }
            let is_too_large = |charge: &Charge<'_>| charge.cost > charge.limit.capacity();
            let most = matched.charges().filter(is_too_large).map(|charge| charge.limit.capacity()).min();
            match most {
                Some(max) => Err(TooLarge { max }.into()),
                None => Ok(matched.charges().map(|charge| ChargedKey::of(&charge)).collect()),
            }
        })
    }

    /// Asks the limiter. If the caller is dropped before the store has answered, the charge is given back.
    fn ask(&self, asked: &Arc<PacedRequest>, last: Instant) -> ToTheEnd<Result<Admission<S, C>, BoxError>> {
        let (terms, asked) = (self.clone(), Arc::clone(asked));
        ToTheEnd::new(async move { terms.asked(&asked, last).await })
    }

    async fn asked(&self, asked: &PacedRequest, last: Instant) -> Result<Admission<S, C>, BoxError> {
        let after = |wait: Micros| later(self.environment.clock.now(), wait.into());
        // A place in a shaper's queue that would come too late is not taken: it would be lost to all others.
        if self.is_shaped(&asked.facts) {
            let ruling = self.limiter.peek(&asked.facts).await;
            if let Outcome::Allow { delay } = ruling.verdict.outcome
                && after(delay) > last
            {
                let key = self.limiter.with_rules(|rules| held_by(&rules.rules.matching(&asked.facts), &ruling));
                return Ok(Admission::NotBefore(after(delay), key));
            }
        }
        let (outcome, key, unspent) = self.charge(asked).await?;
        match outcome {
            Outcome::Allow { delay } if delay == Micros::ZERO || after(delay) <= last => {
                Ok(Admission::After(delay.into(), unspent))
            }
            Outcome::Allow { delay } => {
                // Other requests have come between the check and the charge.
                unspent.give_back().await;
                Ok(Admission::NotBefore(after(delay), key))
            }
            Outcome::Deny { retry_after } => {
                Ok(Admission::NotBefore(after(retry_after.max(Micros::from_millis(1))), key))
            }
            Outcome::TooLarge { max } => Err(TooLarge { max }.into()),
        }
    }

    async fn charge(&self, asked: &PacedRequest) -> Result<(Outcome, ChargedKey, Unspent<S, C>), RuleRefused> {
        let unspent = |charged| Unspent::new(charged, Arc::clone(&self.limiter));
        let Some(ttl) = self.reserves else {
            let now = self.limiter.clock().now();
            let check = self.limiter.check_then(&asked.facts, |matched, ruling| {
                not_refused(ruling)?;
                let (spent, key) = (Refundable::by(matched, ruling, now), held_by(matched, ruling));
                let places = std::mem::take(&mut ruling.receipts).into_vec();
                Ok((ruling.verdict.outcome, key, unspent(ChargedRequest::Final(spent, places))))
            });
            return check.await;
        };
        let of_tokens = self.limits_on_tokens(asked);
        let reserve = self.limiter.reserve_then(&asked.facts, ttl, |matched, ruling| {
            not_refused(ruling)?;
            let (estimate, key) = (asked.tokens, held_by(matched, ruling));
            let receipts = std::mem::take(&mut ruling.receipts).into_vec().into();
            let reserved = Reserved { estimate, receipts, of_tokens };
            Ok((ruling.verdict.outcome, key, unspent(ChargedRequest::Reserved(reserved))))
        });
        reserve.await
    }

    fn is_shaped(&self, facts: &Facts) -> bool {
        let is_shaper = |charge: Charge<'_>| matches!(charge.limit.algorithm(), Algorithm::Shaper(_));
        self.limiter.with_rules(|generation| generation.rules.matching(facts).charges().any(is_shaper))
    }

    /// The limits that charge a request for its tokens: those that would charge another cost if it had others.
    fn limits_on_tokens(&self, asked: &PacedRequest) -> Arc<[RuleId]> {
        let other = asked.facts.clone().hits(if asked.tokens == 1 { 2 } else { 1 });
        self.limiter.with_rules(|generation| {
            let (these, others) = (generation.rules.matching(&asked.facts), generation.rules.matching(&other));
            let costs = |matched: &Matched<'_, '_>| -> Vec<(RuleId, u64)> {
                let charges = matched.rules.iter().flat_map(MatchedRule::charges);
                charges.map(|charge| (charge.rule.clone(), charge.cost)).collect()
            };
            let others = costs(&others);
            costs(&these).into_iter().filter(|charge| !others.contains(charge)).map(|(rule, _)| rule).collect()
        })
    }
}

/// Checks that no rule refuses the request, which the verdict of limits does not include.
fn not_refused(ruling: &Ruling<'_>) -> Result<(), RuleRefused> {
    match &ruling.refused {
        Some(KeyRefusal { rule, fault }) => Err(RuleRefused { rule: rule.to_string(), fault: *fault }),
        None => Ok(()),
    }
}

/// The key that a request waits for: that of the limit with the longest wait.
fn held_by(matched: &Matched<'_, '_>, ruling: &Ruling<'_>) -> ChargedKey {
    let wait = |ruled: &&Ruled<'_>| ruled.decision.retry_after().unwrap_or_else(|| ruled.decision.delay());
    let longest = ruling.ruled.iter().filter(|ruled| ruled.mode == Mode::Enforce).max_by_key(wait);
    let charge = longest.and_then(|ruled| matched.charges().find(|charge| charge.rule == &*ruled.id));
    charge.map(|charge| ChargedKey::of(&charge)).unwrap_or_default()
}

/// A request as rules see it.
struct PacedRequest {
    tokens: u64,
    facts: Facts,
}

impl PacedRequest {
    fn of(method: &Method, uri: &Uri, headers: &HeaderMap, extensions: &Extensions, host: &str) -> PacedRequest {
        let tokens = extensions.get::<Tokens>().map_or(1, |tokens| tokens.0);
        let target = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let mut facts = Facts::new(method.as_str(), target).host(host).hits(tokens);
        for (name, value) in headers {
            facts = facts.header(name.as_str(), &String::from_utf8_lossy(value.as_bytes()));
        }
        PacedRequest { tokens, facts }
    }
}
