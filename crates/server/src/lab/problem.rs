//! What is wrong with a request (RFC 9457).

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use serde::Serialize;

/// A request that cannot be answered, and why.
#[derive(Debug, Serialize)]
pub(super) struct Problem {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    /// What is wrong, and what to do instead.
    detail: String,
    /// Which fields are at fault.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<FieldError>,
}

/// A field that is at fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct FieldError {
    /// The parameter; of several limits, with the number of the limit, counted from 0: `limit.0`.
    pub(super) field: String,
    /// What is wrong, and what to write instead.
    pub(super) message: String,
}

impl FieldError {
    pub(super) fn new(field: impl Into<String>, message: impl Into<String>) -> FieldError {
        FieldError { field: field.into(), message: message.into() }
    }
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Problem {
        let title = status.canonical_reason().unwrap_or("Error");
        Problem { kind: "about:blank", title, status: status.as_u16(), detail: detail.into(), errors: Vec::new() }
    }

    pub(super) fn in_fields(errors: Vec<FieldError>) -> Problem {
        let detail = match &errors[..] {
            [one] => format!("`{}`: {}", one.field, one.message),
            several => format!("{} parameters are at fault.", several.len()),
        };
        Problem { errors, ..Problem::new(StatusCode::BAD_REQUEST, detail) }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(serde_json::to_vec(&self).unwrap_or_default()));
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response
    }
}
