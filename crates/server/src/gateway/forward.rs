//! Forwards requests to upstreams, and returns their responses.

use std::future::{Future, ready};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{CONNECTION, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use hyper::upgrade::OnUpgrade;
use tidegate_core::SystemClock;
use tidegate_http::{apply_path_policy, is_grpc};
use tidegate_rules::PathPolicy;
use tidegate_rules::syntax::without_port;
use tidegate_tower::{Unanswered, Unserved, UpgradeHold};

use super::Settings;
use super::address::Address;
use super::attempts::{ExchangeError, UpstreamAnswer};
use super::downstream::Downstream;
use super::failure::{Failure, FailureForm};
use super::head;
use super::request_body::{RequestBody, SentBody};
use super::response_body::ForwardBody;
use super::retry_budget::RetryBudget;
use super::route::{self, Route};
use super::shedding::RouteShedding;
use super::upgrades::{self, Upgrades};
use super::upstream::Upstream;
use super::upstream_group::UpstreamGroup;
use crate::metrics::GatewayMetrics;

/// Forwards the requests of one connection to upstreams. This is the service that the middleware stands in front of.
#[derive(Clone)]
pub(super) struct Forward(Arc<ConnContext>);

/// The context of the requests of one connection.
struct ConnContext {
    forwarder: Arc<Forwarder>,
    downstream: Arc<Downstream>,
}

/// Forwards requests along their routes.
pub(super) struct Forwarder {
    pub(super) settings: Settings,
    /// In the order of their precedence.
    routes: Vec<Route>,
    /// The addresses of each route.
    pub(super) groups: Vec<UpstreamGroup>,
    /// The protocols that the connections of each route may change to.
    upgrades: Vec<Upgrades>,
    /// The policy of each route for paths with several spellings.
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
            let upstream = |(place, address): (usize, &Address)| {
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

    /// Makes the path of a request the one that rules, routes and upstreams are to see.
    #[inline]
    pub(super) fn normalize_path<B>(&self, request: &mut Request<B>) -> Result<(), Failure> {
        // A canonical path, as nearly all are, is what every policy leaves as it is.
        match PathPolicy::Strict.apply(request.uri().path()) {
            Ok(_) => Ok(()),
            Err(_) => self.settle_odd_path(request),
        }
    }

    #[cold]
    fn settle_odd_path<B>(&self, request: &mut Request<B>) -> Result<(), Failure> {
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

    /// The shedder of each route, if load is shed.
    pub(super) fn shedding(&self) -> Vec<Arc<RouteShedding>> {
        self.groups.iter().filter_map(|group| group.shedding.clone()).collect()
    }
}

impl tower_service::Service<Request<SentBody>> for Forward {
    type Response = Response<ForwardBody>;
    type Error = ClientGone;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ForwardBody>, ClientGone>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ClientGone>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<SentBody>) -> Self::Future {
        match self.prepare(request) {
            Ok(mut in_flight) => Box::pin(async move { in_flight.run().await }),
            Err(response) => Box::pin(ready(Ok(*response))),
        }
    }
}

/// The client has gone away in the middle of its request, or what it sent made no sense. There is no client to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client broke off in the middle of its request")]
pub(super) struct ClientGone;

/// A request on its way to an upstream.
///
/// Its future is moved to where it is polled, and each local variable that lives across an `await` makes that move dearer. So the
/// state is kept here, once, and changed in place.
struct ForwardedRequest {
    context: Arc<ConnContext>,
    /// The number of the group that it goes to.
    group: usize,
    head: Parts,
    body: RequestBody,
    host: HeaderValue,
    /// The form in which the client is told of a failure.
    form: FailureForm,
    /// The client's connection, if it is to speak another protocol. In a box, because most are not.
    client: Option<Box<Upgrading>>,
}

/// A client's connection that may change to another protocol.
struct Upgrading {
    connection: OnUpgrade,
    hold: Option<UpgradeHold>,
    /// The protocols that the upstream is asked for.
    asked: HeaderValue,
}

impl Forward {
    pub(super) fn new(forwarder: &Arc<Forwarder>, downstream: &Arc<Downstream>) -> Forward {
        let (forwarder, downstream) = (Arc::clone(forwarder), Arc::clone(downstream));
        Forward(Arc::new(ConnContext { forwarder, downstream }))
    }

    /// Makes a request ready to be sent, or returns the response to one that cannot be.
    fn prepare(&self, request: Request<SentBody>) -> Result<ForwardedRequest, Box<Response<ForwardBody>>> {
        let ConnContext { forwarder, downstream } = &*self.0;
        let (mut head, body) = request.into_parts();
        let form = FailureForm::of(&head.headers, &downstream.style.answers.bodies);
        if downstream.is_in_doubt() || head::has_unclear_length(&head) || head::has_blanks_around_a_value(&head) {
            let form = FailureForm::Problem { has_page: false };
            return Err(Box::new(last(failure_response(Failure::Ambiguous, form), head.version)));
        }
        if head.method == Method::CONNECT {
            return Err(Box::new(failure_response(Failure::Connect, form)));
        }
        let Some(host) = head::host(&head.uri, &head.headers) else {
            return Err(Box::new(last(failure_response(Failure::NoHost, form), head.version)));
        };
        let Some(group) = forwarder.group(&head.uri, &host) else {
            return Err(Box::new(failure_response(Failure::NoRoute, form)));
        };
        // A gRPC stream may be silent for long: the timers of responses end it when neither end sends anything.
        let pace = (!is_grpc(&head.headers)).then(|| forwarder.settings.body_pace());
        let wanted = head::request(&mut head, &host, downstream, &forwarder.settings);
        let hold = head.extensions.remove::<UpgradeHold>();
        let client = wanted.and_then(|wanted| {
            // Without the others, which the client can do without: an upgrade is an offer (RFC 9110, 7.8).
            let asked = forwarder.upgrades[group].allowed(&wanted)?;
            let connection = head.extensions.remove::<OnUpgrade>()?;
            head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            head.headers.insert(UPGRADE, asked.clone());
            Some(Box::new(Upgrading { connection, hold, asked }))
        });
        let context = Arc::clone(&self.0);
        Ok(ForwardedRequest { context, group, head, body: RequestBody::new(body, pace), host, form, client })
    }
}

impl ForwardedRequest {
    /// Sends the request, and returns the response.
    async fn run(&mut self) -> Result<Response<ForwardBody>, ClientGone> {
        let upload = self.body.upload();
        let mut passed = self.pass().await;
        if let Ok(response) = &mut passed {
            let origin = &mut response.body_mut().origin;
            (origin.route, origin.upload) = (Some(self.group), upload);
        }
        passed
    }

    async fn pass(&mut self) -> Result<Response<ForwardBody>, ClientGone> {
        let ForwardedRequest { context, group, head, body, host, form, client } = self;
        let ConnContext { forwarder, downstream } = &**context;
        match forwarder.exchange(&forwarder.groups[*group], head, body, host).await {
            Ok(answer) => {
                let responded = forwarder.respond(answer, client.take(), downstream);
                Ok(responded.unwrap_or_else(|why| upstream_failure(why, *form)))
            }
            Err(ExchangeError::Gone(gone)) => Err(gone),
            Err(ExchangeError::Failed { why, is_unseen }) => {
                if !is_unseen || !forwarder.settings.refund_unserved {
                    return Ok(upstream_failure(why, *form));
                }
                let mut response = failure_response(why, *form);
                response.extensions_mut().insert(Unserved);
                Ok(response)
            }
        }
    }
}

/// The gateway's own answer to a request that failed.
#[cold]
pub(super) fn failure_response(why: Failure, form: FailureForm) -> Response<ForwardBody> {
    why.response(form).map(|text| ForwardBody::failure(text, why.cause()))
}

/// The answer to a failure after an upstream may have seen the request.
#[cold]
fn upstream_failure(why: Failure, form: FailureForm) -> Response<ForwardBody> {
    let mut response = failure_response(why, form);
    response.extensions_mut().insert(Unanswered);
    response
}

/// Marks the response as the last on its connection, because its request was ambiguous. HTTP/2 connections stay open: there
/// no request can be taken for a part of another.
fn last(mut response: Response<ForwardBody>, version: Version) -> Response<ForwardBody> {
    if version != Version::HTTP_2 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

impl Forwarder {
    /// The number of the route that a request takes.
    pub(super) fn route_of<B>(&self, request: &Request<B>) -> Option<usize> {
        self.group(request.uri(), &head::host(request.uri(), request.headers())?)
    }

    /// The number of the group that takes a request.
    fn group(&self, target: &Uri, host: &HeaderValue) -> Option<usize> {
        let host = without_port(host.to_str().ok()?);
        route::find(&self.routes, host, target.path())
    }

    /// The client's response.
    fn respond(
        &self,
        UpstreamAnswer { mut response, conn, mut permit, took }: UpstreamAnswer,
        client: Option<Box<Upgrading>>,
        downstream: &Downstream,
    ) -> Result<Response<ForwardBody>, Failure> {
        let came_as = mem::replace(response.version_mut(), Version::HTTP_11);
        let protocol = head::response(response.headers_mut()).map_err(|why| {
            tracing::warn!(upstream = %permit.upstream().address, "a response of an upstream is not passed on: {why}");
            Failure::Broken
        })?;
        if self.settings.via {
            head::add_via(response.headers_mut(), came_as);
        }
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let (head, body) = response.into_parts();
            let upstream = Arc::clone(permit.upstream().counts());
            let mut body = ForwardBody::from_upstream(body, conn, permit, self.settings.stall_time);
            (body.origin.upstream, body.origin.upstream_time) = (Some(upstream), took);
            return Ok(Response::from_parts(head, body));
        }
        let (Some(client), Some(protocol), Some(conn)) = (client, protocol, conn) else {
            return Err(Failure::Unasked);
        };
        let Upgrading { connection, hold, asked } = *client;
        if !upgrades::is_among(&protocol, &asked) {
            return Err(Failure::Unasked);
        }
        downstream.become_tunnel();
        permit.leave_adaptive_limit();
        let upstream = Arc::clone(permit.upstream().counts());
        downstream.tunnels.open(connection, conn, self.settings.tunnel_idle_time, (permit, hold));
        let (mut head, _) = response.into_parts();
        let mut body = ForwardBody::text(bytes::Bytes::new());
        (body.origin.upstream, body.origin.upstream_time) = (Some(upstream), took);
        head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        head.headers.insert(UPGRADE, protocol);
        Ok(Response::from_parts(head, body))
    }
}
