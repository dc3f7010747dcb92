//! The operators' door: what is in force, what happens, and what to do about it.
//!
//! | | |
//! |---|---|
//! | `GET /v1/rules` | the rules in force (`rules.rs`) |
//! | `POST /v1/rules/reload`, `/v1/rules/validate` | reads the files again; says what is wrong with a text |
//! | `GET`, `POST /v1/modes` | switches of single rules or of all, with or without an end (`modes.rs`, `switchboard.rs`) |
//! | `POST /v1/keys/peek`, `/v1/keys/reset`, `GET /v1/keys/top` | single keys (`keys.rs`, `named_key.rs`) |
//! | `GET /v1/config` | the configuration in force, without its secrets |
//! | `GET /v1/view`, `/v1/stream` | how the server is doing, once or every second (`stream.rs`) |
//! | `GET /metrics` | the same for Prometheus |
//! | `GET /openapi.json` | all of it, described (`routes.rs`) |
//! | `GET /lab/` | the lab's page, with a live view of all this ([`lab`]) |
//!
//! Nothing is answered without the token (`token.rs`), not even whether a path exists; only the lab's page is, which is
//! the same everywhere and has to ask for the token before it can show anything. Nothing else is on this door, and
//! nothing of it on any other but the lab.

mod asked;
mod caller;
mod connection;
mod keys;
mod modes;
mod named_key;
mod problem;
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
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Router, http::StatusCode};
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, VARY, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue};
use serde::Serialize;
use tidegate_core::{Clock, SystemClock};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use self::connection::serve_connection;
use self::switchboard::Switchboard;
pub use self::token::{Token, TokenError};
use crate::auth_throttle::AuthThrottle;
use crate::browsers::Hosts;
use crate::engine::Engine;
use crate::lab::{self, LabState};
use crate::listen::Peer;
use crate::metrics::{self, Door};
use crate::problem::Problem;

/// The largest body that is read: a rules file to be validated.
const MOST_BYTES: usize = 4 * 1024 * 1024;
/// How long a body may take to come.
const BODY_TIME: Duration = Duration::from_secs(30);
/// How many may follow what happens at once.
const MOST_STREAMS: usize = 32;

/// What the door needs to know.
#[derive(Clone)]
pub struct Settings {
    /// What whoever asks must know.
    pub token: Token,
    /// Whether `/metrics` is answered without it.
    pub open_metrics: bool,
    /// The files and folders that rules are read from; none if they come from nowhere.
    pub rules: Vec<PathBuf>,
    /// Whether rules that are published for a fleet are in force: files are left alone then.
    pub are_published: Arc<AtomicBool>,
    /// The configuration in force, with secrets hidden.
    pub configuration: serde_json::Value,
    /// By which switches end.
    pub clock: Arc<dyn Clock>,
    /// Ends what is followed.
    pub stop: CancellationToken,
    /// The hosts that requests may be for.
    pub hosts: Hosts,
}

impl Settings {
    /// Asks for `token`, and leaves the rest at its defaults.
    #[must_use]
    pub fn new(token: Token) -> Settings {
        Settings {
            token,
            open_metrics: false,
            rules: Vec::new(),
            are_published: Arc::default(),
            configuration: serde_json::Value::Null,
            clock: Arc::new(SystemClock::new()),
            stop: CancellationToken::new(),
            hosts: Hosts::any(),
        }
    }
}

/// What every request to the door needs. A clone is the same.
#[derive(Clone)]
pub struct AdminState(Arc<Inside>);

struct Inside {
    engine: Arc<Engine>,
    settings: ArcSwap<Settings>,
    switchboard: Switchboard,
    streams: Arc<Semaphore>,
    guesses: AuthThrottle,
}

impl AdminState {
    /// A door to `engine`.
    #[must_use]
    pub fn new(engine: Arc<Engine>, settings: Settings) -> AdminState {
        let streams = Arc::new(Semaphore::new(MOST_STREAMS));
        let settings = ArcSwap::from_pointee(settings);
        let (switchboard, guesses) = (Switchboard::default(), AuthThrottle::new());
        AdminState(Arc::new(Inside { engine, settings, switchboard, streams, guesses }))
    }

    /// Changes what the door needs to know, from the next request on. `change` is called again if another change was
    /// quicker.
    pub fn change(&self, change: impl Fn(&mut Settings)) {
        self.0.settings.rcu(|present| {
            let mut next = Settings::clone(present);
            change(&mut next);
            next
        });
    }

    /// To be called about once a second: ends switches whose time is over, and has the metrics do what they do each
    /// second.
    pub fn beat(&self) {
        let Inside { engine, settings, switchboard, .. } = &*self.0;
        switchboard.expire(engine.limiter(), settings.load().clock.now());
        engine.metrics().beat(&engine.limiter().rules());
    }
}

/// The door's routes.
pub fn router(state: AdminState) -> Router {
    let lab = LabState::new(lab::Settings { redis: None, is_live: true, stop: state.0.settings.load().stop.clone() });
    routes::router()
        .with_state(state.clone())
        .merge(lab::router(lab))
        .fallback(routes::nothing_here)
        .method_not_allowed_fallback(routes::not_this_way)
        .layer(from_fn_with_state(state, guard))
}

/// Lets in who knows the token, and asks for a host that is answered for.
async fn guard(State(state): State<AdminState>, request: Request, next: Next) -> Response {
    if let Err(misdirected) = state.0.settings.load().hosts.check(request.uri(), request.headers()) {
        return Problem::from(misdirected).into_response();
    }
    let is_open = {
        let path = request.uri().path();
        (state.0.settings.load().open_metrics && path == "/metrics") || lab::is_open(path)
    };
    let shown = request.headers().get(AUTHORIZATION).cloned();
    let client = request.extensions().get::<Peer>().map(|peer| peer.address.ip());
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
    /// Whether this client has shown the token. Those who guess have to wait.
    async fn knows_token(&self, shown: Option<HeaderValue>, client: Option<IpAddr>) -> bool {
        let Inside { engine, settings, guesses, .. } = &*self.0;
        let Some(shown) = shown else { return false };
        if let Some(client) = client {
            let delay = guesses.delay(client);
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
        }
        let is_known = settings.load().token.is_in(Some(&shown));
        if !is_known {
            engine.metrics().auth_failed(Door::Admin);
            if let Some(client) = client {
                guesses.failed(client, Door::Admin.name());
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
    let text = metrics::exposition(&state.0.engine, format);
    ([(CONTENT_TYPE, format.content_type()), (VARY, "accept")], text).into_response()
}

/// A JSON answer.
fn json(document: &impl Serialize) -> Response {
    match serde_json::to_vec(document) {
        Ok(text) => ([(CONTENT_TYPE, "application/json")], Body::from(text)).into_response(),
        // Text, numbers and lists can always be written.
        Err(error) => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
