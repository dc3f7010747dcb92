//! What is wrong with a request (RFC 9457).

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Serialize;
use tidegate_core::StoreError;
use tidegate_rules::{Diagnostics, NoSuchKey, ResetError};

use crate::problem::Said;

/// A request that cannot be answered, and why.
#[derive(Debug, Serialize)]
pub(super) struct Problem {
    #[serde(flatten)]
    said: Said,
    /// Where in the JSON, counted from 1, if that is at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<usize>,
    /// What is wrong with rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    findings: Option<Diagnostics>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Problem {
        Problem { said: Said::new(status, detail), line: None, column: None, findings: None }
    }

    /// Rules that cannot be used.
    pub(super) fn in_rules(detail: &str, findings: Diagnostics) -> Problem {
        Problem { findings: Some(findings), ..Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail) }
    }
}

impl From<serde_json::Error> for Problem {
    fn from(error: serde_json::Error) -> Problem {
        let (line, column) = (Some(error.line()), Some(error.column()));
        Problem { line, column, ..Problem::new(StatusCode::BAD_REQUEST, error.to_string()) }
    }
}

impl From<NoSuchKey> for Problem {
    fn from(error: NoSuchKey) -> Problem {
        let status = match &error {
            NoSuchKey::Rule { .. } | NoSuchKey::Tier { .. } | NoSuchKey::NoLimit { .. } => StatusCode::NOT_FOUND,
            NoSuchKey::Parts { .. }
            | NoSuchKey::Address { .. }
            | NoSuchKey::NotHashed { .. }
            | NoSuchKey::TierWanted { .. } => StatusCode::UNPROCESSABLE_ENTITY,
        };
        let grammar = match &error {
            NoSuchKey::Parts { parts, .. } => {
                let parts: Vec<String> = parts.iter().map(|part| format!("\"{}\"", part.to_uppercase())).collect();
                format!(": write `\"key\": [{}]`", parts.join(", "))
            }
            _ => String::new(),
        };
        Problem::new(status, format!("{error}{grammar}"))
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

impl From<ResetError> for Problem {
    fn from(error: ResetError) -> Problem {
        match error {
            ResetError::NoSuchKey(error) => error.into(),
            ResetError::Store(error) => error.into(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.said.response(&self)
    }
}
