//! What is wrong with a request to the door itself (RFC 9457).

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use serde::Serialize;
use tidegate_core::StoreError;

/// A request that cannot be answered, and why.
#[derive(Debug, Serialize)]
pub(super) struct Problem {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    /// What is wrong, and what to do instead.
    detail: String,
    /// Where in the JSON, if that is at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<At>,
}

/// A place in a JSON document.
#[derive(Debug, Serialize)]
pub(super) struct At {
    /// `[2].headers.x-env`, or `.` for all of it.
    pub(super) path: String,
    /// Counted from 1.
    pub(super) line: usize,
    /// Counted from 1.
    pub(super) column: usize,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: String) -> Problem {
        let title = status.canonical_reason().unwrap_or("Error");
        Problem { kind: "about:blank", title, status: status.as_u16(), detail, at: None }
    }

    /// JSON that cannot be understood.
    pub(super) fn in_json(detail: String, at: Option<At>) -> Problem {
        Problem { at, ..Problem::new(StatusCode::BAD_REQUEST, detail) }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        let detail = format!("{error}. Nothing is lost by trying again: a receipt is settled once.");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(serde_json::to_vec(&self).unwrap_or_default()));
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, http::HeaderValue::from_static("application/problem+json"));
        if self.status == StatusCode::SERVICE_UNAVAILABLE.as_u16() {
            headers.insert(RETRY_AFTER, http::HeaderValue::from_static("1"));
        }
        response
    }
}
