//! A pace that a fleet shares: a limiter of Tidegate decides when a request may be sent.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response};
use tidegate_core::{
    Clock as StoreClock, Micros, Outcome, Receipt, Store, StoreError, SystemClock as StoreSystemClock,
};
use tidegate_rules::{Limiter, Request as Facts};
use tokio::time::{Instant, sleep_until, timeout_at};
use tower_layer::Layer;
use tower_service::Service;

use crate::clock::Clock;
use crate::counters::{Counters, Snapshot};
use crate::deadline;
use crate::environment::Environment;
use crate::hosts::{self, Host};
use crate::pace::Paced;
use crate::send::send;
use crate::tokens::Tokens;
use crate::{BoxError, BoxFuture};

/// Holds requests back until a [`Limiter`] allows them. With its state in Redis, a whole fleet keeps the limit of a partner.
///
/// Rules see the method, the URI, the host and the headers of the request. Rules with `cost: hits` charge its [`Tokens`].
///
/// Requests to a host that have to wait do so in order, and only the first of them asks the limiter. One that would have to wait longer
/// than [`longest_wait`](SharedPaceLayer::longest_wait), or past its [`Deadline`](crate::Deadline), fails with [`Paced`]. If the store is
/// unavailable, the failure policy of each rule decides.
///
/// Rules that limit concurrency are not for this layer: it does not know when a response has been read.
pub struct SharedPaceLayer<S, C = StoreSystemClock> {
    pace: SharedTerms<S, C>,
}

struct SharedTerms<S, C> {
    limiter: Arc<Limiter<S, C>>,
    environment: Environment,
    longest: Duration,
    reserves: Option<Micros>,
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

impl<S, C> Clone for SharedPaceLayer<S, C> {
    fn clone(&self) -> SharedPaceLayer<S, C> {
        SharedPaceLayer { pace: self.pace.clone() }
    }
}

impl<S, C> SharedPaceLayer<S, C> {
    /// A pace that this limiter decides.
    #[must_use]
    pub fn new(limiter: Arc<Limiter<S, C>>) -> SharedPaceLayer<S, C> {
        let (environment, longest) = (Environment::new(), Duration::from_secs(30));
        SharedPaceLayer { pace: SharedTerms { limiter, environment, longest, reserves: None } }
    }

    /// The longest wait of a request: 30 s by default.
    #[must_use]
    pub fn longest_wait(mut self, longest: Duration) -> SharedPaceLayer<S, C> {
        self.pace.longest = longest;
        self
    }

    /// Reserves the cost of each request for this time, and puts a [`Reservation`] into the extensions of its response, which
    /// settles it at the real cost. A reservation that is not settled stays charged at the estimate.
    #[must_use]
    pub fn reserve(mut self, ttl: Duration) -> SharedPaceLayer<S, C> {
        self.pace.reserves = Some(ttl.into());
        self
    }

    /// Sets the clock that waits are measured by.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock + 'static) -> SharedPaceLayer<S, C> {
        self.pace.environment.clock = Arc::new(clock);
        self
    }

    /// The counters of each host.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.pace.environment.snapshot()
    }
}

impl<Svc, S, C> Layer<Svc> for SharedPaceLayer<S, C> {
    type Service = SharedPace<Svc, S, C>;

    fn layer(&self, inner: Svc) -> SharedPace<Svc, S, C> {
        SharedPace { inner, pace: self.pace.clone() }
    }
}

/// A service that is paced by a limiter. Made by a [`SharedPaceLayer`].
pub struct SharedPace<Svc, S, C = StoreSystemClock> {
    inner: Svc,
    pace: SharedTerms<S, C>,
}

impl<Svc: Clone, S, C> Clone for SharedPace<Svc, S, C> {
    fn clone(&self) -> SharedPace<Svc, S, C> {
        SharedPace { inner: self.inner.clone(), pace: self.pace.clone() }
    }
}

/// The error of a request whose cost is more than a rule of the shared pace can ever allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request costs more than the {max} that the shared limit can ever allow")]
pub struct TooLarge {
    /// The most that can ever pass at once.
    pub max: u64,
}

impl<S: Store + 'static, C: StoreClock + 'static> SharedTerms<S, C> {
    /// Waits until the limiter allows a request. Returns what it reserved.
    async fn admit(&self, parts: &Parts) -> Result<Vec<Receipt>, BoxError> {
        let host = self.environment.hosts.get(&hosts::name_of(&parts.uri, &parts.headers));
        let now = self.environment.clock.now();
        let deadline = deadline::of(&parts.headers, &parts.extensions, now);
        let last = deadline.into_iter().chain([now + self.longest]).min().unwrap_or(now);
        let facts = facts_of(parts, &host.name);
        // While others wait, this request goes behind them.
        let is_first = host.turn.try_lock().is_ok();
        if is_first && let Admission::Now(receipts) = self.ask(&facts).await? {
            return Ok(receipts);
        }
        Counters::add(&host.counters.waits);
        let Ok(_turn) = timeout_at(last, host.turn.lock()).await else { return Err(self.refused(&host, now, last)) };
        loop {
            let until = match self.ask(&facts).await? {
                Admission::Now(receipts) => {
                    host.counters.waited(self.environment.clock.now().saturating_duration_since(now));
                    return Ok(receipts);
                }
                Admission::After(wait) => self.environment.clock.now() + wait,
            };
            if until > last {
                return Err(self.refused(&host, now, until));
            }
            sleep_until(until).await;
        }
    }

    fn refused(&self, host: &Host, since: Instant, until: Instant) -> BoxError {
        Counters::add(&host.counters.pace_refusals);
        Paced { host: host.name.to_string(), wait: until.saturating_duration_since(since) }.into()
    }

    async fn ask(&self, facts: &Facts) -> Result<Admission, TooLarge> {
        let ruling = match self.reserves {
            Some(ttl) => self.limiter.reserve(facts, ttl).await,
            None => self.limiter.check(facts).await,
        };
        match ruling.verdict.outcome {
            Outcome::Allow { delay } => {
                // The limiter has given this request its place: it must be used.
                tokio::time::sleep(delay.into()).await;
                Ok(Admission::Now(ruling.receipts.into_vec()))
            }
            Outcome::Deny { retry_after } => {
                Ok(Admission::After(Duration::from(retry_after).max(Duration::from_millis(1))))
            }
            Outcome::TooLarge { max } => Err(TooLarge { max }),
        }
    }
}

enum Admission {
    Now(Vec<Receipt>),
    After(Duration),
}

/// A request as rules see it.
fn facts_of(parts: &Parts, host: &str) -> Facts {
    let target = parts.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let mut facts = Facts::new(parts.method.as_str(), target).host(host);
    for (name, value) in &parts.headers {
        facts = facts.header(name.as_str(), &String::from_utf8_lossy(value.as_bytes()));
    }
    match parts.extensions.get::<Tokens>() {
        Some(tokens) => facts.hits(tokens.0),
        None => facts,
    }
}

/// Settles a receipt at these costs.
type Settle = dyn Fn(Receipt, Vec<u64>) -> BoxFuture<Result<(), StoreError>> + Send + Sync;

/// The reserved cost of a request, as an extension of its response.
#[derive(Clone)]
pub struct Reservation {
    estimate: u64,
    receipts: Arc<[Receipt]>,
    settle: Arc<Settle>,
}

impl Reservation {
    /// Settles at the real cost: refunds what was estimated too much, or charges the rest. Only the first settlement counts.
    ///
    /// # Errors
    /// If the store fails. It may be tried again.
    pub async fn settle(&self, actual: u64) -> Result<(), StoreError> {
        for receipt in self.receipts.iter() {
            // Other costs than the estimate are of rules with a cost of their own.
            let costs = receipt.held.iter().map(|held| if held.taken == self.estimate { actual } else { held.taken });
            (self.settle)(receipt.clone(), costs.collect()).await?;
        }
        Ok(())
    }

    /// The estimate that was charged.
    #[must_use]
    pub const fn estimate(&self) -> u64 {
        self.estimate
    }
}

impl<Svc, S, C, B, R> Service<Request<B>> for SharedPace<Svc, S, C>
where
    Svc: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    Svc::Error: Into<BoxError>,
    Svc::Future: Send,
    S: Store + 'static,
    C: StoreClock + 'static,
    B: Send + 'static,
    R: 'static,
{
    type Response = Response<R>;
    type Error = BoxError;
    type Future = BoxFuture<Result<Response<R>, BoxError>>;

    /// Always ready: the inner service is asked when the request may be sent.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut inner, pace) = (self.inner.clone(), self.pace.clone());
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let receipts = pace.admit(&parts).await?;
            let estimate = parts.extensions.get::<Tokens>().map_or(1, |tokens| tokens.0);
            let mut response = send(&mut inner, Request::from_parts(parts, body)).await.map_err(Into::into)?;
            if pace.reserves.is_some() {
                let limiter = Arc::clone(&pace.limiter);
                let settle = move |receipt: Receipt, actual: Vec<u64>| -> BoxFuture<Result<(), StoreError>> {
                    let limiter = Arc::clone(&limiter);
                    Box::pin(async move { limiter.settle(&receipt, &actual).await.map(|_| ()) })
                };
                let reservation = Reservation { estimate, receipts: receipts.into(), settle: Arc::new(settle) };
                response.extensions_mut().insert(reservation);
            }
            Ok(response)
        })
    }
}
