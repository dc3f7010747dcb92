//! Failures between a client and an upstream: which side is at fault, and the response.

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, VARY, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tidegate_http::{DenialBodies, PROBLEM_JSON, REDUCED_CAPACITY, failure_page, is_grpc};
use tidegate_rules::PathRefusal;

use crate::identity::jwt::TokenRefusal;
use crate::metrics::FailureCause;
use crate::problem::{FaultParty, Problem};

/// Reason why no upstream answered a request. Addresses of upstreams appear in the log, but never in responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// No route matches.
    NoRoute,
    /// The method is `CONNECT`, which this proxy does not support.
    Connect,
    /// The request does not state its host.
    NoHost,
    /// The request is ambiguous.
    Ambiguous,
    /// The request's path is refused.
    Path(PathRefusal),
    /// The request's token is missing or invalid.
    Token(TokenRefusal),
    /// The request has more than one `Authorization` line.
    SeveralCredentials,
    /// The client stopped sending in the middle of its request.
    ClientStalls,
    /// No connection to the upstream could be made.
    Unreachable,
    /// No connection to the upstream was established in time.
    SlowToConnect,
    /// No address of the upstream is healthy.
    NoneHealthy,
    /// The upstream's concurrency limit is reached.
    Overloaded,
    /// The request was shed under overload, in favour of more important ones.
    Shed,
    /// The upstream closed the connection, or its response was malformed.
    Broken,
    /// The upstream did not begin its response in time.
    SlowToRespond,
    /// The upstream switched to another protocol without being asked.
    Unasked,
}

/// Format of the response to a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureForm {
    /// A gRPC status.
    Grpc,
    /// An HTML page.
    Page,
    /// A problem document in JSON. Clients that accept HTML get a page if `has_page`.
    Problem { has_page: bool },
}

impl FailureForm {
    /// The format for a request with these headers.
    pub(super) fn of(request: &HeaderMap, bodies: &DenialBodies) -> FailureForm {
        if is_grpc(request) {
            FailureForm::Grpc
        } else if bodies.is_page_for(request) {
            FailureForm::Page
        } else {
            FailureForm::Problem { has_page: bodies.html.is_some() }
        }
    }
}

impl Failure {
    fn description(self) -> (StatusCode, FaultParty, &'static str) {
        match self {
            Failure::NoRoute => {
                (StatusCode::NOT_FOUND, FaultParty::Client, "There is no service for this host and path.")
            }
            Failure::Connect => {
                let detail = "This is a gateway to certain services; it connects to nothing else.";
                (StatusCode::METHOD_NOT_ALLOWED, FaultParty::Client, detail)
            }
            Failure::NoHost => (
                StatusCode::BAD_REQUEST,
                FaultParty::Client,
                "The request must have exactly one Host, which is a name or an address.",
            ),
            Failure::Ambiguous => {
                let detail = "The framing of the request is ambiguous: several lengths, a length with zeros in front, a \
                              transfer coding other than chunked, or lines that end without a carriage return.";
                (StatusCode::BAD_REQUEST, FaultParty::Client, detail)
            }
            Failure::Path(why) => (StatusCode::BAD_REQUEST, FaultParty::Client, why.reason()),
            Failure::Token(why) => match why.challenge() {
                Some(_) => (StatusCode::UNAUTHORIZED, FaultParty::Client, why.detail()),
                None => (StatusCode::SERVICE_UNAVAILABLE, FaultParty::Gateway, why.detail()),
            },
            Failure::SeveralCredentials => {
                let detail = "The request has more than one Authorization header: send one.";
                (StatusCode::BAD_REQUEST, FaultParty::Client, detail)
            }
            Failure::ClientStalls => {
                (StatusCode::REQUEST_TIMEOUT, FaultParty::Client, "The request's body took too long to arrive.")
            }
            Failure::Unreachable => {
                (StatusCode::BAD_GATEWAY, FaultParty::Upstream, "The service behind this gateway cannot be reached.")
            }
            Failure::SlowToConnect => {
                let detail = "The service behind this gateway cannot be reached in time.";
                (StatusCode::GATEWAY_TIMEOUT, FaultParty::Upstream, detail)
            }
            Failure::NoneHealthy => {
                (StatusCode::SERVICE_UNAVAILABLE, FaultParty::Upstream, "The service behind this gateway is unhealthy.")
            }
            Failure::Overloaded => {
                let detail = "The service behind this gateway is overloaded; the request was not passed on.";
                (StatusCode::SERVICE_UNAVAILABLE, FaultParty::Upstream, detail)
            }
            Failure::Shed => {
                let detail = "There are more requests than can be served, and others have a higher priority; the request was not passed on.";
                (StatusCode::SERVICE_UNAVAILABLE, FaultParty::Gateway, detail)
            }
            Failure::Broken => {
                let detail = "The service behind this gateway closed the connection before it answered, or its answer is invalid.";
                (StatusCode::BAD_GATEWAY, FaultParty::Upstream, detail)
            }
            Failure::SlowToRespond => {
                let detail = "The service behind this gateway did not answer in time.";
                (StatusCode::GATEWAY_TIMEOUT, FaultParty::Upstream, detail)
            }
            Failure::Unasked => {
                let detail = "The service behind this gateway switched to a protocol that was not requested.";
                (StatusCode::BAD_GATEWAY, FaultParty::Upstream, detail)
            }
        }
    }

    /// Name in metrics and in the access log.
    pub(super) const fn cause(self) -> FailureCause {
        match self {
            Failure::NoRoute => FailureCause::NoRoute,
            Failure::Connect => FailureCause::ConnectMethod,
            Failure::NoHost => FailureCause::BadHost,
            Failure::Ambiguous | Failure::SeveralCredentials => FailureCause::AmbiguousRequest,
            Failure::Path(_) => FailureCause::RefusedPath,
            Failure::Token(why) if why.challenge().is_some() => FailureCause::InvalidToken,
            Failure::Token(_) => FailureCause::NoTokenKeys,
            Failure::ClientStalls => FailureCause::RequestTimeout,
            Failure::Unreachable => FailureCause::ConnectFailed,
            Failure::SlowToConnect => FailureCause::ConnectTimeout,
            Failure::NoneHealthy => FailureCause::NoHealthyUpstream,
            Failure::Overloaded => FailureCause::Overloaded,
            Failure::Shed => FailureCause::Shed,
            Failure::Broken => FailureCause::UpstreamReset,
            Failure::SlowToRespond => FailureCause::ResponseTimeout,
            Failure::Unasked => FailureCause::UnexpectedUpgrade,
        }
    }

    /// The response to the client.
    pub(super) fn response(self, form: FailureForm) -> Response<Bytes> {
        let (status, fault, detail) = self.description();
        let mut headers = HeaderMap::new();
        let text = match form {
            FailureForm::Grpc => return self.grpc(),
            FailureForm::Page => failure_page(status, &detail, &mut headers),
            FailureForm::Problem { .. } => {
                headers.insert(CONTENT_TYPE, PROBLEM_JSON);
                let problem = Problem::new(status, detail).fault(fault);
                let problem = if self.is_overload() { problem.of_kind(REDUCED_CAPACITY) } else { problem };
                problem.to_json()
            }
        };
        if form != (FailureForm::Problem { has_page: false }) {
            headers.insert(VARY, HeaderValue::from_static("Accept"));
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, self.retry_after());
        }
        if let Failure::Token(why) = self
            && let Some(challenge) = why.challenge()
        {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        if status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"));
        }
        let mut response = Response::new(text);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }

    /// Whether the cause is a lack of capacity.
    const fn is_overload(self) -> bool {
        matches!(self, Failure::Overloaded | Failure::Shed)
    }

    /// Seconds to wait before a retry. Randomised under overload, so that clients do not all return at once.
    fn retry_after(self) -> HeaderValue {
        match self {
            Failure::Overloaded | Failure::Shed => HeaderValue::from(fastrand::u16(1..=5)),
            _ => HeaderValue::from_static("1"),
        }
    }

    /// The response to a gRPC call.
    fn grpc(self) -> Response<Bytes> {
        let (_, _, detail) = self.description();
        let status = match self {
            Failure::NoRoute | Failure::Connect => "12",
            Failure::NoHost | Failure::Ambiguous | Failure::Path(_) | Failure::SeveralCredentials => "3",
            Failure::Token(why) if why.challenge().is_some() => "16",
            Failure::Token(_) => "14",
            Failure::ClientStalls => "1",
            Failure::SlowToConnect | Failure::SlowToRespond => "4",
            Failure::Unreachable
            | Failure::NoneHealthy
            | Failure::Overloaded
            | Failure::Shed
            | Failure::Broken
            | Failure::Unasked => "14",
        };
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from_static(status));
        headers.insert("grpc-message", HeaderValue::from_static(detail));
        response
    }
}

/// The client disconnected in the middle of its request, or sent an invalid body. No response can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client disconnected in the middle of its request")]
pub(super) struct ClientGone;
