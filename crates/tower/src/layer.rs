//! The layer.

use std::sync::Arc;

use http::HeaderName;
use http::request::Parts;
use tidegate_core::{Clock, Limit, MemoryStore, Store, SystemClock};
use tidegate_http::{DenialBodies, HeaderStyle, HttpFacts, TrustedProxies};
use tidegate_rules::{Limiter, PathPolicy, RuleSet, Ruling, Whom};
use tower_layer::Layer;

use crate::identify::Identify;
use crate::reading::BodyReadingLayer;
use crate::service::RateLimit;
use crate::settings::Settings;
use crate::witness::Witness;

/// Puts rate limits in front of a service. Clones share what was counted.
///
/// ```
/// use tidegate_rules::RuleSet;
/// use tidegate_http::{ForwardingHeader, TrustedProxies};
/// use tidegate_tower::RateLimitLayer;
///
/// let rules = RuleSet::parse("rules.yaml", "
/// rules:
///   - id: login
///     match: { method: POST, path: /login }
///     key: address
///     limit: log 5/min
///   - id: exports
///     match: { path: /exports/** }
///     key: user
///     limit: concurrent 2 ttl 1min
/// ");
/// let layer = RateLimitLayer::rules(rules.map_err(|findings| findings.to_string())?.rules)
///     .trusting(TrustedProxies::parse(["10.0.0.0/8"], ForwardingHeader::XForwardedFor).map_err(|error| error.to_string())?)
///     .identify_with(|head, facts| match head.headers.get("x-user") {
///         Some(user) => facts.user(String::from_utf8_lossy(user.as_bytes())),
///         None => facts,
///     });
/// # let _: RateLimitLayer = layer;
/// # Ok::<(), String>(())
/// ```
pub struct RateLimitLayer<S = MemoryStore, C = SystemClock> {
    settings: Settings<S, C>,
}

impl RateLimitLayer {
    /// Holds each client to `limit`, by its address.
    #[must_use]
    pub fn per_client(limit: Limit) -> RateLimitLayer {
        RateLimitLayer::one(Whom::Address, limit)
    }

    /// Holds each of `whom` to `limit`.
    #[must_use]
    pub fn one(whom: Whom, limit: Limit) -> RateLimitLayer {
        RateLimitLayer::rules(RuleSet::one("requests", whom, limit))
    }

    /// Enforces rules, with state in this process's memory.
    #[must_use]
    pub fn rules(rules: RuleSet) -> RateLimitLayer {
        RateLimitLayer::new(Arc::new(Limiter::new(rules, MemoryStore::new())))
    }
}

impl<S: Store + 'static, C: Clock + 'static> RateLimitLayer<S, C> {
    /// Enforces what a limiter decides. Others may share it, replace its rules, and peek.
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
            gives_back_unserved: false,
            reads_bodies: false,
            priority_header: None,
            witness: None,
            shares_missing_address: false,
            told: Arc::default(),
        };
        RateLimitLayer { settings }
    }

    /// Believes what these proxies say of their clients' addresses. Without it, the peer is the client.
    #[must_use]
    pub fn trusting(mut self, proxies: TrustedProxies) -> RateLimitLayer<S, C> {
        self.settings.proxies = Arc::new(proxies);
        self
    }

    /// Takes all requests without the address of their client for one client's, where rules go by it: behind a Unix socket,
    /// for example. Without it such requests are answered with 500, for clients would share one limit by mistake.
    #[must_use]
    pub const fn sharing_missing_addresses(mut self) -> RateLimitLayer<S, C> {
        self.settings.shares_missing_address = true;
        self
    }

    /// Asks this who makes each request.
    #[must_use]
    pub fn identify(mut self, identify: impl Identify + 'static) -> RateLimitLayer<S, C> {
        self.settings.identify = Some(Arc::new(identify));
        self
    }

    /// Asks this closure who makes each request.
    #[must_use]
    pub fn identify_with<F>(self, identify: F) -> RateLimitLayer<S, C>
    where
        F: for<'a> Fn(&'a Parts, HttpFacts<'a>) -> HttpFacts<'a> + Send + Sync + 'static,
    {
        self.identify(identify)
    }

    /// Tells clients how they stand in these headers.
    #[must_use]
    pub fn headers(mut self, style: HeaderStyle) -> RateLimitLayer<S, C> {
        self.settings.style = style;
        self
    }

    /// Writes the bodies of denials like this: with a page for browsers ([`DenialBodies::default`]), or by templates of your own.
    /// Without it, everyone gets a problem in JSON.
    #[must_use]
    pub fn denials(mut self, bodies: impl Into<Arc<DenialBodies>>) -> RateLimitLayer<S, C> {
        self.settings.bodies = bodies.into();
        self
    }

    /// Passes requests that this closure picks on to the service without asking the limiter: they are not charged, not counted,
    /// and never denied. A client that can make its requests look like that is not limited.
    #[must_use]
    pub fn exempt_with(mut self, exempt: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> RateLimitLayer<S, C> {
        self.settings.exempt = Some(Arc::new(exempt));
        self
    }

    /// Does this with paths that have several spellings. They stay as they came, unless told otherwise.
    ///
    /// Rules see a path [normalised](tidegate_rules::normalize). A service that compares paths as they came, as axum's
    /// router does, serves no handler by a spelling that its rule does not know. One that decodes first (a proxy, a server of
    /// files) may, and should get [`PathPolicy::Canonical`]: what has several readings is then refused with 400, and the
    /// service sees the rest in the form in which the rules have judged it.
    #[must_use]
    pub fn paths(mut self, policy: PathPolicy) -> RateLimitLayer<S, C> {
        self.settings.paths = policy;
        self
    }

    /// Settles reserved costs at what responses say in this header, where the service does not say it by
    /// [`ActualCost`](crate::ActualCost). The header goes on to the client.
    #[must_use]
    pub fn cost_header(mut self, name: HeaderName) -> RateLimitLayer<S, C> {
        self.settings.cost_header = Some(name);
        self
    }

    /// Gives back also what was charged for good, where the service says that nothing was done for it ([`Unserved`]).
    ///
    /// Each request then remembers whom it was charged to until it is answered, or the service [rules it out].
    ///
    /// [`Unserved`]: crate::Unserved
    /// [rules it out]: crate::Unserved::rule_out
    #[must_use]
    pub fn give_back_unserved(mut self) -> RateLimitLayer<S, C> {
        self.settings.gives_back_unserved = true;
        self
    }

    /// Lets requests say in this header how much they matter (`critical`, `high`, `normal` or `low`), where no rule says so,
    /// and tells the service in the same header. It also finds a [`Priority`](tidegate_rules::Priority) in the
    /// request's extensions; a request that has none is `normal`.
    ///
    /// Whoever can send the header can call himself critical: let only your own proxies set it.
    #[must_use]
    pub fn priority_header(mut self, name: HeaderName) -> RateLimitLayer<S, C> {
        self.settings.priority_header = Some(name);
        self
    }

    /// Looks into the bodies of requests where rules say that their cost stands there (`cost: body:max_tokens`). The service
    /// then gets each request with a [`RequestBody`](crate::RequestBody).
    ///
    /// Without it such rules charge what they say `otherwise`.
    #[must_use]
    pub fn reading_bodies(mut self) -> BodyReadingLayer<S, C> {
        self.settings.reads_bodies = true;
        BodyReadingLayer::new(self.settings)
    }

    /// Shows each ruling to this, for metrics and logs, before the request goes on.
    #[must_use]
    pub fn inspect(self, inspect: impl Fn(&Ruling<'_>) + Send + Sync + 'static) -> RateLimitLayer<S, C> {
        self.witness(inspect)
    }

    /// Shows each ruling to this, with whom it was about.
    #[must_use]
    pub fn witness(mut self, witness: impl Witness + 'static) -> RateLimitLayer<S, C> {
        self.settings.witness = Some(Arc::new(witness));
        self
    }

    /// What decides.
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
                "rules say that costs stand in the bodies of requests, and this layer does not look there: call \
                 `reading_bodies`"
            );
        }
        RateLimit { inner, settings: Arc::new(self.settings.clone()) }
    }
}
