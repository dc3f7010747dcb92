//! Sends a request to an upstream, and retries on other upstreams until there is a response.

use std::future::poll_fn;
use std::mem;
use std::task::Poll;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderValue, Method, Request, Response};
use hyper::body::Incoming;
use tidegate_core::Clock;
use tidegate_core::adaptive::SampleOutcome;
use tidegate_tower::{Unserved, request_priority, sample_outcome};

use super::Settings;
use super::dial::UpstreamProtocol;
use super::failure::{ClientGone, Failure};
use super::forwarded_body::{BodyProgress, ForwardedBody, Upload};
use super::forwarder::Forwarder;
use super::head;
use super::retry_head::{RetryHead, empty_head};
use super::upstream::{ConnectError, Http2Sender, Transport, Upstream, UpstreamPermit};
use super::upstream_conn::{SendError, UpstreamConn, whose_delay};
use super::upstream_group::{Tried, UpstreamGroup};

/// A request without a response.
pub(super) enum ExchangeError {
    Failed {
        why: Failure,
        /// Whether no upstream can have received the request.
        is_unseen: bool,
    },
    Gone(ClientGone),
}

/// An upstream's response.
pub(super) struct UpstreamAnswer {
    pub(super) response: Response<Incoming>,
    /// Connection of the response. HTTP/2 connections are shared, and not included.
    pub(super) conn: Option<Box<UpstreamConn>>,
    pub(super) permit: UpstreamPermit,
    /// Time until the response began.
    pub(super) took: Duration,
}

impl Forwarder {
    /// Sends the request, with retries, until there is a response. Takes `head` and `body`.
    pub(super) async fn exchange(
        &self,
        group: &UpstreamGroup,
        head: &mut Parts,
        body: &mut ForwardedBody,
        host: &HeaderValue,
    ) -> Result<UpstreamAnswer, ExchangeError> {
        group.budget.deposit();
        // Whether the request can be sent twice without harm.
        let is_repeatable = body.is_none() && is_idempotent(&head.method);
        // `None` for requests that are never refused under overload, such as health checks.
        let is_exempt = self.settings.overload_exempt.covers(head);
        let priority = (!is_exempt).then(|| request_priority(&head.method, &head.extensions));
        if let (Some(shedding), Some(priority)) = (&group.shedding, priority)
            && !shedding.admits(head, priority, group.is_overloaded(priority))
        {
            return Err(ExchangeError::Failed { why: Failure::Shed, is_unseen: true });
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
        // No byte has been sent yet.
        let mut is_unseen = true;
        let mut wants_new = false;
        loop {
            let Some((number, upstream)) = group.choose(&tried, || self.clock.now()) else {
                return Err(ExchangeError::Failed { why: Failure::NoneHealthy, is_unseen });
            };
            let Some(permit) = upstream.begin(priority) else {
                return Err(ExchangeError::Failed { why: Failure::Overloaded, is_unseen });
            };
            let transport = match upstream.transport(wants_new).await {
                Ok(transport) => transport,
                Err(error) => {
                    self.failed(upstream, &error);
                    if matches!(error, ConnectError::TooSlow) {
                        permit.record(|| SampleOutcome::Dropped);
                    }
                    tried.push(number);
                    if may_retry() {
                        continue;
                    }
                    let why = match error {
                        ConnectError::TooSlow => Failure::SlowToConnect,
                        ConnectError::Io(_) | ConnectError::Handshake(_) => Failure::Unreachable,
                    };
                    return Err(ExchangeError::Failed { why, is_unseen });
                }
            };
            let (protocol, is_new) = match &transport {
                Transport::Own { is_new, .. } => (UpstreamProtocol::Http1, *is_new),
                Transport::Shared { is_new, .. } => (UpstreamProtocol::Http2, *is_new),
            };
            head::address_to(head, host, &upstream.address, protocol, self.settings.keep_host);
            let retry_head =
                if is_repeatable && retries_left(&self.settings, &tried) { RetryHead::of(head) } else { None };
            let upload = body.upload();
            let request = Request::from_parts(mem::replace(head, empty_head()), mem::take(body));
            let begun = self.metrics.instant();
            let sent = match transport {
                Transport::Own { mut conn, .. } => conn.send(request).await.map(|response| (response, Some(conn))),
                Transport::Shared { sender, .. } => {
                    let sending = self.send_among_others(sender, request, upload.as_deref());
                    Box::pin(sending).await.map(|response| (response, None))
                }
            };
            match sent {
                Ok((response, conn)) => {
                    let took = self.metrics.since(begun);
                    upstream.counts().responded(took);
                    permit.record(|| sample_outcome(response.status(), response.headers()));
                    if upstream.health.succeeded() {
                        tracing::info!(upstream = %upstream.address, "an upstream answers again");
                    }
                    return Ok(UpstreamAnswer { response, conn, permit, took });
                }
                Err(SendError::Unsent(request)) => {
                    // The pooled connection was already closed, and nothing was sent.
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
                                permit.record(|| SampleOutcome::Dropped);
                            }
                            why
                        }
                        SendError::Broken(_) | SendError::Unsent(_) => match upload.as_deref().map(Upload::progress) {
                            Some(BodyProgress::Broken) => return Err(ExchangeError::Gone(ClientGone)),
                            Some(BodyProgress::TooSlow) => Failure::ClientStalls,
                            _ => Failure::Broken,
                        },
                    };
                    is_unseen = false;
                    // An idle connection may close just as it is used. This does not count as a failure of the
                    // upstream. A timeout on a shared connection does: requests go on using that connection, so a new
                    // one, on which a timeout would count, may never follow.
                    let is_failure = is_new || (protocol == UpstreamProtocol::Http2 && why != Failure::Broken);
                    if is_failure && why != Failure::ClientStalls {
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

    /// Records a failure of an address.
    fn failed(&self, upstream: &Upstream, error: &dyn std::fmt::Display) {
        let upstream_address = &upstream.address;
        if let Some(backoff) = upstream.health.failed(self.clock.now(), self.settings.backoff_time.into()) {
            let backoff = Duration::from(backoff);
            tracing::warn!(upstream = %upstream_address, %error, ?backoff, "upstream failed: skipped while other upstreams are available");
        } else {
            tracing::debug!(upstream = %upstream_address, %error, "upstream failed");
        }
    }

    /// Sends the request on a shared connection.
    async fn send_among_others(
        &self,
        mut sender: Http2Sender,
        request: Request<ForwardedBody>,
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
            // The connection may have sent the request by now, or may still return it unsent.
            Unserved::doubt();
            Poll::Pending
        });
        tokio::select! {
            biased;
            sent = sender.try_send_request(request) => sent.map_err(SendError::from),
            error = too_slow => Err(error),
            never = in_flight => never,
        }
    }
}

/// Whether repeating the request has the same effect as sending it once (RFC 9110, section 9.2.2).
fn is_idempotent(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::PUT, Method::DELETE, Method::OPTIONS, Method::TRACE].contains(method)
}

fn retries_left(settings: &Settings, tried: &Tried) -> bool {
    tried.len() < settings.retries as usize
}
