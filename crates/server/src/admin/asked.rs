//! What requests say.

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Request};
use axum::response::IntoResponse;
use http::header::CONTENT_LENGTH;
use http::{StatusCode, Uri};
use serde::de::DeserializeOwned;

use super::MOST_BYTES;
use super::problem::Problem;

/// The bytes of a body.
pub(super) struct Whole(pub(super) Bytes);

impl<S: Send + Sync> FromRequest<S> for Whole {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Whole, Problem> {
        let said = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if said.is_some_and(|length| length > MOST_BYTES as u64) {
            let detail = format!("The body is larger than the {MOST_BYTES} bytes that are read.");
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail));
        }
        match Bytes::from_request(request, state).await {
            Ok(bytes) => Ok(Whole(bytes)),
            Err(rejection) => Err(unread(rejection)),
        }
    }
}

fn unread(rejection: BytesRejection) -> Problem {
    let detail = format!("The body cannot be read: {}.", rejection.body_text());
    Problem::new(rejection.into_response().status(), detail)
}

/// A body in JSON. What its type says does not matter: a command line seldom gets that right.
pub(super) struct Json<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Json<T>, Problem> {
        let Whole(body) = Whole::from_request(request, state).await?;
        Ok(Json(serde_json::from_slice(&body)?))
    }
}

/// The value of a parameter of the query; the last counts.
pub(super) fn parameter(uri: &Uri, name: &str) -> Option<String> {
    let pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    pairs.filter(|(known, _)| known == name).last().map(|(_, value)| value.into_owned())
}

/// How many rules and keys are wanted: `most`, up to a bound.
pub(super) fn most(uri: &Uri) -> Result<usize, Problem> {
    const BOUND: usize = 1_000;
    let Some(text) = parameter(uri, "most") else { return Ok(20) };
    match text.parse::<usize>() {
        Ok(most) => Ok(most.min(BOUND)),
        Err(_) => {
            let detail = format!("`most` is no number: write one from 0 to {BOUND}.");
            Err(Problem::new(StatusCode::BAD_REQUEST, detail))
        }
    }
}
