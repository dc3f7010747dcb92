//! Live data of the server, once or every second.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::stream::unfold;
use http::{StatusCode, Uri};
use tokio::time::{MissedTickBehavior, interval};

use super::extract::most;
use super::{AdminState, MOST_STREAMS, json};
use crate::metrics::View;
use crate::problem::Problem;

const EVERY: Duration = Duration::from_secs(1);

pub(super) async fn view(State(state): State<AdminState>, uri: Uri) -> Result<Response, Problem> {
    Ok(json(&View::of(state.0.engine.metrics(), state.0.engine.limiter(), most(&uri)?, 0)))
}

/// Sends a view every second. A slow reader misses some views, and none are buffered: each is built after the previous
/// one was sent.
pub(super) async fn stream(State(state): State<AdminState>, uri: Uri) -> Result<Response, Problem> {
    let most = most(&uri)?;
    let Ok(place) = Arc::clone(&state.0.streams).try_acquire_owned() else {
        let detail = format!("{MOST_STREAMS} streams are open already. Wait until one of them ends.");
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail));
    };
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stop = state.0.settings.load().stop.clone();
    let engine = Arc::clone(&state.0.engine);
    let views = unfold((ticks, 0, place), move |(mut ticks, seen, place)| {
        let engine = Arc::clone(&engine);
        async move {
            ticks.tick().await;
            let view = View::of(engine.metrics(), engine.limiter(), most, seen);
            let seen = view.denials.last().map_or(seen, |denial| denial.number);
            let event = Event::default().event("view").data(serde_json::to_string(&view).unwrap_or_default());
            Some((Ok::<_, Infallible>(event), (ticks, seen, place)))
        }
    });
    Ok(Sse::new(views.take_until(stop.cancelled_owned())).into_response())
}
