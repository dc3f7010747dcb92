//! JSON responses of all HTTP listeners.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde::Serialize;

use crate::problem::Problem;

/// A response with a document as JSON.
pub(crate) fn json(document: &impl Serialize) -> Response {
    match serde_json::to_vec(document) {
        Ok(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
        // Serialization of text, numbers and lists cannot fail.
        Err(error) => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
