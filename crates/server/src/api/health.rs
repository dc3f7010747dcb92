//! Liveness and readiness.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Serialize;

use super::Api;
use crate::identity::jwt::KeysHealth;
use crate::json_response::json;
use crate::readiness::StoreTrouble;

#[derive(Serialize)]
struct Live {
    live: bool,
}

#[derive(Serialize)]
struct ReadyResponse {
    ready: bool,
    stopping: bool,
    store: StoreState,
    generation: u64,
    rules: usize,
    /// Whether tokens can be verified; absent if token verification is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<TokensState>,
}

#[derive(Serialize)]
struct TokensState {
    /// Whether there are keys, and they are up to date.
    healthy: bool,
    keys: usize,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Start of the problem, in seconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<u64>,
}

impl TokensState {
    fn of(KeysHealth { keys, problem }: KeysHealth) -> TokensState {
        let (since, reason) = problem.map(|(since, reason)| (since.as_micros() / 1_000_000, reason)).unzip();
        TokensState { healthy: reason.is_none() && keys > 0, keys, reason, since }
    }
}

#[derive(Serialize)]
struct StoreState {
    /// `memory` or `redis`.
    kind: &'static str,
    healthy: bool,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Start of the problem, in seconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<u64>,
}

pub(super) async fn live() -> Response {
    json(&Live { live: true })
}

/// Ready unless it is stopping. While the store is unavailable the server still decides, as each rule says: it is ready then, and
/// says what is wrong. With the setting `store.required`, or asked for `?store=required`, it is ready only while the store
/// answers.
pub(super) async fn ready(State(api): State<Arc<Api>>, request: Request) -> Response {
    let is_asked = request.uri().query().is_some_and(|query| query.split('&').any(|pair| pair == "store=required"));
    let needs_store = is_asked || api.settings().store_required;
    let (stopping, store) = (api.stop.is_cancelled(), StoreState::of(&api));
    let ready = !stopping && (store.healthy || !needs_store);
    let generation = api.engine.limiter().rules();
    let (number, rules) = (generation.number, generation.rules.rules().len());
    let tokens = api.engine.metrics().tokens().map(|verifier| TokensState::of(verifier.health()));
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, json(&ReadyResponse { ready, stopping, store, generation: number, rules, tokens })).into_response()
}

impl StoreState {
    fn of(api: &Api) -> StoreState {
        let kind = if api.engine.limiter().store().is_in_memory() { "memory" } else { "redis" };
        match StoreTrouble::of(&api.engine) {
            None => StoreState { kind, healthy: true, reason: None, since: None },
            Some(StoreTrouble { reason, since, .. }) => {
                StoreState { kind, healthy: false, reason: Some(reason), since }
            }
        }
    }
}

/// [`ready`] as one word, on the path that probes for envoyproxy/ratelimit use.
pub(super) async fn healthcheck(State(api): State<Arc<Api>>) -> (StatusCode, &'static str) {
    let needs_store = api.settings().store_required;
    if api.stop.is_cancelled() || (needs_store && StoreTrouble::of(&api.engine).is_some()) {
        return (StatusCode::SERVICE_UNAVAILABLE, "not ready\n");
    }
    (StatusCode::OK, "OK\n")
}
