//! What is wrong with a request (RFC 9457).

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Serialize;

use crate::problem::Said;

/// A request that cannot be answered, and why.
#[derive(Debug, Serialize)]
pub(super) struct Problem {
    #[serde(flatten)]
    said: Said,
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
        Problem { said: Said::new(status, detail), errors: Vec::new() }
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
        self.said.response(&self)
    }
}
