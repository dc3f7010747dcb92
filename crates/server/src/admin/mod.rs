//! Admin API: shows and changes what is in force.
//!
//! | | |
//! |---|---|
//! | `GET /v1/rules` | the rules in force (`rules.rs`) |
//! | `POST /v1/rules/reload`, `/v1/rules/validate` | reads the files again; reports problems in a text |
//! | `GET`, `POST /v1/modes` | switches of single rules or of all, with or without an end (`modes.rs`, `switchboard.rs`) |
//! | `POST /v1/keys/peek`, `/v1/keys/reset`, `GET /v1/keys/top` | single keys (`keys.rs`, `named_key.rs`) |
//! | `GET /v1/regions`, `POST /v1/regions/set`, `/v1/regions/move`, `/v1/regions/resume` | shares of regions (`regions.rs`) |
//! | `GET /v1/config` | the configuration in force, without its secrets |
//! | `GET /v1/view`, `/v1/stream` | live data of the server, once or every second (`stream.rs`) |
//! | `GET /v1/history` | decisions of the last hour (`history.rs`) |
//! | `GET /metrics` | metrics for Prometheus |
//! | `GET /openapi.json` | OpenAPI description of this API (`routes.rs`) |
//! | `GET /lab/` | the lab's page, with a live view of the server ([`lab`]) |
//!
//! Every request needs the token (`token.rs`); without it, not even the existence of a path is revealed. The only
//! exception is the lab's page, which is the same everywhere and asks for the token itself. Other listeners serve none
//! of these paths except the lab.

mod caller;
mod extract;
mod history;
mod keys;
mod modes;
mod named_key;
mod problem;
mod regions;
mod routes;
mod rules;
mod stream;
mod switchboard;
mod token;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Router, http::StatusCode};
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, VARY, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue};
use tidegate_core::{Clock, SystemClock};
use tidegate_redis::fleet::RegionsControl;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::history::RequestHistory;
use self::switchboard::Switchboard;
pub use self::token::{Token, TokenError};
use crate::auth_throttle::AuthThrottle;
use crate::config::KnownFacts;
use crate::cross_site::AllowedHosts;
use crate::engine::Engine;
use crate::json_response::json;
use crate::lab::{self, LabState};
use crate::listen::PeerAddress;
use crate::metrics::{self, ListenerKind};
pub use crate::operator_connection::serve_connection;
use crate::problem::Problem;

/// Maximum size of a body. The largest are rules files to validate.
const MOST_BYTES: usize = 4 * 1024 * 1024;
/// Timeout for receiving a body.
const BODY_TIME: Duration = Duration::from_secs(30);
/// Maximum number of open event streams.
const MOST_STREAMS: usize = 32;

/// Settings of the admin listener.
#[derive(Clone)]
pub struct Settings {
    /// Token that requests must carry.
    pub token: Token,
    /// Whether `/metrics` is served without the token.
    pub open_metrics: bool,
    /// Rules files and folders; empty if there are none.
    pub rules: Vec<PathBuf>,
    /// Whether each folder among them must contain a file.
    pub rules_required: bool,
    /// Facts that the gateway can determine, for warnings about rules; `None` without a gateway.
    pub(crate) known: Option<KnownFacts>,
    /// Whether rules published for a fleet are in force. If so, the files are not read.
    pub are_published: Arc<AtomicBool>,
    /// The configuration in force, with secrets hidden.
    pub configuration: serde_json::Value,
    /// Access to the records of all regions; `None` if their servers are not configured.
    pub regions: Option<RegionsControl>,
    /// The clock by which switches expire, and of the history.
    pub clock: Arc<dyn Clock>,
    /// Ends event streams.
    pub stop: CancellationToken,
    /// Accepted host names of requests.
    pub hosts: AllowedHosts,
}

impl Settings {
    /// Settings with this token, and defaults otherwise.
    #[must_use]
    pub fn new(token: Token) -> Settings {
        Settings {
            token,
            open_metrics: false,
            rules: Vec::new(),
            rules_required: true,
            known: None,
            are_published: Arc::default(),
            configuration: serde_json::Value::Null,
            regions: None,
            clock: Arc::new(SystemClock::new()),
            stop: CancellationToken::new(),
            hosts: AllowedHosts::any(),
        }
    }
}

/// State shared by all requests. Clones refer to the same state.
#[derive(Clone)]
pub struct AdminState(Arc<AdminInner>);

struct AdminInner {
    engine: Arc<Engine>,
    settings: ArcSwap<Settings>,
    switchboard: Switchboard,
    history: RequestHistory,
    streams: Arc<Semaphore>,
    guesses: AuthThrottle,
}

impl AdminState {
    /// Admin API for `engine`.
    #[must_use]
    pub fn new(engine: Arc<Engine>, settings: Settings) -> AdminState {
        let streams = Arc::new(Semaphore::new(MOST_STREAMS));
        let settings = ArcSwap::from_pointee(settings);
        let (switchboard, guesses) = (Switchboard::default(), AuthThrottle::new());
        let history = RequestHistory::default();
        AdminState(Arc::new(AdminInner { engine, settings, switchboard, history, streams, guesses }))
    }

    /// Changes the settings, from the next request on. `change` is called again if another thread changed them
    /// concurrently.
    pub fn change(&self, change: impl Fn(&mut Settings)) {
        self.0.settings.rcu(|present| {
            let mut next = Settings::clone(present);
            change(&mut next);
            next
        });
    }

    /// Call about once a second: ends expired switches, records the history, and ticks the metrics.
    pub fn tick(&self) {
        let AdminInner { engine, settings, switchboard, history, .. } = &*self.0;
        let now = settings.load().clock.now();
        switchboard.expire(engine.limiter(), now);
        history.record(now, engine.metrics().requests());
        engine.metrics().tick(&engine.limiter().rules());
    }
}

/// Routes of the admin API.
pub fn router(state: AdminState) -> Router {
    let lab = LabState::new(lab::Settings { redis: None, is_live: true, stop: state.0.settings.load().stop.clone() });
    routes::router()
        .with_state(state.clone())
        .merge(lab::router(lab))
        .fallback(routes::nothing_here)
        .method_not_allowed_fallback(routes::not_this_way)
        .layer(from_fn_with_state(state, guard))
}

/// Admits requests with the token and an accepted host name.
async fn guard(State(state): State<AdminState>, request: Request, next: Next) -> Response {
    if let Err(misdirected) = state.0.settings.load().hosts.check(request.uri(), request.headers()) {
        return Problem::from(misdirected).into_response();
    }
    let is_open = {
        let path = request.uri().path();
        (state.0.settings.load().open_metrics && path == "/metrics") || lab::is_open(path)
    };
    let shown = request.headers().get(AUTHORIZATION).cloned();
    let client = request.extensions().get::<PeerAddress>().map(|peer| peer.address.ip());
    let is_a_guess = shown.is_some();
    if is_open || state.knows_token(shown, client).await {
        return next.run(request).await;
    }
    let detail = "Send the token: `Authorization: Bearer …`.";
    let mut response = Problem::new(StatusCode::UNAUTHORIZED, detail).into_response();
    let headers = response.headers_mut();
    headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"tidegate admin\""));
    if is_a_guess {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

impl AdminState {
    /// Whether the request has the token. Delays clients that guess.
    async fn knows_token(&self, shown: Option<HeaderValue>, client: Option<IpAddr>) -> bool {
        let AdminInner { engine, settings, guesses, .. } = &*self.0;
        let Some(shown) = shown else { return false };
        if let Some(client) = client {
            let delay = guesses.delay(client);
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
        }
        let is_known = settings.load().token.is_in(Some(&shown));
        if !is_known {
            engine.metrics().auth_failed(ListenerKind::Admin);
            if let Some(client) = client {
                guesses.failed(client, ListenerKind::Admin.name());
            }
        }
        is_known
    }
}

async fn configuration(State(state): State<AdminState>) -> Response {
    json(&state.0.settings.load().configuration)
}

async fn metrics_page(State(state): State<AdminState>, headers: HeaderMap) -> Response {
    let format = metrics::Format::accepted(&headers);
    let engine = &state.0.engine;
    let text = metrics::exposition(engine.metrics(), engine.limiter(), format);
    ([(CONTENT_TYPE, format.content_type()), (VARY, "accept")], text).into_response()
}
