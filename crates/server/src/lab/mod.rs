//! The lab's page, and its runs.
//!
//! | | |
//! |---|---|
//! | `GET /lab/` | the page and its files (`files.rs`) |
//! | `GET /lab/about` | the capabilities of this lab |
//! | `GET /lab/run?…` | a run, as server-sent events (`events.rs`, `run.rs`) |
//!
//! A run is fully described by its query (`run_request.rs`), so a link identifies a run. The same routes are on the
//! listener of `tidegate lab` and, with the live view, on the admin listener.

mod batch;
mod events;
mod files;
mod listener;
mod run;
mod run_decider;
mod run_position;
mod run_request;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{Redirect, Response};
use axum::routing::get;
use http::{StatusCode, Uri};
use serde::Serialize;
use tidegate_redis::RedisStore;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use self::listener::{LabServer, serve_connection};
use crate::json_response::json;
use crate::problem::Problem;

/// Maximum number of concurrent runs.
const MOST_RUNS: usize = 8;

/// Settings of the lab.
#[derive(Default)]
pub struct Settings {
    /// Redis that may decide runs, in real time.
    pub redis: Option<Arc<RedisStore>>,
    /// Whether the listener also offers the live view of a server. If so, the live view and runs need the server's
    /// token.
    pub is_live: bool,
    /// Ends runs.
    pub stop: CancellationToken,
}

/// State of the lab. Clones refer to the same state.
#[derive(Clone)]
pub struct LabState(Arc<SharedLab>);

struct SharedLab {
    settings: Settings,
    places: Arc<Semaphore>,
}

impl LabState {
    /// A lab without runs.
    #[must_use]
    pub fn new(settings: Settings) -> LabState {
        LabState(Arc::new(SharedLab { settings, places: Arc::new(Semaphore::new(MOST_RUNS)) }))
    }
}

/// The lab's routes, all of them under `/lab`.
pub fn router(state: LabState) -> Router {
    Router::new()
        .route("/lab", get(to_the_page))
        .route("/lab/about", get(about))
        .route("/lab/run", get(events::run))
        .route("/lab/", get(files::page))
        .route("/lab/{file}", get(files::file))
        .with_state(state)
}

/// Whether a path is served without the token: the page itself, which contains no data.
#[must_use]
pub fn is_open(path: &str) -> bool {
    let Some(rest) = path.strip_prefix("/lab") else { return false };
    match rest.strip_prefix('/') {
        Some(file) => file == "about" || tidegate_lab::page::file(file).is_some(),
        None => rest.is_empty(),
    }
}

/// Redirects to the page, with the run in the query.
async fn to_the_page(uri: Uri) -> Redirect {
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    Redirect::permanent(&format!("/lab/{query}"))
}

async fn about(State(state): State<LabState>) -> Response {
    #[derive(Serialize)]
    struct About {
        stores: &'static [&'static str],
        /// Whether there is a live view, which needs a token.
        live: bool,
        runs: Runs,
        most: Most,
    }
    #[derive(Serialize)]
    struct Runs {
        now: usize,
        most: usize,
    }
    #[derive(Serialize)]
    struct Most {
        limits: usize,
        decisions: u64,
        clients: u32,
    }
    let SharedLab { settings, places } = &*state.0;
    json(&About {
        stores: if settings.redis.is_some() { &["memory", "redis"] } else { &["memory"] },
        live: settings.is_live,
        runs: Runs { now: MOST_RUNS - places.available_permits(), most: MOST_RUNS },
        most: Most {
            limits: run_request::MOST_LIMITS,
            decisions: run_request::MOST_DECISIONS,
            clients: run_request::MOST_CLIENTS,
        },
    })
}

async fn nothing_here(request: Request) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, format!("There is nothing at {}. The page is at /lab/.", request.uri().path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_open_and_runs_are_not() {
        for path in ["/lab", "/lab/", "/lab/main.js", "/lab/style.css", "/lab/about"] {
            assert!(is_open(path), "{path}");
        }
        for path in ["/", "/lab/run", "/laboratory", "/lab//", "/lab/../v1/rules", "/v1/rules", "/lab/about/"] {
            assert!(!is_open(path), "{path}");
        }
    }
}
