//! Extractors for bodies and query parameters.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use http::{StatusCode, Uri};
use serde::de::DeserializeOwned;

use super::{BODY_TIME, MOST_BYTES};
use crate::cross_site;
use crate::problem::Problem;
use crate::whole_body::{BodyError, WholeBody};

/// The bytes of a body.
pub(super) struct RawBody(pub(super) Bytes);

impl<S: Send + Sync> FromRequest<S> for RawBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<RawBody, Problem> {
        match WholeBody::new(request.into_body(), MOST_BYTES, BODY_TIME).await {
            Ok(bytes) => Ok(RawBody(bytes)),
            Err(error) => {
                let status = match error {
                    BodyError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
                    BodyError::TooSlow { .. } => StatusCode::REQUEST_TIMEOUT,
                    BodyError::Broken => StatusCode::BAD_REQUEST,
                };
                Err(Problem::new(status, format!("The body cannot be read: {error}.")))
            }
        }
    }
}

/// A JSON body with the content type `application/json`.
pub(super) struct Json<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Json<T>, Problem> {
        cross_site::check_json(request.headers())?;
        let RawBody(body) = RawBody::from_request(request, state).await?;
        Ok(Json(serde_json::from_slice(&body)?))
    }
}

/// The value of a query parameter. If it is repeated, the last one counts.
pub(super) fn parameter(uri: &Uri, name: &str) -> Option<String> {
    let pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    pairs.filter(|(known, _)| known == name).last().map(|(_, value)| value.into_owned())
}

/// The query parameter `most`: the maximum number of rules and keys to return, up to a bound.
pub(super) fn most(uri: &Uri) -> Result<usize, Problem> {
    const BOUND: usize = 1_000;
    let Some(text) = parameter(uri, "most") else { return Ok(20) };
    match text.parse::<usize>() {
        Ok(most) => Ok(most.min(BOUND)),
        Err(_) => {
            let detail = format!("`most` is not a number: write one from 0 to {BOUND}.");
            Err(Problem::new(StatusCode::BAD_REQUEST, detail))
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::response::IntoResponse;
    use futures_util::stream;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_not_waited_for() {
        let silent = stream::pending::<Result<Bytes, std::io::Error>>();
        let (request, begun) = (Request::new(Body::from_stream(silent)), Instant::now());
        let Err(problem) = RawBody::from_request(request, &()).await else { panic!("nothing came") };
        assert_eq!(problem.into_response().status(), StatusCode::REQUEST_TIMEOUT);
        assert_eq!(begun.elapsed(), BODY_TIME);
    }
}
