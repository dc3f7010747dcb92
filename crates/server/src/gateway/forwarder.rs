//! Routes of the gateway, with their upstreams.

use std::sync::Arc;

use http::{HeaderValue, Request, Uri};
use tidegate_core::SystemClock;
use tidegate_http::{apply_path_policy, check_asterisk};
use tidegate_rules::PathPolicy;
use tidegate_rules::syntax::without_port;

use super::Settings;
use super::address::UpstreamAddress;
use super::failure::Failure;
use super::head;
use super::retry_budget::RetryBudget;
use super::route::{self, Route};
use super::shedding::RouteShedding;
use super::upgrades::Upgrades;
use super::upstream::Upstream;
use super::upstream_group::UpstreamGroup;
use crate::metrics::GatewayMetrics;

/// Forwards requests along their routes.
pub(super) struct Forwarder {
    /// Settings of the start. Those that a reload changes are in `ConnectionSettings`.
    pub(super) settings: Settings,
    /// Routes, in order of precedence.
    routes: Vec<Route>,
    /// Upstream addresses of each route.
    pub(super) groups: Vec<UpstreamGroup>,
    /// Upgrade protocols allowed on each route.
    pub(super) upgrades: Vec<Upgrades>,
    /// Path policy of each route.
    paths: Vec<PathPolicy>,
    pub(super) metrics: Arc<GatewayMetrics>,
    pub(super) clock: SystemClock,
}

impl Forwarder {
    pub(super) fn new(settings: Settings) -> Forwarder {
        let mut routes = settings.routes.clone();
        routes.sort_by_key(Route::precedence);
        let metrics = Arc::new(GatewayMetrics::new(routes.iter().map(|route| {
            let upstreams = route.upstreams.iter().map(ToString::to_string).collect();
            (route.to_string(), upstreams)
        })));
        let group = |(number, route): (usize, &Route)| {
            let counts = metrics.route(number);
            let upstream = |(place, address): (usize, &UpstreamAddress)| {
                Arc::new(Upstream::new(address.clone(), &settings, Arc::clone(counts.upstream(place))))
            };
            let upstreams = route.upstreams.iter().enumerate().map(upstream).collect();
            let shedding = settings.shedding.as_ref().map(|settings| {
                let shedding = Arc::new(RouteShedding::new(route.to_string(), settings));
                counts.watch_shedder(shedding.shedder().clone());
                shedding
            });
            UpstreamGroup::new(upstreams, RetryBudget::new(settings.retry_percent), Arc::clone(counts), shedding)
        };
        let groups = routes.iter().enumerate().map(group).collect();
        let upgrades = routes.iter().map(|route| route.upgrades.clone().unwrap_or_else(|| settings.upgrades.clone()));
        let upgrades = upgrades.collect();
        let paths = routes.iter().map(|route| route.paths.unwrap_or(settings.paths)).collect();
        Forwarder { settings, routes, groups, upgrades, paths, metrics, clock: SystemClock::new() }
    }

    /// Applies the path policy, so that rules, routes and upstreams see the same path.
    #[inline]
    pub(super) fn normalize_path<B>(&self, request: &mut Request<B>) -> Result<(), Failure> {
        check_asterisk(request.method().as_str(), request.uri().path()).map_err(Failure::Path)?;
        // A canonical path, as nearly all are, is what every policy leaves as it is.
        match PathPolicy::Strict.apply(request.uri().path()) {
            Ok(_) => Ok(()),
            Err(_) => self.apply_path_policy(request),
        }
    }

    #[cold]
    fn apply_path_policy<B>(&self, request: &mut Request<B>) -> Result<(), Failure> {
        let host = head::host(request.uri(), request.headers());
        let route = host.and_then(|host| self.group(request.uri(), &host));
        let policy = route.map_or(self.settings.paths, |route| self.paths[route]);
        apply_path_policy(policy, request.uri_mut()).map_err(Failure::Path)
    }

    /// The counters of requests.
    pub(super) const fn metrics(&self) -> &Arc<GatewayMetrics> {
        &self.metrics
    }

    /// Every address of every route.
    pub(super) fn upstreams(&self) -> Vec<Arc<Upstream>> {
        self.groups.iter().flat_map(|group| group.upstreams.iter().cloned()).collect()
    }

    /// The load shedder of each route, if enabled.
    pub(super) fn shedding(&self) -> Vec<Arc<RouteShedding>> {
        self.groups.iter().filter_map(|group| group.shedding.clone()).collect()
    }

    /// Index of the route that matches a request.
    pub(super) fn route_of<B>(&self, request: &Request<B>) -> Option<usize> {
        self.group(request.uri(), &head::host(request.uri(), request.headers())?)
    }

    /// Index of the group for a target and host.
    pub(super) fn group(&self, target: &Uri, host: &HeaderValue) -> Option<usize> {
        let host = without_port(host.to_str().ok()?);
        route::find(&self.routes, host, target.path())
    }
}
