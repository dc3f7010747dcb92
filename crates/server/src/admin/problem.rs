//! Converts errors of admin requests to problem documents.

use http::StatusCode;
use tidegate_core::StoreError;
use tidegate_rules::{NoSuchKey, ResetError};

use crate::problem::Problem;

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
