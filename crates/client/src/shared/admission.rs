//! Waiting until the limiter allows a request.

use std::sync::Arc;
use std::time::Duration;

use http::{Extensions, HeaderMap, Method, Uri};
use tidegate_core::limit::Algorithm;
use tidegate_core::{Clock as StoreClock, Micros, Outcome, RuleId, Store};
use tidegate_rules::{Limiter, Refundable, Request as Facts};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::reservation::{Charged, RequestEnd, Reserved};
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
        // While others wait, this request goes behind them.
        if host.turn.try_lock().is_ok()
            && let Admission::After(delay, charged) = self.ask(&asked, last).await?
        {
            wait_to_send(&host, delay).await;
            return Ok(charged);
        }
        Counters::add(&host.counters.waits);
        let waiting = host.counters.begin_wait();
        let Ok(turn) = timeout_at(last, host.turn.lock()).await else { return Err(self.refused(&host, since, last)) };
        loop {
            match self.ask(&asked, last).await? {
                Admission::After(delay, charged) => {
                    drop((turn, waiting));
                    let waited = self.environment.clock.now().saturating_duration_since(since);
                    host.counters.waited(waited);
                    tracing::debug!(host = %host.name, ?waited, "sending after a wait for the shared pace");
                    wait_to_send(&host, delay).await;
                    return Ok(charged);
                }
                Admission::NotBefore(until) if until > last => return Err(self.refused(&host, since, until)),
                Admission::NotBefore(until) => sleep_until(until).await,
            }
        }
    }

    fn refused(&self, host: &Host, since: Instant, until: Instant) -> BoxError {
        Counters::add(&host.counters.pace_refusals);
        let wait = until.saturating_duration_since(since);
        tracing::debug!(host = %host.name, ?wait, "not sending: the wait for the shared pace is too long");
        Paced { host: host.name.to_string(), wait }.into()
    }

    async fn ask(&self, asked: &Asked<'_>, last: Instant) -> Result<Admission, TooLarge> {
        let after = |wait: Micros| self.environment.clock.now() + Duration::from(wait);
        // A place in a shaper's queue that would come too late is not taken: it would be lost to all others.
        if self.is_shaped(&asked.facts)
            && let Outcome::Allow { delay } = self.limiter.peek(&asked.facts).await.verdict.outcome
            && after(delay) > last
        {
            return Ok(Admission::NotBefore(after(delay)));
        }
        let (outcome, charged) = self.charge(asked).await;
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
            Outcome::TooLarge { max } => Err(TooLarge { max }),
        }
    }

    async fn charge(&self, asked: &Asked<'_>) -> (Outcome, Charged) {
        let Some(ttl) = self.reserves else {
            let now = self.limiter.clock().now();
            let check = self.limiter.check_then(&asked.facts, |matched, ruling| {
                (ruling.verdict.outcome, Charged::Final(Refundable::by(matched, ruling, now)))
            });
            return check.await;
        };
        let ruling = self.limiter.reserve(&asked.facts, ttl).await;
        let reserved = Reserved {
            estimate: asked.tokens,
            receipts: ruling.receipts.into_vec().into(),
            of_tokens: self.limits_on_tokens(asked),
        };
        (ruling.verdict.outcome, Charged::Reserved(reserved))
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

/// Waits for the place in a shaper's queue, which has been taken: it must be used.
async fn wait_to_send(host: &Host, delay: Duration) {
    if !delay.is_zero() {
        let _waiting = host.counters.begin_wait();
        sleep(delay).await;
        host.counters.waited(delay);
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
