//! The HTTP API: facts in, verdicts out, as JSON; and forward-auth for proxies.
//!
//! | | |
//! |---|---|
//! | `POST /v1/check` | decides requests and charges them (`check.rs`, `question.rs`, `answer.rs`, `json_writer.rs`) |
//! | `POST /v1/peek` | the outcome of a check, without charging it |
//! | `POST /v1/reserve` | a check whose costs stay open to be settled |
//! | `POST /v1/settle`, `/v1/release`, `/v1/renew` | completes or extends reservations (`receipts.rs`) |
//! | `/v1/auth`, `/v1/auth/nginx` | forward-auth (`auth.rs`, `auth_log.rs`) |
//! | `GET /healthz`, `/readyz`, `/healthcheck` | liveness and readiness (`health.rs`) |
//! | `GET /openapi.json` | OpenAPI description of this API |
//!
//! Most requests are checks, so they are answered directly on their connection (`connection.rs`, `answer_future.rs`);
//! the router handles all others.

mod answer;
mod answer_future;
mod auth;
mod auth_log;
mod check;
mod client;
mod connection;
mod health;
mod json_values;
mod json_writer;
mod question;
mod receipts;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use http_body::Body as HttpBody;
use tidegate_core::SystemClock;
use tidegate_http::{HeaderStyle, HttpFacts, TrustedProxies};
use tidegate_rules::syntax::text;
use tidegate_rules::yaml::closest;
use tidegate_rules::{PathPolicy, Values};
use tokio_util::sync::CancellationToken;

use self::connection::{ApiConnections, ApiService};
#[cfg(test)]
pub(crate) use self::question::with_facts;
use crate::access_log::AccessLog;
use crate::cross_site::{self, AllowedHosts};
use crate::engine::Engine;
use crate::identity::TokenIdentity;
use crate::listen::{PeerAddress, Stream};
use crate::local_replies::LocalReplies;
use crate::problem::Problem;
use crate::traces::Traces;
use crate::whole_body::WholeBody;

/// The settings of the HTTP API.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Maximum size of a request's head.
    pub header_bytes: usize,
    /// Timeout for receiving a head, and idle timeout of connections.
    pub header_time: Duration,
    /// Maximum size of a body.
    pub body_bytes: usize,
    /// Timeout for receiving a body.
    pub request_time: Duration,
    /// Maximum number of concurrent requests on an HTTP/2 connection.
    pub streams: u32,
    /// Trusted proxies: client addresses and identities are taken from their headers.
    pub proxies: TrustedProxies,
    /// Style of the rate-limit headers that clients receive.
    pub style: HeaderStyle,
    /// The form of denials in forward-auth, and the origins whose scripts may read them.
    pub answers: LocalReplies,
    /// Headers that identify a client, in forward-auth.
    pub auth_headers: AuthHeaders,
    /// Whether the name in `Authorization: Basic` is the user, in forward-auth.
    pub basic: bool,
    /// Accepted host names of requests. Not checked in forward-auth, where a proxy may send the client's host.
    pub hosts: AllowedHosts,
    /// The policy for ambiguous paths, in forward-auth.
    pub paths: PathPolicy,
    /// Whether the server is ready only while its store is available.
    pub store_required: bool,
    /// Maximum time that forward-auth holds a response back for a shaper.
    pub hold_time: Duration,
}

/// Headers in which a proxy identifies a client; `None` for those that it does not send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthHeaders {
    /// The user.
    pub user: Option<HeaderName>,
    /// The API key.
    pub api_key: Option<HeaderName>,
    /// The tier.
    pub tier: Option<HeaderName>,
}

impl AuthHeaders {
    /// Adds the facts from these headers of a trusted proxy. Empty headers add none.
    pub(crate) fn identify<'h>(&self, headers: &'h HeaderMap, mut facts: HttpFacts<'h>) -> HttpFacts<'h> {
        let stated = |name: &Option<HeaderName>| {
            let lines = headers.get_all(name.as_ref()?).iter().map(|line| text(line.as_bytes()));
            Some(lines.collect::<Values<'h>>()).filter(|values| values.iter().any(|value| !value.is_empty()))
        };
        if let Some(user) = stated(&self.user) {
            facts = facts.user(user);
        }
        if let Some(api_key) = stated(&self.api_key) {
            facts = facts.api_key(api_key);
        }
        if let Some(tier) = stated(&self.tier) {
            facts = facts.tier(tier);
        }
        facts
    }

    /// The names of these headers.
    pub(crate) fn names(&self) -> impl Iterator<Item = &HeaderName> {
        [&self.user, &self.api_key, &self.tier].into_iter().flatten()
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            header_bytes: 16 * 1024,
            header_time: Duration::from_secs(20),
            body_bytes: 1024 * 1024,
            request_time: Duration::from_secs(10),
            streams: 128,
            proxies: TrustedProxies::none(),
            style: HeaderStyle::default(),
            answers: LocalReplies::default(),
            auth_headers: AuthHeaders::default(),
            basic: false,
            hosts: AllowedHosts::any(),
            paths: PathPolicy::Canonical,
            store_required: false,
            hold_time: Duration::from_millis(500),
        }
    }
}

/// The state that every request needs.
struct Api {
    engine: Arc<Engine>,
    settings: ArcSwap<Settings>,
    /// Verifies tokens in forward-auth; `None` if they are not verified.
    tokens: Option<TokenIdentity>,
    /// Access log for forward-auth requests, if enabled.
    access_log: Option<Arc<AccessLog>>,
    clock: SystemClock,
    stop: CancellationToken,
}

/// Serves HTTP clients, on any number of connections.
pub struct ApiServer {
    api: Arc<Api>,
    router: Router,
    connections: ArcSwap<ApiConnections>,
}

impl ApiServer {
    /// A server that decides with `engine`. Forward-auth verifies `tokens` if given, and writes to `access_log`. The
    /// server is no longer ready once `stop` is cancelled.
    #[must_use]
    pub fn new(
        engine: Arc<Engine>,
        settings: Settings,
        tokens: Option<TokenIdentity>,
        access_log: Option<Arc<AccessLog>>,
        stop: CancellationToken,
    ) -> ApiServer {
        let connections = ArcSwap::from_pointee(ApiConnections::new(&settings));
        let settings = ArcSwap::from_pointee(settings);
        let api = Arc::new(Api { engine, settings, tokens, access_log, clock: SystemClock::new(), stop });
        ApiServer { router: router(Arc::clone(&api)), api, connections }
    }

    /// Replaces the settings, except [`Settings::basic`], which stays as it is. Settings of connections apply to new
    /// connections, all others from the next request on.
    pub fn apply(&self, settings: Settings) {
        let basic = self.api.settings.load().basic;
        let settings = Settings { basic, ..settings };
        self.connections.store(Arc::new(ApiConnections::new(&settings)));
        self.api.settings.store(Arc::new(settings));
    }

    /// Serves one connection until either side closes it. On `stop`, finishes the current responses and closes it.
    pub async fn serve(&self, stream: Stream, peer: PeerAddress, stop: CancellationToken) {
        let (api, router) = (Arc::clone(&self.api), self.router.clone());
        self.connections.load_full().serve(stream, ApiService::new(peer, api, router), stop).await;
    }
}

type AnswerBody = crate::answer_body::AnswerBody<axum::body::Body>;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

const CHECK: &str = "/v1/check";
const AUTH: &str = "/v1/auth";
const NGINX_AUTH: &str = "/v1/auth/nginx";
const PATHS: [&str; 12] = [
    CHECK,
    "/v1/peek",
    "/v1/reserve",
    "/v1/settle",
    "/v1/release",
    "/v1/renew",
    AUTH,
    NGINX_AUTH,
    "/healthz",
    "/readyz",
    "/healthcheck",
    "/openapi.json",
];

fn router(api: Arc<Api>) -> Router {
    let traces = api.engine.traces().clone();
    let router = Router::new()
        .route(CHECK, post(check::check))
        .route("/v1/peek", post(check::peek))
        .route("/v1/reserve", post(check::reserve))
        .route("/v1/settle", post(receipts::settle))
        .route("/v1/release", post(receipts::release))
        .route("/v1/renew", post(receipts::renew))
        .route(AUTH, any(auth::forwarded))
        .route(NGINX_AUTH, any(auth::nginx))
        .route("/healthz", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/healthcheck", get(health::healthcheck))
        .route("/openapi.json", get(openapi))
        .fallback(nothing_here)
        .method_not_allowed_fallback(not_this_way)
        .with_state(api);
    if traces.is_on() { router.layer(from_fn_with_state(traces, in_the_callers_trace)) } else { router }
}

async fn in_the_callers_trace(State(traces): State<Traces>, request: Request, next: Next) -> Response {
    let headers = request.headers().clone();
    traces.within(&headers, next.run(request)).await
}

async fn openapi() -> Response {
    ([(CONTENT_TYPE, "application/json")], include_str!("openapi.json")).into_response()
}

async fn nothing_here(request: Request) -> Problem {
    let path = request.uri().path();
    let detail = match closest(path, PATHS) {
        Some(meant) => format!("There is nothing at this path. Did you mean {meant}?"),
        None => "There is nothing at this path. /openapi.json lists all paths.".to_owned(),
    };
    Problem::new(StatusCode::NOT_FOUND, detail)
}

async fn not_this_way(request: Request) -> Problem {
    let wanted = if request.uri().path().starts_with("/v1/") { "POST" } else { "GET" };
    let detail = format!("This path takes {wanted}, not {}.", request.method());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
}

impl Api {
    fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// Collects a request's body, within the limits on size and time.
    fn whole<B: HttpBody<Data = Bytes> + Unpin>(&self, body: B) -> WholeBody<B> {
        let settings = self.settings.load();
        WholeBody::new(body, settings.body_bytes, settings.request_time)
    }

    /// Collects a request's body if its content type is JSON.
    async fn body(&self, request: Request) -> Result<Bytes, Problem> {
        cross_site::check_json(request.headers())?;
        Ok(self.whole(request.into_body()).await?)
    }

    /// Checks that the request's host is accepted.
    fn check_host(&self, target: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        if target.path() == AUTH || target.path() == NGINX_AUTH {
            return Ok(());
        }
        Ok(self.settings.load().hosts.check(target, headers)?)
    }
}

/// A JSON response with this text.
fn in_json(text: Vec<u8>) -> Response {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}
