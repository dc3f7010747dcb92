//! The layer, and its builder methods.

use std::sync::Arc;

use http::HeaderName;
use http::request::Parts;
use tidegate_core::{Clock, Limit, MemoryStore, Store, SystemClock};
use tidegate_http::{DenialBodies, HeaderStyle, HttpFacts, TrustedProxies};
use tidegate_rules::{KeyScope, Limiter, PathPolicy, RuleSet, Ruling};
use tower_layer::Layer;

use crate::body_cost::BodyCostLayer;
use crate::identity::Identify;
use crate::observer::Observer;
use crate::service::RateLimit;
use crate::settings::Settings;

/// Puts rate limits in front of a service. Clones share their counters.
///
/// ```no_run
/// use std::error::Error;
/// use std::net::SocketAddr;
///
/// use axum::{Router, routing::post};
/// use tidegate_http::{ForwardingHeader, TrustedProxies};
/// use tidegate_rules::RuleSet;
/// use tidegate_tower::RateLimitLayer;
/// use tokio::net::TcpListener;
///
/// #[tokio::main]
/// async fn main() -> Result<(), Box<dyn Error>> {
///     let rules = RuleSet::parse("rules.yaml", "
/// rules:
///   - id: login
///     match: { method: POST, path: /login }
///     key: address
///     limit: log 5/min
///   - id: exports
///     match: { path: /exports/** }
///     key: user
///     limit: concurrent 2 ttl 1min
/// ")?;
///     let layer = RateLimitLayer::rules(rules.rules)
///         .trusted_proxies(TrustedProxies::parse(["10.0.0.0/8"], ForwardingHeader::XForwardedFor)?)
///         .identify_with(|head, facts| match head.headers.get("x-user") {
///             Some(user) => facts.user(String::from_utf8_lossy(user.as_bytes())),
///             None => facts,
///         });
///     let app: Router = Router::new().route("/login", post(|| async { "welcome" })).layer(layer);
///     let listener = TcpListener::bind("127.0.0.1:3000").await?;
///     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
///     Ok(())
/// }
/// ```
pub struct RateLimitLayer<S = MemoryStore, C = SystemClock> {
    settings: Settings<S, C>,
}

impl RateLimitLayer {
    /// Limits each client by its address.
    #[must_use]
    pub fn per_client(limit: Limit) -> RateLimitLayer {
        RateLimitLayer::one(KeyScope::Address, limit)
    }

    /// Limits each user, API key or address, depending on `whom`.
    #[must_use]
    pub fn one(whom: KeyScope, limit: Limit) -> RateLimitLayer {
        RateLimitLayer::rules(RuleSet::one("requests", whom, limit))
    }

    /// Enforces rules, with counters in this process's memory.
    #[must_use]
    pub fn rules(rules: RuleSet) -> RateLimitLayer {
        RateLimitLayer::new(Arc::new(Limiter::new(rules, MemoryStore::new())))
    }
}

impl<S: Store + 'static, C: Clock + 'static> RateLimitLayer<S, C> {
    /// Enforces a limiter's decisions. The limiter can be shared, for example to replace its rules or to peek at a limit.
    #[must_use]
    pub fn new(limiter: Arc<Limiter<S, C>>) -> RateLimitLayer<S, C> {
        let settings = Settings {
            limiter,
            proxies: Arc::new(TrustedProxies::none()),
            identify: None,
            style: HeaderStyle::default(),
            bodies: Arc::new(DenialBodies::json()),
            exempt: None,
            paths: PathPolicy::AsIs,
            cost_header: None,
            refunds_unserved: false,
            reads_bodies: false,
            priority_header: None,
            never_shed: None,
            hashes_clients: false,
            observer: None,
            shares_missing_address: false,
            has_logged_missing_address: Arc::default(),
        };
        RateLimitLayer { settings }
    }

    /// Takes client addresses from the forwarding headers of these proxies. The default trusts none: the peer is the client.
    #[must_use]
    pub fn trusted_proxies(mut self, proxies: TrustedProxies) -> RateLimitLayer<S, C> {
        self.settings.proxies = Arc::new(proxies);
        self
    }

    /// Treats all requests without a client address as one client, for example behind a Unix socket. By default such a
    /// request is answered with 500 if a rule needs the address, because clients would share one limit by mistake.
    #[must_use]
    pub const fn share_missing_addresses(mut self) -> RateLimitLayer<S, C> {
        self.settings.shares_missing_address = true;
        self
    }

    /// Identifies the caller of each request.
    #[must_use]
    pub fn identify(mut self, identify: impl Identify + 'static) -> RateLimitLayer<S, C> {
        self.settings.identify = Some(Arc::new(identify));
        self
    }

    /// Identifies the caller of each request with a closure.
    #[must_use]
    pub fn identify_with<F>(self, identify: F) -> RateLimitLayer<S, C>
    where
        F: for<'a> Fn(&'a Parts, HttpFacts<'a>) -> HttpFacts<'a> + Send + Sync + 'static,
    {
        self.identify(identify)
    }

    /// Selects the rate-limit headers of responses.
    #[must_use]
    pub fn headers(mut self, style: HeaderStyle) -> RateLimitLayer<S, C> {
        self.settings.style = style;
        self
    }

    /// Sets the bodies of denials: with an HTML page for browsers ([`DenialBodies::default`]), or from templates. The
    /// default is an RFC 9457 problem in JSON.
    #[must_use]
    pub fn denials(mut self, bodies: impl Into<Arc<DenialBodies>>) -> RateLimitLayer<S, C> {
        self.settings.bodies = bodies.into();
        self
    }

    /// Exempts the requests for which this closure returns true: they are not charged, not counted and never denied. A
    /// client that can make its requests match is not limited.
    #[must_use]
    pub fn exempt_with(mut self, exempt: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> RateLimitLayer<S, C> {
        self.settings.exempt = Some(Arc::new(exempt));
        self
    }

    /// Has rules with `shed` let the requests pass for which this closure returns true, such as health checks. Other rules hold them to
    /// their limits.
    #[must_use]
    pub fn shed_exempt_with(mut self, exempt: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> RateLimitLayer<S, C> {
        self.settings.never_shed = Some(Arc::new(exempt));
        self
    }

    /// Sets the policy for paths with several spellings. The default, [`PathPolicy::AsIs`], passes them on unchanged.
    ///
    /// Rules match a [normalised](tidegate_rules::normalize) path. A router that compares raw paths, as axum's does,
    /// has no handler for a spelling that rules do not match. A service that decodes paths first, such as a proxy or a
    /// file server, may have one. Use [`PathPolicy::Canonical`] there: ambiguous paths are refused with 400, and the
    /// service receives the path in the form that the rules have matched.
    #[must_use]
    pub fn paths(mut self, policy: PathPolicy) -> RateLimitLayer<S, C> {
        self.settings.paths = policy;
        self
    }

    /// Settles reserved costs at the number in this response header, unless the service sets an
    /// [`ActualCost`](crate::ActualCost). The header is passed on to the client.
    #[must_use]
    pub fn cost_header(mut self, name: HeaderName) -> RateLimitLayer<S, C> {
        self.settings.cost_header = Some(name);
        self
    }

    /// Refunds all charges of a request whose response is [`Unserved`], not only slots and reserved costs.
    ///
    /// The layer then remembers the charges of each request until its response, or until the service [rules it out].
    ///
    /// [`Unserved`]: crate::Unserved
    /// [rules it out]: crate::Unserved::rule_out
    #[must_use]
    pub fn refund_unserved(mut self) -> RateLimitLayer<S, C> {
        self.settings.refunds_unserved = true;
        self
    }

    /// Reads a request's priority (`critical`, `high`, `normal` or `low`) from this header if no rule sets one, and passes
    /// the resulting priority to the service in the same header. The service also finds it as a
    /// [`Priority`](tidegate_rules::Priority) in the request's extensions. A request without one is `normal`.
    ///
    /// A client that can send the header can claim any priority: let only your own proxies set it.
    #[must_use]
    pub fn priority_header(mut self, name: HeaderName) -> RateLimitLayer<S, C> {
        self.settings.priority_header = Some(name);
        self
    }

    /// Stores a [`ClientHash`](crate::ClientHash) in the extensions of each request, for a
    /// [`PriorityShedLayer`](crate::PriorityShedLayer) to refuse all requests of a client or none.
    #[must_use]
    pub fn hash_clients(mut self) -> RateLimitLayer<S, C> {
        self.settings.hashes_clients = true;
        self
    }

    /// Reads costs from request bodies for rules with `cost: body:…`, such as `body:max_tokens`. The service then
    /// receives each request with a [`RequestBody`](crate::RequestBody).
    ///
    /// Without it, such rules charge their `otherwise`.
    #[must_use]
    pub fn read_bodies(mut self) -> BodyCostLayer<S, C> {
        self.settings.reads_bodies = true;
        BodyCostLayer::new(self.settings)
    }

    /// Calls a closure with each ruling, for metrics and logs, before the request is forwarded.
    #[must_use]
    pub fn inspect(self, inspect: impl Fn(&Ruling<'_>) + Send + Sync + 'static) -> RateLimitLayer<S, C> {
        self.observer(inspect)
    }

    /// Sets the observer of decisions, settlements and refunds.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer + 'static) -> RateLimitLayer<S, C> {
        self.settings.observer = Some(Arc::new(observer));
        self
    }

    /// The limiter that makes the decisions.
    #[must_use]
    pub const fn limiter(&self) -> &Arc<Limiter<S, C>> {
        &self.settings.limiter
    }
}

impl<S, C> Clone for RateLimitLayer<S, C> {
    fn clone(&self) -> RateLimitLayer<S, C> {
        RateLimitLayer { settings: self.settings.clone() }
    }
}

impl<Svc, S, C: Clock> Layer<Svc> for RateLimitLayer<S, C> {
    type Service = RateLimit<Svc, S, C>;

    fn layer(&self, inner: Svc) -> RateLimit<Svc, S, C> {
        if self.settings.limiter.with_rules(|generation| generation.rules.reads_bodies()) {
            tracing::warn!(
                "rules read costs from request bodies, but this layer does not read bodies: call \
                 `RateLimitLayer::read_bodies`"
            );
        }
        RateLimit { inner, settings: Arc::new(self.settings.clone()) }
    }
}
