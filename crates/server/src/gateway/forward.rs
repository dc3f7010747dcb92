//! Forwards requests to upstreams, and returns their responses.

use std::future::{Future, poll_fn, ready};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONNECTION, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use tidegate_core::adaptive::SampleOutcome;
use tidegate_core::{Clock, SystemClock};
use tidegate_http::{apply_path_policy, is_grpc};
use tidegate_rules::PathPolicy;
use tidegate_rules::syntax::without_port;
use tidegate_tower::{Unanswered, Unserved, UpgradeHold, request_priority, sample_outcome};

use super::Settings;
use super::address::Address;
use super::budget::RetryBudget;
use super::dial::Protocol;
use super::downstream::Downstream;
use super::failure::{Failure, FailureForm};
use super::head;
use super::request_body::{Progress, RequestBody, Sent, Upload};
use super::response_body::ForwardBody;
use super::retry_head::{RetryHead, empty_head};
use super::route::{self, Route};
use super::shedding::RouteShedding;
use super::upgrades::{self, Upgrades};
use super::upstream::{ConnectError, Shared, Transport, Upstream, UpstreamPermit};
use super::upstream_conn::{SendError, UpstreamConn, whose_delay};
use super::upstream_group::{Tried, UpstreamGroup};
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
    settings: Settings,
    /// In the order of their precedence.
    routes: Vec<Route>,
    /// The addresses of each route.
    groups: Vec<UpstreamGroup>,
    /// The protocols that the connections of each route may change to.
    upgrades: Vec<Upgrades>,
    /// The policy of each route for paths with several spellings.
    paths: Vec<PathPolicy>,
    metrics: Arc<GatewayMetrics>,
    clock: SystemClock,
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
    pub(super) fn settle_path<B>(&self, request: &mut Request<B>) -> Result<(), Failure> {
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

impl tower_service::Service<Request<Sent>> for Forward {
    type Response = Response<ForwardBody>;
    type Error = ClientGone;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ForwardBody>, ClientGone>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ClientGone>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Sent>) -> Self::Future {
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

/// A request without an answer.
enum ExchangeError {
    Failed {
        why: Failure,
        /// Whether no upstream can have seen it.
        is_unseen: bool,
    },
    Gone(ClientGone),
}

/// An upstream's response.
struct UpstreamAnswer {
    response: Response<Incoming>,
    /// The connection that it comes on, if it is this request's own.
    conn: Option<Box<UpstreamConn>>,
    permit: UpstreamPermit,
    /// The time until the response began.
    took: Duration,
}

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
    fn prepare(&self, request: Request<Sent>) -> Result<ForwardedRequest, Box<Response<ForwardBody>>> {
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
                if !is_unseen || !forwarder.settings.give_back {
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

/// A response after which the connection is closed: who sent the request may have meant another by it. A connection of
/// HTTP/2 goes on, because there no request can be taken for a part of another.
fn last(mut response: Response<ForwardBody>, version: Version) -> Response<ForwardBody> {
    if version != Version::HTTP_2 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

impl Forwarder {
    /// The number of the group that takes a request.
    fn group(&self, target: &Uri, host: &HeaderValue) -> Option<usize> {
        let host = without_port(host.to_str().ok()?);
        route::find(&self.routes, host, target.path())
    }

    /// Sends the request, again if need be, until there is an answer. Takes head and body.
    async fn exchange(
        &self,
        group: &UpstreamGroup,
        head: &mut Parts,
        body: &mut RequestBody,
        host: &HeaderValue,
    ) -> Result<UpstreamAnswer, ExchangeError> {
        group.budget.deposit();
        // Whether it does no harm to send it twice, and whether it can be.
        let is_repeatable = body.is_none() && is_idempotent(&head.method);
        let mut priority = Some(request_priority(&head.method, &head.extensions));
        if let Some(shedding) = &group.shedding {
            priority = priority.filter(|_| !shedding.is_exempt(head));
            if priority.is_some_and(|priority| !shedding.admits(head, priority, group.is_overloaded())) {
                return Err(ExchangeError::Failed { why: Failure::Shed, is_unseen: true });
            }
        }
        let mut tried = Tried::new();
        let mut retries = self.settings.retries;
        let mut may_retry = || {
            let may = retries > 0 && group.budget.withdraw();
            retries = retries.saturating_sub(1);
            if may {
                group.counts.retried();
            }
            may
        };
        // Not a byte was sent so far.
        let mut is_unseen = true;
        let mut wants_new = false;
        loop {
            let Some((number, upstream)) = group.choose(&tried, || self.clock.now()) else {
                return Err(ExchangeError::Failed { why: Failure::NoneWell, is_unseen });
            };
            let Some(permit) = upstream.begin(priority) else {
                return Err(ExchangeError::Failed { why: Failure::Overloaded, is_unseen });
            };
            let transport = match upstream.transport(wants_new).await {
                Ok(transport) => transport,
                Err(error) => {
                    self.failed(upstream, &error);
                    tried.push(number);
                    if may_retry() {
                        continue;
                    }
                    let why = match error {
                        ConnectError::TooSlow => {
                            permit.record(SampleOutcome::Dropped);
                            Failure::SlowToConnect
                        }
                        ConnectError::Io(_) | ConnectError::Handshake(_) => Failure::Unreachable,
                    };
                    return Err(ExchangeError::Failed { why, is_unseen });
                }
            };
            let (protocol, is_new) = match &transport {
                Transport::Own { is_new, .. } => (Protocol::Http1, *is_new),
                Transport::Shared(_) => (Protocol::Http2, true),
            };
            head::address_to(head, host, &upstream.address, protocol, self.settings.keep_host);
            let retry_head =
                if is_repeatable && retries_left(&self.settings, &tried) { RetryHead::of(head) } else { None };
            let upload = body.upload();
            let request = Request::from_parts(mem::replace(head, empty_head()), mem::take(body));
            let begun = self.metrics.instant();
            let sent = match transport {
                Transport::Own { mut conn, .. } => conn.send(request).await.map(|response| (response, Some(conn))),
                Transport::Shared(shared) => {
                    let sending = self.send_among_others(shared, request, upload.as_deref());
                    Box::pin(sending).await.map(|response| (response, None))
                }
            };
            match sent {
                Ok((response, conn)) => {
                    let took = self.metrics.since(begun);
                    upstream.counts().responded(took);
                    permit.record(sample_outcome(response.status()));
                    if upstream.health.succeeded() {
                        tracing::info!(upstream = %upstream.address, "an upstream answers again");
                    }
                    return Ok(UpstreamAnswer { response, conn, permit, took });
                }
                Err(SendError::Unsent(request)) => {
                    // Nothing happened but that an old connection was found closed.
                    (*head, *body) = request.into_parts();
                    wants_new = true;
                    if is_new {
                        tried.push(number);
                        if !may_retry() {
                            return Err(ExchangeError::Failed { why: Failure::Unreachable, is_unseen });
                        }
                    }
                }
                Err(error) => {
                    let why = match error {
                        SendError::TooSlow(why) => {
                            if why == Failure::SlowToRespond {
                                permit.record(SampleOutcome::Dropped);
                            }
                            why
                        }
                        SendError::Broken(_) | SendError::Unsent(_) => match upload.as_deref().map(Upload::look) {
                            Some(Progress::Broken) => return Err(ExchangeError::Gone(ClientGone)),
                            Some(Progress::TooSlow) => Failure::ClientStalls,
                            _ => Failure::Broken,
                        },
                    };
                    is_unseen = false;
                    // An idle connection that is closed just when it is used is no failure of the upstream.
                    if is_new && why != Failure::ClientStalls {
                        self.failed(upstream, &error);
                        tried.push(number);
                    }
                    match retry_head {
                        Some(retry_head) if why == Failure::Broken && may_retry() => *head = retry_head.into_head(),
                        _ => return Err(ExchangeError::Failed { why, is_unseen }),
                    }
                    wants_new = true;
                }
            }
        }
    }

    /// Notes that an address has failed.
    fn failed(&self, upstream: &Upstream, error: &dyn std::fmt::Display) {
        let upstream_address = &upstream.address;
        if let Some(rest) = upstream.health.failed(self.clock.now(), self.settings.rest_time.into()) {
            let rest = Duration::from(rest);
            tracing::warn!(upstream = %upstream_address, %error, ?rest, "an upstream fails: it rests if there are others");
        } else {
            tracing::debug!(upstream = %upstream_address, %error, "an upstream fails");
        }
    }

    /// Sends the request on a connection that others use too.
    async fn send_among_others(
        &self,
        mut shared: Shared,
        request: Request<RequestBody>,
        upload: Option<&Upload>,
    ) -> Result<Response<Incoming>, SendError> {
        let too_slow = async {
            loop {
                tokio::time::sleep(self.settings.response_time).await;
                if let Some(why) = whose_delay(upload) {
                    return SendError::TooSlow(why);
                }
            }
        };
        let in_flight = poll_fn(|_| {
            // The connection may have sent it by now, or may still return it unsent.
            Unserved::doubt();
            Poll::Pending
        });
        tokio::select! {
            biased;
            sent = shared.try_send_request(request) => sent.map_err(SendError::from),
            error = too_slow => Err(error),
            never = in_flight => never,
        }
    }

    /// The client's response.
    fn respond(
        &self,
        UpstreamAnswer { mut response, conn, permit, took }: UpstreamAnswer,
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

/// Whether doing it twice is the same as doing it once (RFC 9110, 9.2.2).
fn is_idempotent(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::PUT, Method::DELETE, Method::OPTIONS, Method::TRACE].contains(method)
}

fn retries_left(settings: &Settings, tried: &Tried) -> bool {
    tried.len() < settings.retries as usize
}
