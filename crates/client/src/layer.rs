//! All parts in one layer.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Uri};
use tower_layer::Layer;

use crate::backoff::Backoff;
use crate::budget::BudgetTerms;
use crate::clock::Clock;
use crate::counters::Snapshot;
use crate::environment::{Environment, USUAL_K};
use crate::hosts::Hosts;
use crate::pace::{PaceLayer, Pacer};
use crate::retry::{Retrier, Retry, RetryLayer};
use crate::throttle_service::ThrottleLayer;

/// A client that respects what servers ask for: it retries within a budget ([`RetryLayer`](crate::RetryLayer)) and paces
/// itself ([`PaceLayer`](crate::PaceLayer)).
///
/// ```
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use http_body_util::{Empty, Full};
/// use tidegate_client::ClientLayer;
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tidegate_client::BoxError> {
/// # let http = service_fn(|_: Request<_>| async { Ok::<_, tidegate_client::BoxError>(Response::new(Full::<Bytes>::default())) });
/// // `http` is hyper-util's client, tonic's channel, or any other service of `http` requests.
/// let layer = ClientLayer::new();
/// let client = ServiceBuilder::new().layer(layer.clone()).service(http);
/// let response = client.oneshot(Request::get("http://api.example.com/").body(Empty::<Bytes>::new())?).await?;
/// assert!(response.status().is_success());
/// assert_eq!(layer.snapshot()["api.example.com"].calls, 1);
/// # Ok(())
/// # }
/// ```
///
/// The inner service gets each request with a [`ReplayBody`](crate::ReplayBody). Clones share their state.
#[derive(Clone)]
pub struct ClientLayer {
    pub(crate) retrier: Retrier,
    pub(crate) pacer: Pacer,
    budget: BudgetTerms,
    k: f64,
}

impl ClientLayer {
    /// Retries, budget and pace with the default settings.
    #[must_use]
    pub fn new() -> ClientLayer {
        let environment = Environment::new();
        ClientLayer {
            retrier: Retrier::new(environment.clone()),
            pacer: Pacer::new(environment),
            budget: BudgetTerms::default(),
            k: USUAL_K,
        }
    }

    /// Maximum number of retries of a call: 2 by default.
    #[must_use]
    pub const fn retries(mut self, most: u32) -> ClientLayer {
        self.retrier.terms.most = most;
        self
    }

    /// Maximum wait before a retry, and for the pace: 30 s by default, each.
    #[must_use]
    pub const fn longest_wait(mut self, longest: Duration) -> ClientLayer {
        (self.retrier.terms.longest, self.pacer.longest) = (longest, longest);
        self
    }

    /// The jitter, and the waits before retries if the server does not ask for any.
    #[must_use]
    pub const fn backoff(mut self, backoff: Backoff) -> ClientLayer {
        self.retrier.terms.backoff = backoff;
        self
    }

    /// The budget for retries, for each host: this share of its requests of the last ten seconds, plus this many per
    /// second. By default 0.1 and 1. Resets the learned state.
    #[must_use]
    pub fn budget(mut self, share: f64, per_second: u32) -> ClientLayer {
        self.retrier.terms.has_budget = true;
        self.budget = BudgetTerms { share, per_second };
        self.with_new_hosts()
    }

    /// Retries without a budget. While a server fails, this multiplies its load by the number of attempts.
    #[must_use]
    pub const fn without_budget(mut self) -> ClientLayer {
        self.retrier.terms.has_budget = false;
        self
    }

    /// Retries a 429 for any method. A correct server has not processed a request that it answers with 429.
    #[must_use]
    pub const fn resend_denied(mut self) -> ClientLayer {
        self.retrier.terms.resends_denied = true;
        self
    }

    /// Maximum length of a request body that is kept for a retry: 64 KiB by default. A request with a longer body is sent
    /// once.
    #[must_use]
    pub const fn body_bytes(mut self, most: usize) -> ClientLayer {
        self.retrier.terms.body_bytes = most;
        self
    }

    /// Throttles requests to a host that refuses most of them ([`ThrottleLayer`](crate::ThrottleLayer)). Resets the learned
    /// state.
    #[must_use]
    pub fn throttle(mut self, k: f64) -> ClientLayer {
        (self.pacer.is_throttled, self.k) = (true, k);
        self.with_new_hosts()
    }

    /// Limits the requests in flight to each host according to its capacity, which is estimated from response times.
    /// Requests above the limit wait, and fail with [`HostBusy`](crate::HostBusy) after the longest wait or at their
    /// deadline. A request is in flight until its response begins. Resets the learned state.
    ///
    /// The most important waiting request is sent first; requests of one [`Priority`](crate::Priority) are sent in order. A
    /// priority has a [share](ClientLayer::concurrency_shares) of the limit, which applies only while the whole limit is
    /// reached.
    ///
    /// Responses with 503 and 504 lower the limit. So do timeouts, broken connections, and an attempt that the
    /// [`Deadline`](crate::Deadline) ends after at least half of the time of its call. Failed connection attempts and
    /// cancelled calls do not affect it.
    ///
    /// ```
    /// # use tidegate_client::ClientLayer;
    /// let layer = ClientLayer::new().concurrency("gradient2 4..100".parse()?);
    /// # Ok::<(), tidegate_core::adaptive::ControllerError>(())
    /// ```
    #[cfg(feature = "adaptive")]
    #[must_use]
    pub fn concurrency(mut self, controller: tidegate_core::adaptive::LimitController) -> ClientLayer {
        self.pacer.concurrency.controller = Some(controller);
        self.with_new_hosts()
    }

    /// The shares of priorities in the limit on requests in flight, each from 0 to 1, from low to critical. By default 0,
    /// 0.2, 0.3 and 0.5. Resets the learned state.
    #[cfg(feature = "adaptive")]
    #[must_use]
    pub fn concurrency_shares(mut self, shares: [f64; 4]) -> ClientLayer {
        self.pacer.concurrency.shares = shares;
        self.with_new_hosts()
    }

    /// Windows in which requests are summed up into samples for the limit on requests in flight. Resets the learned state.
    #[cfg(feature = "adaptive")]
    #[must_use]
    pub fn concurrency_window(mut self, window: tidegate_core::adaptive::SampleWindow) -> ClientLayer {
        self.pacer.concurrency.window = window;
        self.with_new_hosts()
    }

    /// Sends requests above the limit on requests in flight, and counts them as
    /// [`shadow_waits`](crate::HostSnapshot::shadow_waits). Resets the learned state.
    #[cfg(feature = "adaptive")]
    #[must_use]
    pub fn concurrency_shadow(mut self) -> ClientLayer {
        self.pacer.concurrency.is_shadow = true;
        self.with_new_hosts()
    }

    /// Names the route of a request, as [`PaceLayer::route`](crate::PaceLayer::route) does.
    #[must_use]
    pub fn route(mut self, name: impl Fn(&Method, &Uri) -> String + Send + Sync + 'static) -> ClientLayer {
        self.pacer.route = Some(Arc::new(name));
        self
    }

    /// Names the host for requests that do not name one. Those of tonic's generated clients do not, unless they are created
    /// with `with_origin`: without a name, all channels count as one host. Use a clone of the layer for each channel, so
    /// that all other state is shared.
    ///
    /// ```
    /// # use tidegate_client::ClientLayer;
    /// let layer = ClientLayer::new();
    /// let (users, orders) = (layer.clone().host("users.internal:50051"), layer.clone().host("orders.internal:50051"));
    /// ```
    #[must_use]
    pub fn host(self, name: &str) -> ClientLayer {
        let environment = Environment { host: name.to_ascii_lowercase().into(), ..self.retrier.environment.clone() };
        self.with_environment(environment)
    }

    /// Disables the pace of this layer, which then does not learn limits. For a [`RetryLayer`](crate::RetryLayer) with
    /// additional parts, or together with a shared pace.
    #[must_use]
    pub const fn without_pace(mut self) -> ClientLayer {
        self.pacer.is_paced = false;
        self
    }

    /// Sets the clock.
    #[must_use]
    pub fn clock(self, clock: impl Clock + 'static) -> ClientLayer {
        let environment = Environment { clock: Arc::new(clock), ..self.retrier.environment.clone() };
        self.with_environment(environment)
    }

    /// Sets the source of randomness: numbers from 0 up to, but not including, 1.
    #[must_use]
    pub fn random(self, random: impl Fn() -> f64 + Send + Sync + 'static) -> ClientLayer {
        let environment = Environment { random: Arc::new(random), ..self.retrier.environment.clone() };
        self.with_environment(environment)
    }

    /// Forgets the limits and denials of a host, by its name as in [snapshots](crate::Snapshot). Its requests are sent at once,
    /// including those that wait, until its responses state limits again. For an operator who knows that a limit does not hold any
    /// more.
    ///
    /// ```
    /// # use tidegate_client::ClientLayer;
    /// let layer = ClientLayer::new();
    /// layer.forget("api.example.com");
    /// ```
    pub fn forget(&self, host: &str) {
        self.pacer.environment.forget(host);
    }

    /// The state of each host: limits learned, and counters.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.retrier.environment.snapshot()
    }

    fn with_new_hosts(self) -> ClientLayer {
        let hosts = Arc::new(Hosts::new(self.budget, self.k));
        let environment = Environment { hosts, ..self.retrier.environment.clone() };
        self.with_environment(environment)
    }

    fn with_environment(mut self, environment: Environment) -> ClientLayer {
        self.pacer.environment = environment.clone();
        self.retrier.environment = environment;
        self
    }
}

impl Default for ClientLayer {
    fn default() -> ClientLayer {
        ClientLayer::new()
    }
}

/// A layer that only retries, for the adapters of `reqwest`.
impl From<RetryLayer> for ClientLayer {
    fn from(RetryLayer { retrier }: RetryLayer) -> ClientLayer {
        let environment = retrier.environment.clone();
        let (budget, k) = (environment.hosts.budget, environment.hosts.k);
        ClientLayer { retrier, pacer: Pacer { is_paced: false, ..Pacer::new(environment) }, budget, k }
    }
}

/// A layer that only paces, for the adapters of `reqwest`.
impl From<PaceLayer> for ClientLayer {
    fn from(PaceLayer { pacer }: PaceLayer) -> ClientLayer {
        let retrier = Retrier::new(pacer.environment.clone());
        let (budget, k) = (pacer.environment.hosts.budget, pacer.environment.hosts.k);
        ClientLayer { retrier, pacer, budget, k }.retries(0)
    }
}

/// A layer that only throttles, for the adapters of `reqwest`.
impl From<ThrottleLayer> for ClientLayer {
    fn from(ThrottleLayer { environment }: ThrottleLayer) -> ClientLayer {
        let (budget, k) = (environment.hosts.budget, environment.hosts.k);
        let pacer = Pacer { is_paced: false, is_throttled: true, ..Pacer::new(environment.clone()) };
        ClientLayer { retrier: Retrier::new(environment), pacer, budget, k }.retries(0)
    }
}

impl<S> Layer<S> for ClientLayer {
    type Service = Retry<S>;

    fn layer(&self, inner: S) -> Retry<S> {
        Retry { inner, retrier: Arc::new(self.retrier.clone()), pacer: Some(Arc::new(self.pacer.clone())) }
    }
}
