//! Waiting until the limiter allows a request.

use std::sync::Arc;
use std::time::Duration;

use http::{Extensions, HeaderMap, Method, Uri};
use tidegate_core::limit::Algorithm;
use tidegate_core::{Clock as StoreClock, Micros, Outcome, RuleId, Store};
use tidegate_rules::{KeyFault, KeyRefusal, Limiter, Refundable, RefusingRule, Request as Facts, Ruling};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::reservation::{Charged, RequestEnd, Reserved, Unspent};
use crate::BoxError;
use crate::counters::Counters;
use crate::deadline;
use crate::environment::Environment;
use crate::hosts::Host;
use crate::pace::Paced;
use crate::tokens::Tokens;

/// The error of a request whose cost is more than a rule of the shared pace can ever allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request costs more than the {max} that the shared limit can ever allow")]
pub struct TooLarge {
    /// The most that can ever pass at once.
    pub max: u64,
}

/// The error of a request that a rule of the shared pace refuses, because it cannot tell whom to charge, or how much.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not sent: rule {rule:?} of the shared pace refuses the request, {}", reason(*fault))]
pub struct RuleRefused {
    /// The id of the rule.
    pub rule: String,
    /// The fault of the request.
    pub fault: KeyFault,
}

const fn reason(fault: KeyFault) -> &'static str {
    match fault {
        KeyFault::Missing => "which lacks a part of the key",
        KeyFault::Repeated => "which has a part of the key more than once",
        KeyFault::Unmeasured => "which costs as much as its body is long and does not say how long that is",
    }
}

/// The limiter, and the terms of waiting for it.
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
enum Admission {
    /// Charged: the request is to be sent after this delay.
    After(Duration, Charged),
    /// Not charged: the limiter has room at this instant at the earliest.
    NotBefore(Instant),
}

impl<S: Store + 'static, C: StoreClock + 'static> SharedTerms<S, C> {
    /// Waits until the limiter allows a request. Returns what it charged.
    pub(super) async fn admit(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> Result<Charged, BoxError> {
        let host = self.environment.host_of(uri, headers);
        let since = self.environment.clock.now();
        let deadline = deadline::of(headers, extensions, since);
        let last = deadline.into_iter().chain([since + self.longest]).min().unwrap_or(since);
        let asked = Asked::of(method, uri, headers, extensions, &host.name);
        let never = |error: BoxError| {
            tracing::debug!(host = %host.name, %error, "not sending");
            error
        };
        // A request that can never be sent need not stand behind others to be told so.
        self.check_possible(&asked.facts).map_err(never)?;
        // While others wait, this request goes behind them.
        if host.turn.try_lock().is_ok()
            && let Admission::After(delay, charged) = self.ask(&asked, last).await.map_err(never)?
        {
            return Ok(self.wait_to_send(&host, delay, charged).await);
        }
        Counters::add(&host.counters.waits);
        let waiting = host.counters.begin_wait();
        let Ok(turn) = timeout_at(last, host.turn.lock()).await else { return Err(self.refused(&host, since, last)) };
        loop {
            match self.ask(&asked, last).await.map_err(never)? {
                Admission::After(delay, charged) => {
                    drop((turn, waiting));
                    let waited = self.environment.clock.now().saturating_duration_since(since);
                    host.counters.waited(waited);
                    tracing::debug!(host = %host.name, ?waited, "sending after a wait for the shared pace");
                    return Ok(self.wait_to_send(&host, delay, charged).await);
                }
                Admission::NotBefore(until) if until > last => return Err(self.refused(&host, since, until)),
                Admission::NotBefore(until) => sleep_until(until).await,
            }
        }
    }

    /// Waits for the place in a shaper's queue. A request that is dropped meanwhile gives the place back, if it is the last.
    async fn wait_to_send(&self, host: &Host, delay: Duration, charged: Charged) -> Charged {
        if delay.is_zero() {
            return charged;
        }
        let _waiting = host.counters.begin_wait();
        let unspent = Unspent::new(charged, Arc::clone(&self.limiter));
        sleep(delay).await;
        host.counters.waited(delay);
        unspent.spend()
    }

    fn refused(&self, host: &Host, since: Instant, until: Instant) -> BoxError {
        Counters::add(&host.counters.pace_refusals);
        let wait = until.saturating_duration_since(since);
        tracing::debug!(host = %host.name, ?wait, "not sending: the wait for the shared pace is too long");
        Paced { host: host.name.to_string(), wait }.into()
    }

    /// Fails for a request that no wait helps, as far as the present rules tell.
    fn check_possible(&self, facts: &Facts) -> Result<(), BoxError> {
        self.limiter.with_rules(|generation| {
            let matched = generation.rules.matching(facts);
            if let Some(RefusingRule { rule, fault }) = matched.refused {
                return Err(RuleRefused { rule: rule.id().to_string(), fault }.into());
            }
            let is_too_large = |charge: &tidegate_core::Charge<'_>| charge.cost > charge.limit.capacity();
            let most = matched.charges().filter(is_too_large).map(|charge| charge.limit.capacity()).min();
            most.map_or(Ok(()), |max| Err(TooLarge { max }.into()))
        })
    }

    async fn ask(&self, asked: &Asked<'_>, last: Instant) -> Result<Admission, BoxError> {
        let after = |wait: Micros| self.environment.clock.now() + Duration::from(wait);
        // A place in a shaper's queue that would come too late is not taken: it would be lost to all others.
        if self.is_shaped(&asked.facts)
            && let Outcome::Allow { delay } = self.limiter.peek(&asked.facts).await.verdict.outcome
            && after(delay) > last
        {
            return Ok(Admission::NotBefore(after(delay)));
        }
        let (outcome, charged) = self.charge(asked).await?;
        match outcome {
            Outcome::Allow { delay } if delay == Micros::ZERO || after(delay) <= last => {
                Ok(Admission::After(delay.into(), charged))
            }
            Outcome::Allow { delay } => {
                // Others have come between the look and the charge.
                charged.ended(RequestEnd::Unsent, &self.limiter).await;
                Ok(Admission::NotBefore(after(delay)))
            }
            Outcome::Deny { retry_after } => Ok(Admission::NotBefore(after(retry_after.max(Micros::from_millis(1))))),
            Outcome::TooLarge { max } => Err(TooLarge { max }.into()),
        }
    }

    async fn charge(&self, asked: &Asked<'_>) -> Result<(Outcome, Charged), RuleRefused> {
        let Some(ttl) = self.reserves else {
            let now = self.limiter.clock().now();
            let check = self.limiter.check_then(&asked.facts, |matched, ruling| {
                not_refused(ruling)?;
                let spent = Refundable::by(matched, ruling, now);
                let places = std::mem::take(&mut ruling.receipts).into_vec();
                Ok((ruling.verdict.outcome, Charged::Final(spent, places)))
            });
            return check.await;
        };
        let ruling = self.limiter.reserve(&asked.facts, ttl).await;
        not_refused(&ruling)?;
        let reserved = Reserved {
            estimate: asked.tokens,
            receipts: ruling.receipts.into_vec().into(),
            of_tokens: self.limits_on_tokens(asked),
        };
        Ok((ruling.verdict.outcome, Charged::Reserved(reserved)))
    }

    fn is_shaped(&self, facts: &Facts) -> bool {
        let is_shaper = |charge: tidegate_core::Charge<'_>| matches!(charge.limit.algorithm(), Algorithm::Shaper(_));
        self.limiter.with_rules(|generation| generation.rules.matching(facts).charges().any(is_shaper))
    }

    /// The limits that charge a request for its tokens: those that would charge another cost if it had others.
    fn limits_on_tokens(&self, asked: &Asked<'_>) -> Arc<[RuleId]> {
        let other = asked.facts_with(if asked.tokens == 1 { 2 } else { 1 });
        self.limiter.with_rules(|generation| {
            let (these, others) = (generation.rules.matching(&asked.facts), generation.rules.matching(&other));
            let costs = |matched: &tidegate_rules::Matched<'_, '_>| -> Vec<(RuleId, u64)> {
                let charges = matched.rules.iter().flat_map(tidegate_rules::MatchedRule::charges);
                charges.map(|charge| (charge.rule.clone(), charge.cost)).collect()
            };
            let others = costs(&others);
            costs(&these).into_iter().filter(|charge| !others.contains(charge)).map(|(rule, _)| rule).collect()
        })
    }
}

/// The verdict of limits says nothing about a request that a rule refuses.
fn not_refused(ruling: &Ruling<'_>) -> Result<(), RuleRefused> {
    match &ruling.refused {
        Some(KeyRefusal { rule, fault }) => Err(RuleRefused { rule: rule.to_string(), fault: *fault }),
        None => Ok(()),
    }
}

/// A request as rules see it.
struct Asked<'r> {
    method: &'r Method,
    uri: &'r Uri,
    headers: &'r HeaderMap,
    host: &'r str,
    tokens: u64,
    facts: Facts,
}

impl<'r> Asked<'r> {
    fn of(
        method: &'r Method,
        uri: &'r Uri,
        headers: &'r HeaderMap,
        extensions: &Extensions,
        host: &'r str,
    ) -> Asked<'r> {
        let tokens = extensions.get::<Tokens>().map_or(1, |tokens| tokens.0);
        let asked = Asked { method, uri, headers, host, tokens, facts: Facts::new("", "/") };
        Asked { facts: asked.facts_with(tokens), ..asked }
    }

    fn facts_with(&self, tokens: u64) -> Facts {
        let target = self.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let mut facts = Facts::new(self.method.as_str(), target).host(self.host).hits(tokens);
        for (name, value) in self.headers {
            facts = facts.header(name.as_str(), &String::from_utf8_lossy(value.as_bytes()));
        }
        facts
    }
}
