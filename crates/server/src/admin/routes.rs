//! Table of the admin listener's routes. The router, the index and the responses to wrong paths are derived from it.

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde::Serialize;
use tidegate_rules::yaml::closest;

use super::{AdminState, history, json, keys, modes, regions, rules, stream};
use crate::problem::Problem;

/// A method at a path. `openapi.json` describes each of them, which a test ensures.
#[derive(Serialize)]
struct AdminRoute {
    method: &'static str,
    path: &'static str,
    about: &'static str,
    /// `None` for the lab, which has a router of its own.
    #[serde(skip)]
    handler: Option<fn() -> MethodRouter<AdminState>>,
}

impl AdminRoute {
    const fn new(
        method: &'static str,
        path: &'static str,
        about: &'static str,
        handler: fn() -> MethodRouter<AdminState>,
    ) -> AdminRoute {
        AdminRoute { method, path, about, handler: Some(handler) }
    }
}

static ROUTES: [AdminRoute; 20] = [
    AdminRoute::new("GET", "/", "this list", || get(index)),
    AdminRoute::new("GET", "/openapi.json", "description of this API, for programs", || get(openapi)),
    AdminRoute::new("GET", "/v1/rules", "the rules in force", || get(rules::show)),
    AdminRoute::new("POST", "/v1/rules/reload", "reload the rules files", || post(rules::reload)),
    AdminRoute::new("POST", "/v1/rules/validate", "check the rules in the body", || post(rules::validate)),
    AdminRoute::new("GET", "/v1/modes", "switched rules, and the end of each switch", || get(modes::show)),
    AdminRoute::new("POST", "/v1/modes", "switch a rule, or all of them", || post(modes::switch)),
    AdminRoute::new("POST", "/v1/keys/peek", "state of a key under a rule", || post(keys::peek)),
    AdminRoute::new("POST", "/v1/keys/reset", "reset a key under a rule", || post(keys::reset)),
    AdminRoute::new(
        "GET",
        "/v1/keys/top",
        "most frequent keys: ?by=traffic, ?by=denials or ?by=store, &most=20",
        || get(keys::top),
    ),
    AdminRoute::new("GET", "/v1/regions", "shares of regions, and transfers under way", || get(regions::show)),
    AdminRoute::new("POST", "/v1/regions/set", "set the shares of all regions", || post(regions::set)),
    AdminRoute::new("POST", "/v1/regions/move", "move a share from one region to another", || {
        post(regions::move_share)
    }),
    AdminRoute::new("POST", "/v1/regions/resume", "continue interrupted transfers", || post(regions::resume)),
    AdminRoute::new("GET", "/v1/config", "the configuration in force", || get(super::configuration)),
    AdminRoute::new("GET", "/v1/view", "live data of the server", || get(stream::view)),
    AdminRoute::new("GET", "/v1/stream", "the same every second, as server-sent events", || get(stream::stream)),
    AdminRoute::new("GET", "/v1/history", "decisions of the last hour", || get(history::show)),
    AdminRoute::new("GET", "/metrics", "metrics for Prometheus", || get(super::metrics_page)),
    AdminRoute { method: "GET", path: "/lab/", about: "web page: the lab, and live data of the server", handler: None },
];

/// The routes, without those of the lab.
pub(super) fn router() -> Router<AdminState> {
    let handled = ROUTES.iter().filter_map(|route| Some((route.path, route.handler?)));
    handled.fold(Router::new(), |router, (path, handler)| router.route(path, handler()))
}

async fn index() -> Response {
    json(&ROUTES)
}

async fn openapi() -> Response {
    ([(CONTENT_TYPE, "application/json")], include_str!("openapi.json")).into_response()
}

pub(super) async fn nothing_here(request: Request) -> Problem {
    let detail = match closest(request.uri().path(), ROUTES.iter().map(|route| route.path)) {
        Some(meant) => format!("There is nothing at this path. Did you mean {meant}?"),
        None => "There is nothing at this path. GET / lists all paths.".to_owned(),
    };
    Problem::new(StatusCode::NOT_FOUND, detail)
}

pub(super) async fn not_this_way(request: Request) -> Problem {
    let path = request.uri().path();
    let methods: Vec<&str> = ROUTES.iter().filter(|route| route.path == path).map(|route| route.method).collect();
    let wanted = if methods.is_empty() { "GET".to_owned() } else { methods.join(" or ") };
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, format!("This path takes {wanted}, not {}.", request.method()))
}
