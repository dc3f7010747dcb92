//! Forwards requests to upstreams, and returns their responses.

use std::future::{Future, ready};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{CONNECTION, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::upgrade::OnUpgrade;
use tidegate_http::is_grpc;
use tidegate_tower::{Shed, Unanswered, Unserved, UpgradeHold};

use super::attempts::{ExchangeError, UpstreamAnswer};
use super::downstream::Downstream;
use super::failure::{ClientGone, Failure, FailureForm};
use super::forwarded_body::{ForwardedBody, SentBody};
use super::forwarder::Forwarder;
use super::head;
use super::response_body::ForwardBody;
use super::upgrades;

/// Forwards the requests of one connection to upstreams. This is the inner service of the middleware.
#[derive(Clone)]
pub(super) struct Forward(Arc<ConnContext>);

/// Context shared by the requests of one connection.
struct ConnContext {
    forwarder: Arc<Forwarder>,
    downstream: Arc<Downstream>,
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

/// A request on its way to an upstream.
///
/// The future is moved to where it is polled, and each local variable that lives across an `await` makes it larger.
/// Keeping the state in this struct avoids copies.
struct ForwardedRequest {
    context: Arc<ConnContext>,
    /// Index of the upstream group.
    group: usize,
    head: Parts,
    body: ForwardedBody,
    host: HeaderValue,
    /// Format of the response to a failure.
    form: FailureForm,
    /// The client's connection if it requests an upgrade. Boxed, because most requests do not.
    client: Option<Box<Upgrading>>,
}

/// A client's connection that may be upgraded.
struct Upgrading {
    connection: OnUpgrade,
    hold: Option<UpgradeHold>,
    /// Protocols offered to the upstream.
    asked: HeaderValue,
}

impl Forward {
    pub(super) fn new(forwarder: &Arc<Forwarder>, downstream: &Arc<Downstream>) -> Forward {
        let (forwarder, downstream) = (Arc::clone(forwarder), Arc::clone(downstream));
        Forward(Arc::new(ConnContext { forwarder, downstream }))
    }

    /// Prepares a request for sending, or returns the response to an invalid one.
    fn prepare(&self, request: Request<SentBody>) -> Result<ForwardedRequest, Box<Response<ForwardBody>>> {
        let ConnContext { forwarder, downstream } = &*self.0;
        let (mut head, body) = request.into_parts();
        let form = FailureForm::of(&head.headers, &downstream.settings.style.answers.bodies);
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
        // A gRPC stream may be idle for long in one direction, so no minimum rate applies: the timeouts of responses
        // end it if neither side sends anything.
        let pace = (!is_grpc(&head.headers)).then(|| forwarder.settings.body_pace());
        let wanted = head::request(&mut head, &host, downstream, &forwarder.settings);
        let hold = head.extensions.remove::<UpgradeHold>();
        let client = wanted.and_then(|wanted| {
            // Protocols that are not allowed are dropped: the client offers an upgrade and does not depend on it (RFC
            // 9110, section 7.8).
            let asked = forwarder.upgrades[group].allowed(&wanted)?;
            let connection = head.extensions.remove::<OnUpgrade>()?;
            head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            head.headers.insert(UPGRADE, asked.clone());
            Some(Box::new(Upgrading { connection, hold, asked }))
        });
        let context = Arc::clone(&self.0);
        Ok(ForwardedRequest { context, group, head, body: ForwardedBody::new(body, pace), host, form, client })
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
                let is_unserved = is_unseen && forwarder.settings.refund_unserved;
                let mut response = failure_response(why, *form);
                let extensions = response.extensions_mut();
                if is_unserved {
                    extensions.insert(Unserved);
                } else {
                    extensions.insert(Unanswered);
                }
                if matches!(why, Failure::Overloaded | Failure::Shed) {
                    extensions.insert(Shed);
                }
                Ok(response)
            }
        }
    }
}

/// The gateway's own response to a failed request.
#[cold]
pub(super) fn failure_response(why: Failure, form: FailureForm) -> Response<ForwardBody> {
    why.response(form).map(|text| ForwardBody::failure(text, why.cause()))
}

/// The response to a failure after an upstream may have received the request.
#[cold]
fn upstream_failure(why: Failure, form: FailureForm) -> Response<ForwardBody> {
    let mut response = failure_response(why, form);
    response.extensions_mut().insert(Unanswered);
    response
}

/// Marks the response as the last on its connection, because its request was ambiguous. HTTP/2 connections stay open:
/// their frames delimit requests unambiguously.
fn last(mut response: Response<ForwardBody>, version: Version) -> Response<ForwardBody> {
    if version != Version::HTTP_2 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

impl Forwarder {
    /// Builds the response to the client.
    fn respond(
        &self,
        UpstreamAnswer { mut response, conn, mut permit, took }: UpstreamAnswer,
        client: Option<Box<Upgrading>>,
        downstream: &Downstream,
    ) -> Result<Response<ForwardBody>, Failure> {
        let came_as = mem::replace(response.version_mut(), Version::HTTP_11);
        let protocol = head::response(response.headers_mut()).map_err(|why| {
            tracing::warn!(upstream = %permit.upstream().address, "a response of an upstream is not forwarded: {why}");
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
