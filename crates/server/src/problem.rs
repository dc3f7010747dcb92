//! Problem documents in JSON, shared by all listeners (RFC 9457).

use std::borrow::Cow;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use tidegate_http::{PROBLEM_JSON, ProblemDocument, UNTYPED};
use tidegate_rules::Diagnostics;

use crate::cross_site::{Misdirected, NotJson};
use crate::whole_body::BodyError;

/// Reason why a request failed.
///
/// Kept small, because it is part of the result of every request: members that only some problems have are boxed.
#[derive(Debug)]
pub(crate) struct Problem {
    /// Type of the problem, as a URI.
    kind: &'static str,
    status: StatusCode,
    /// Description of the problem, and a suggestion.
    detail: Cow<'static, str>,
    extension: Option<Box<Extension>>,
    /// Whether the same request may succeed after a second.
    may_retry: bool,
}

/// Members that only some problems have.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Extension {
    Json { at: JsonPosition },
    Text { line: usize, column: usize },
    Rules { findings: Diagnostics },
    Fields { errors: Vec<FieldError> },
    FaultParty { fault: FaultParty },
}

/// A position in a JSON document.
#[derive(Debug, Serialize)]
pub(crate) struct JsonPosition {
    /// Path such as `[2].headers.x-env`, or `.` for the whole document.
    pub(crate) path: String,
    /// Line, from 1.
    pub(crate) line: usize,
    /// Column, from 1.
    pub(crate) column: usize,
}

/// An invalid parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct FieldError {
    /// Name of the parameter. One of several limits is followed by its index: `limit.0`.
    pub(crate) field: String,
    /// Description of the problem, and a suggestion.
    pub(crate) message: String,
}

impl FieldError {
    pub(crate) fn new(field: impl Into<String>, message: impl Into<String>) -> FieldError {
        FieldError { field: field.into(), message: message.into() }
    }
}

/// Side at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FaultParty {
    Client,
    Gateway,
    Upstream,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Problem {
        Problem { kind: UNTYPED, status, detail: detail.into(), extension: None, may_retry: false }
    }

    /// Sets the type, as a URI.
    pub(crate) fn of_kind(self, kind: &'static str) -> Problem {
        Problem { kind, ..self }
    }

    fn with(self, extension: Extension) -> Problem {
        Problem { extension: Some(Box::new(extension)), ..self }
    }

    /// Invalid JSON.
    pub(crate) fn in_json(detail: impl Into<Cow<'static, str>>, at: Option<JsonPosition>) -> Problem {
        let problem = Problem::new(StatusCode::BAD_REQUEST, detail);
        match at {
            Some(at) => problem.with(Extension::Json { at }),
            None => problem,
        }
    }

    /// Invalid rules.
    pub(crate) fn in_rules(detail: &'static str, findings: Diagnostics) -> Problem {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail).with(Extension::Rules { findings })
    }

    /// Invalid parameters.
    pub(crate) fn in_fields(errors: Vec<FieldError>) -> Problem {
        let detail = match &errors[..] {
            [one] => format!("`{}`: {}", one.field, one.message),
            several => format!("{} parameters are at fault.", several.len()),
        };
        let problem = Problem::new(StatusCode::BAD_REQUEST, detail);
        if errors.is_empty() { problem } else { problem.with(Extension::Fields { errors }) }
    }

    /// Sets the side at fault.
    pub(crate) fn fault(self, fault: FaultParty) -> Problem {
        self.with(Extension::FaultParty { fault })
    }

    /// Marks the problem as temporary: the same request may succeed after a second.
    pub(crate) fn may_retry(self) -> Problem {
        Problem { may_retry: true, ..self }
    }

    /// The response body.
    pub(crate) fn to_json(&self) -> Bytes {
        let title = self.status.canonical_reason().unwrap_or("Error");
        let (status, extension) = (self.status.as_u16(), self.extension.as_deref());
        ProblemDocument { kind: self.kind, title, status, detail: &self.detail, extension }.to_json()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.to_json()));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, PROBLEM_JSON);
        if self.may_retry {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<BodyError> for Problem {
    fn from(error: BodyError) -> Problem {
        match error {
            BodyError::TooLarge { most } => {
                let detail = format!("The body is larger than the {most} bytes that are read. Send less at once.");
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
            }
            BodyError::Broken => Problem::new(StatusCode::BAD_REQUEST, "The body is incomplete."),
            BodyError::TooSlow { .. } => Problem::new(StatusCode::REQUEST_TIMEOUT, "The body took too long to arrive."),
        }
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

impl From<serde_json::Error> for Problem {
    fn from(error: serde_json::Error) -> Problem {
        let (line, column) = (error.line(), error.column());
        Problem::new(StatusCode::BAD_REQUEST, error.to_string()).with(Extension::Text { line, column })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_only_some_problems_have_stand_behind_the_others() {
        let told = |problem: Problem| String::from_utf8(problem.to_json().into()).unwrap();
        assert_eq!(
            told(Problem::new(StatusCode::NOT_FOUND, "Nothing here.")),
            r#"{"type":"about:blank","title":"Not Found","status":404,"detail":"Nothing here."}"#
        );
        let at = JsonPosition { path: "[1].user".to_owned(), line: 1, column: 2 };
        assert_eq!(
            told(Problem::in_json("No.", Some(at))),
            r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"No.","at":{"path":"[1].user","line":1,"column":2}}"#
        );
        assert_eq!(
            told(Problem::new(StatusCode::BAD_GATEWAY, "No.").fault(FaultParty::Upstream)),
            r#"{"type":"about:blank","title":"Bad Gateway","status":502,"detail":"No.","fault":"upstream"}"#
        );
        assert_eq!(
            told(Problem::in_fields(vec![FieldError::new("for", "write a time")])),
            r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"`for`: write a time","errors":[{"field":"for","message":"write a time"}]}"#
        );
    }

    #[test]
    fn a_client_is_told_when_to_try_again_if_that_helps() {
        let unavailable = || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Later.");
        assert_eq!(unavailable().into_response().headers().get(RETRY_AFTER), None);
        assert_eq!(unavailable().may_retry().into_response().headers()[RETRY_AFTER], "1");
    }
}
