//! What every problem says, whichever door tells it (RFC 9457).

use axum::body::Body;
use axum::response::Response;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use serde::Serialize;

/// The members that all problems have. What a door adds stands beside them.
#[derive(Debug, Serialize)]
pub(crate) struct Said {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    /// What is wrong, and what to do instead.
    detail: String,
}

impl Said {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Said {
        let title = status.canonical_reason().unwrap_or("Error");
        Said { kind: "about:blank", title, status: status.as_u16(), detail: detail.into() }
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The response that tells `problem`, of which this is a part.
    pub(crate) fn response(&self, problem: &impl Serialize) -> Response {
        let mut response = Response::new(Body::from(serde_json::to_vec(problem).unwrap_or_default()));
        *response.status_mut() = self.status();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response
    }
}
