//! Problems in JSON (RFC 9457).

use std::fmt::Display;

use bytes::Bytes;
use http::HeaderValue;
use serde::{Serialize, Serializer};

/// The media type of problems.
pub const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// The type of problems that need no type besides their status.
pub const UNTYPED: &str = "about:blank";

/// The type of problems for lack of capacity.
pub const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// A problem: the members that all problems have, and an extension with members that only some have.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ProblemDocument<D: Display, X: Serialize = ()> {
    /// The type, as a URI.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The title of the type.
    pub title: &'static str,
    /// The status of the response.
    pub status: u16,
    /// The problem and a suggestion.
    #[serde(serialize_with = "as_text")]
    pub detail: D,
    /// Members after the others: a struct, a map, or nothing.
    #[serde(flatten)]
    pub extension: X,
}

impl<D: Display, X: Serialize> ProblemDocument<D, X> {
    /// The document as JSON.
    pub fn to_json(&self) -> Bytes {
        // Large enough for most problems, so that the buffer rarely grows.
        let mut text = Vec::with_capacity(320);
        // Cannot fail: text, numbers and lists are always valid JSON.
        let _ = serde_json::to_writer(&mut text, self);
        Bytes::from(text)
    }
}

fn as_text<S: Serializer>(detail: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extension_stands_behind_the_other_members() {
        let bare = ProblemDocument { kind: UNTYPED, title: "Gone", status: 410, detail: "\"It\" left.", extension: () };
        assert_eq!(bare.to_json(), r#"{"type":"about:blank","title":"Gone","status":410,"detail":"\"It\" left."}"#);
        let extension = serde_json::json!({ "at": 7 });
        let extended = ProblemDocument { kind: UNTYPED, title: "Gone", status: 410, detail: 1, extension };
        assert_eq!(extended.to_json(), r#"{"type":"about:blank","title":"Gone","status":410,"detail":"1","at":7}"#);
    }
}
