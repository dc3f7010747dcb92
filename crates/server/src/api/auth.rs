//! Forward-auth: a proxy asks on behalf of a client's request.
//!
//! Proxies pass on the headers of the request that they ask about, so a header written by the client looks like one
//! written by the proxy. Each form therefore reads only the headers that its proxy always sets itself, and accepts them
//! only from trusted proxies:
//!
//! | | method and target of the request | denial |
//! |---|---|---|
//! | `/v1/auth` (Caddy, Traefik, HAProxy) | `X-Forwarded-Method`, `-Uri` and `-Host` | status, headers and body for the client |
//! | `/v1/auth/nginx` | `X-Original-Method` and `X-Original-URI`, and `Host` | 403, or 401 without a key: nginx accepts no other |
//!
//! An ambiguous path gets 400 (403 through nginx): a decision on one reading would not cover the others.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::header::{HOST, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tidegate_core::{Clock, Outcome};
use tidegate_http::{Caller, HttpFacts, Reply, ReplyContext, check_asterisk, is_plain_host, path_of_target};
use tidegate_rules::{Mode, Ruling};

use super::auth_log::{AskedAbout, LoggedAuth};
use super::{Api, Settings};
use crate::identity::jwt::TokenRefusal;
use crate::identity::{basic_user, has_several_credentials};
use crate::listen::PeerAddress;
use crate::metrics::FailureCause;
use crate::problem::Problem;

const X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");
const X_ORIGINAL_URI: HeaderName = HeaderName::from_static("x-original-uri");
/// Header with the status for the client. nginx does not pass on the status itself.
const X_TIDEGATE_STATUS: HeaderName = HeaderName::from_static("x-tidegate-status");

/// Headers in which a proxy describes the request.
struct Form {
    method: HeaderName,
    target: HeaderName,
    host: Option<HeaderName>,
}

const FORWARDED: Form = Form { method: X_FORWARDED_METHOD, target: X_FORWARDED_URI, host: Some(X_FORWARDED_HOST) };
const NGINX: Form = Form { method: X_ORIGINAL_METHOD, target: X_ORIGINAL_URI, host: None };

pub(super) async fn forwarded(
    State(api): State<Arc<Api>>,
    Extension(peer): Extension<PeerAddress>,
    request: Request,
) -> Response {
    match api.authorize(&request.into_parts().0, peer, &FORWARDED).await {
        Ok(Authorized { response, .. }) => response,
        Err(problem) => problem.into_response(),
    }
}

pub(super) async fn nginx(
    State(api): State<Arc<Api>>,
    Extension(peer): Extension<PeerAddress>,
    request: Request,
) -> Response {
    match api.authorize(&request.into_parts().0, peer, &NGINX).await {
        Ok(Authorized { mut response, is_unidentified, .. }) => {
            let status = response.status();
            response.headers_mut().insert(X_TIDEGATE_STATUS, HeaderValue::from(status.as_u16()));
            *response.status_mut() = match status {
                StatusCode::OK => StatusCode::OK,
                _ if is_unidentified => StatusCode::UNAUTHORIZED,
                _ => StatusCode::FORBIDDEN,
            };
            response
        }
        Err(problem) => problem.into_response(),
    }
}

/// Response for the client.
struct Authorized {
    response: Response,
    /// The request lacks a part of a key or a valid token, so the client is not identified.
    is_unidentified: bool,
    /// Reason why the request was denied before any rule was evaluated.
    cause: Option<FailureCause>,
}

impl Authorized {
    fn denied(cause: FailureCause, status: StatusCode, detail: String) -> Authorized {
        let problem = Problem::new(status, detail);
        let is_temporary = status == StatusCode::SERVICE_UNAVAILABLE;
        let response = if is_temporary { problem.may_retry() } else { problem }.into_response();
        Authorized { response, is_unidentified: false, cause: Some(cause) }
    }
}

impl Api {
    async fn authorize(&self, request: &Parts, peer: PeerAddress, form: &Form) -> Result<Authorized, Problem> {
        let (peer, settings, headers) = (peer.address.ip(), self.settings(), &request.headers);
        if !settings.proxies.trusts(peer) {
            let detail =
                format!("{peer} is not one of the `trusted_proxies`, so it cannot make requests on behalf of others.");
            return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
        }
        let (method, target) = (single_header(headers, &form.method)?, single_header(headers, &form.target)?);
        let host = form.host.as_ref().map(|name| once(headers, name)).transpose()?.flatten();
        // The proxy passes on the `Host` header as received, and its upstream may use it instead of the forwarded host.
        let said_host = match host {
            Some(host) => Some(host),
            None => once(headers, &HOST)?,
        };
        let address = settings.proxies.client(peer, headers);
        let about = AskedAbout { method: &method, target: &target, host: said_host, address };
        let log = self.access_log.as_deref();
        let mut logged = log.map(|log| LoggedAuth::begin(log, &self.engine, request, about));
        let mut authorized = self.authorize_request(request, about, host, &settings, logged.as_mut()).await;
        if let Some(logged) = &mut logged {
            logged.respond(&authorized.response, authorized.cause);
        }
        let response = &mut authorized.response;
        // The proxy adds the headers of an allowing response to those of the service, which may have CORS headers of its own.
        if response.status() != StatusCode::OK {
            settings.answers.share(headers, response.headers_mut());
        }
        Ok(authorized)
    }

    /// Decides a request. `host` is the value of the form's header for the host.
    async fn authorize_request(
        &self,
        request: &Parts,
        AskedAbout { method, target, host: said_host, address }: AskedAbout<'_>,
        host: Option<&HeaderValue>,
        settings: &Settings,
        mut logged: Option<&mut LoggedAuth<'_>>,
    ) -> Authorized {
        let headers = &request.headers;
        // The proxy passes the path on as it came, whatever is answered here.
        let path = path_of_target(target);
        if let Err(why) = check_asterisk(method, path).and_then(|()| settings.paths.check(path)) {
            return Authorized::denied(FailureCause::RefusedPath, StatusCode::BAD_REQUEST, why.reason().to_owned());
        }
        if said_host.is_some_and(|host| !is_plain_host(host.as_bytes())) {
            let detail = "The request has no valid host. It must name exactly one, as a name or an address.".to_owned();
            return Authorized::denied(FailureCause::BadHost, StatusCode::BAD_REQUEST, detail);
        }
        let is_preflight = method.parse().is_ok_and(|method| settings.answers.passes_preflight(&method, headers));
        if is_preflight {
            return Authorized { response: StatusCode::OK.into_response(), is_unidentified: false, cause: None };
        }
        let mut facts =
            HttpFacts::new(&request.method, &request.uri, headers).method(method).target(target).address(address);
        if let Some(host) = host.and_then(|host| host.to_str().ok()) {
            facts = facts.host(host);
        }
        if settings.basic && has_several_credentials(headers) {
            let detail = "The request has more than one Authorization header: send one.".to_owned();
            return Authorized::denied(FailureCause::AmbiguousRequest, StatusCode::BAD_REQUEST, detail);
        }
        // Later sources take precedence over earlier ones.
        if settings.basic
            && let Some(user) = basic_user(headers)
        {
            facts = facts.user(user);
        }
        facts = settings.auth_headers.identify(headers, facts);
        let identity = match &self.tokens {
            Some(tokens) => match tokens.identify(headers, self.clock.now()) {
                Ok(identity) => identity,
                Err(why) => return challenged(why),
            },
            None => None,
        };
        if let Some(identity) = &identity {
            facts = identity.identify(facts);
        }
        let context = ReplyContext { at: self.clock.now(), caller: Caller::of(&facts), random: fastrand::u64(..) };
        let ruling = self.engine.check(&facts).await;
        // Recorded before the request is held back, because the proxy may disconnect meanwhile.
        if let Some(logged) = &mut logged {
            logged.record_ruling(&facts, &ruling);
        }
        let was_allowed = ruling.is_allowed();
        let ruling = self.hold_back(ruling, settings.hold_time).await;
        if let Some(logged) = logged
            && was_allowed != ruling.is_allowed()
        {
            logged.record_ruling(&facts, &ruling);
        }
        let partitions = settings.style.partition_key.then(|| self.engine.limiter().rules().rules.partitions(&facts));
        let reply = Reply::new(&ruling, &settings.style, context).partitions(partitions.as_ref());
        let response = reply.response_as(&settings.answers.bodies, headers).map(Body::from);
        Authorized { response, is_unidentified: reply.is_unidentified(), cause: None }
    }
}

impl Api {
    /// Waits for a request's turn if a shaper delays it: the proxy forwards it on the response. A request that would
    /// wait for longer than `most`, and so perhaps longer than its proxy does, is denied instead and leaves the queue.
    async fn hold_back(&self, mut ruling: Ruling<'static>, most: Duration) -> Ruling<'static> {
        let Outcome::Allow { delay } = ruling.verdict.outcome else { return ruling };
        if delay <= most.into() {
            if !delay.is_zero() {
                tokio::time::sleep(delay.into()).await;
            }
            return ruling;
        }
        for receipt in std::mem::take(&mut ruling.receipts) {
            let nothing = vec![0; receipt.held.len()];
            if let Err(error) = self.engine.settle(&receipt, &nothing).await {
                tracing::warn!(%error, receipt = %receipt.id, "a refund failed: a request that forward-auth denied stays charged");
            }
        }
        ruling.verdict.outcome = Outcome::Deny { retry_after: delay };
        for ruled in &mut ruling.ruled {
            if ruled.mode == Mode::Enforce && ruled.decision.delay() == delay {
                ruled.decision.outcome = Outcome::Deny { retry_after: delay };
            }
        }
        ruling
    }
}

/// The response to a client whose token is missing or invalid.
fn challenged(why: TokenRefusal) -> Authorized {
    match why.challenge() {
        Some(challenge) => {
            let mut response = Problem::new(StatusCode::UNAUTHORIZED, why.detail()).into_response();
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
            Authorized { response, is_unidentified: true, cause: Some(FailureCause::InvalidToken) }
        }
        None => Authorized::denied(FailureCause::NoTokenKeys, StatusCode::SERVICE_UNAVAILABLE, why.detail().to_owned()),
    }
}

/// Value of a header that the proxy must always set.
fn single_header<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Cow<'h, str>, Problem> {
    let value = once(headers, name)?.map(|value| String::from_utf8_lossy(value.as_bytes()));
    value.filter(|value| !value.is_empty()).ok_or_else(|| {
        let detail = format!("The header {name} is missing: let the proxy set it.");
        Problem::new(StatusCode::BAD_REQUEST, detail)
    })
}

/// A header that a proxy sends once. Several lines are an error: the proxy added its own to the client's.
fn once<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h HeaderValue>, Problem> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (_, Some(_)) => {
            let detail =
                format!("The header {name} occurs more than once: let the proxy replace what clients send there.");
            Err(Problem::new(StatusCode::BAD_REQUEST, detail))
        }
        (line, None) => Ok(line),
    }
}
