//! A run, as server-sent events.
//!
//! The first event is `expect`, with the limits and their expected outcome. Events `decisions` follow, each with many
//! decisions, and finally `end` with the totals, or `failed` if a store could not decide. The id of an event is its
//! position, so a client that lost its connection resumes with `Last-Event-ID`.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::State;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::stream::unfold;
use http::header::CACHE_CONTROL;
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use serde::Serialize;
use tidegate_core::{Limit, Micros, StoreError};
use tidegate_lab::expect::expect;
use tidegate_lab::traffic::START;

use super::batch::LimitDescription;
use super::run::{NextEvent, Run};
use super::run_decider::RunDecider;
use super::run_position::RunPosition;
use super::run_request::RunRequest;
use super::{LabState, MOST_RUNS, SharedLab};
use crate::problem::Problem;

/// A run, and its expected outcome.
#[derive(Serialize)]
struct ExpectedFigures {
    traffic: String,
    seed: u64,
    /// In microseconds, like all times here.
    length: u64,
    /// Start of the run, in microseconds since the Unix epoch.
    start: u64,
    clients: u32,
    holding: Option<u64>,
    limits: Vec<LimitDescription>,
}

const NO_SUCH_POSITION: &str = "`Last-Event-ID` is not the id of an event of this run.";

/// Stage of a run, which determines the next event.
enum RunStage {
    ExpectedFigures(Box<ExpectedFigures>, Box<Run>),
    Running(Box<Run>),
    Over,
}

pub(super) async fn run(State(state): State<LabState>, uri: Uri, headers: HeaderMap) -> Result<Response, Problem> {
    let SharedLab { settings, places } = &*state.0;
    check_fetch_site(&headers)?;
    let last = last_position(&headers)?;
    let request =
        RunRequest::read(uri.query().unwrap_or_default(), settings.redis.is_some()).map_err(Problem::in_fields)?;
    let Ok(place) = Arc::clone(places).try_acquire_owned() else {
        let detail = format!("{MOST_RUNS} runs are in progress already. Close one of them, and try again.");
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail));
    };
    let (request, expected) = expected(request).await?;
    let decider = RunDecider::of(&request, settings.redis.as_ref());
    let mut run = Box::new(Run::new(&request, decider));
    let stage = match last {
        None => RunStage::ExpectedFigures(Box::new(expected), run),
        Some(last) => {
            if !run.has(&last) {
                return Err(Problem::new(StatusCode::BAD_REQUEST, NO_SUCH_POSITION));
            }
            run.skip_to(last).await;
            RunStage::Running(run)
        }
    };
    let events = unfold((stage, place), |(stage, place)| async move {
        let (event, stage) = next_event(stage).await?;
        Some((Ok::<_, Infallible>(event), (stage, place)))
    });
    let events = events.take_until(settings.stop.clone().cancelled_owned());
    let mut response = Sse::new(events).into_response();
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Rejects requests from pages of other sites.
fn check_fetch_site(headers: &HeaderMap) -> Result<(), Problem> {
    match headers.get("sec-fetch-site").map(HeaderValue::as_bytes) {
        Some(b"cross-site" | b"same-site") => {
            Err(Problem::new(StatusCode::FORBIDDEN, "Runs are for the lab's own page and for programs."))
        }
        _ => Ok(()),
    }
}

/// The position after the last event that the client received.
fn last_position(headers: &HeaderMap) -> Result<Option<RunPosition>, Problem> {
    let Some(id) = headers.get("last-event-id") else { return Ok(None) };
    match id.to_str().ok().and_then(RunPosition::read) {
        Some(position) => Ok(Some(position)),
        None => Err(Problem::new(StatusCode::BAD_REQUEST, NO_SUCH_POSITION)),
    }
}

/// Computes the expected outcome, on a blocking thread.
async fn expected(request: RunRequest) -> Result<(RunRequest, ExpectedFigures), Problem> {
    let computing = tokio::task::spawn_blocking(move || {
        let RunRequest { limits, traffic, length, holding, store, .. } = &request;
        let described = |(number, limit): (usize, &Limit)| {
            let expected = expect(traffic, limit, START, *length, *holding);
            if let Some(error) = request.too_many(expected.arrivals) {
                return Err(Problem::in_fields(vec![error]));
            }
            let described = LimitDescription::of(limit, store, expected);
            let text = request.texts.get(number).map_or("", String::as_str);
            Ok(match request.server {
                Some(server) => {
                    let adaptation = request.adaptations.get(number).and_then(Option::as_ref);
                    described.served(text, limit, server, adaptation)
                }
                None if request.fleets.get(number).is_some_and(Option::is_some) => described.leased(text),
                None => described,
            })
        };
        let expected = ExpectedFigures {
            traffic: traffic.to_string(),
            seed: request.seed,
            length: length.get(),
            start: START.as_micros(),
            clients: traffic.clients(),
            holding: holding.map(Micros::get),
            limits: limits.iter().enumerate().map(described).collect::<Result<_, _>>()?,
        };
        Ok((request, expected))
    });
    let stopping = |_| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "The server is shutting down.");
    computing.await.map_err(stopping)?
}

async fn next_event(stage: RunStage) -> Option<(Event, RunStage)> {
    let event = |name: &str, position: RunPosition| Event::default().event(name).id(position.to_string());
    match stage {
        RunStage::ExpectedFigures(expected, run) => {
            Some((event("expect", run.position()).data(text(&*expected)), RunStage::Running(run)))
        }
        RunStage::Running(mut run) => Some(match run.next().await {
            NextEvent::Batch(batch) => (event("decisions", run.position()).data(text(&batch)), RunStage::Running(run)),
            NextEvent::End(end) => (event("end", run.position()).data(text(&end)), RunStage::Over),
            NextEvent::Failed(error) => {
                (event("failed", run.position()).data(text(&Failed::of(&error))), RunStage::Over)
            }
        }),
        RunStage::Over => None,
    }
}

#[derive(Serialize)]
struct Failed {
    detail: String,
}

impl Failed {
    fn of(error: &StoreError) -> Failed {
        Failed { detail: error.to_string() }
    }
}

/// Serialization of numbers, text and lists cannot fail.
fn text(document: &impl Serialize) -> String {
    serde_json::to_string(document).unwrap_or_default()
}
