//! What is wrong with a request to the door itself (RFC 9457).

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::RETRY_AFTER;
use serde::Serialize;
use tidegate_core::StoreError;

use crate::body::BodyError;
use crate::browsers::{Misdirected, NotJson};
use crate::problem::Said;

/// A request that cannot be answered, and why.
#[derive(Debug, Serialize)]
pub(super) struct Problem {
    #[serde(flatten)]
    said: Said,
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
        Problem { said: Said::new(status, detail), at: None }
    }

    /// JSON that cannot be understood.
    pub(super) fn in_json(detail: String, at: Option<At>) -> Problem {
        Problem { at, ..Problem::new(StatusCode::BAD_REQUEST, detail) }
    }
}

impl From<BodyError> for Problem {
    fn from(error: BodyError) -> Problem {
        let (status, detail) = match error {
            BodyError::TooLarge { most } => {
                let detail = format!("The body is larger than the {most} bytes that are read. Send less at once.");
                (StatusCode::PAYLOAD_TOO_LARGE, detail)
            }
            BodyError::Broken => (StatusCode::BAD_REQUEST, "The body broke off.".to_owned()),
            BodyError::TooSlow { .. } => (StatusCode::REQUEST_TIMEOUT, "The body took too long to come.".to_owned()),
        };
        Problem::new(status, detail)
    }
}

impl From<Misdirected> for Problem {
    fn from(misdirected: Misdirected) -> Problem {
        Problem::new(StatusCode::MISDIRECTED_REQUEST, misdirected.to_string())
    }
}

impl From<NotJson> for Problem {
    fn from(not_json: NotJson) -> Problem {
        Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, not_json.to_string())
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
        let mut response = self.said.response(&self);
        if self.said.status() == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, http::HeaderValue::from_static("1"));
        }
        response
    }
}
