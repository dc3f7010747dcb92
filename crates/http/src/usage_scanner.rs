//! Scans a response body for numbers, such as token usage, while it is forwarded.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use tidegate_rules::FieldPath;

use crate::json::{EventFinder, FieldFinder};

/// Scans a body for the numbers in some fields while it is forwarded: a body of JSON, of JSON lines, or of
/// `text/event-stream` events. The body is not buffered.
#[derive(Debug)]
pub enum UsageScanner {
    /// JSON, or JSON lines.
    Json(FieldFinder),
    /// Server-sent events.
    Events(EventFinder),
}

impl UsageScanner {
    /// A scanner for these fields of a body with these headers. `None` if the body is compressed.
    #[must_use]
    pub fn of(headers: &HeaderMap, paths: &[FieldPath]) -> Option<UsageScanner> {
        if is_encoded(headers) {
            return None;
        }
        Some(if is_event_stream(headers) {
            UsageScanner::Events(EventFinder::new(paths))
        } else {
            UsageScanner::Json(FieldFinder::new(paths))
        })
    }

    /// Scans the next piece.
    pub fn feed(&mut self, bytes: &[u8]) {
        match self {
            UsageScanner::Json(finder) => finder.feed(bytes),
            UsageScanner::Events(finder) => finder.feed(bytes),
        }
    }

    /// The last number in a field, as written. Fields are numbered in the order of `paths`.
    #[must_use]
    pub fn found(&self, field: usize) -> Option<&str> {
        match self {
            UsageScanner::Json(finder) => finder.found(field),
            UsageScanner::Events(finder) => finder.found(field),
        }
    }

    /// Returns `true` if the body contained its own end marker.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        match self {
            UsageScanner::Json(_) => false,
            UsageScanner::Events(finder) => finder.is_done(),
        }
    }
}

/// Returns `true` if a body has a content encoding, such as compression.
#[must_use]
pub fn is_encoded(headers: &HeaderMap) -> bool {
    let codings = headers.get_all(CONTENT_ENCODING).iter();
    codings.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).any(|coding| {
        let coding = coding.trim_ascii();
        !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity")
    })
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.as_bytes().split(|byte| *byte == b';').next());
    kind.is_some_and(|kind| kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let value = http::HeaderValue::from_static;
        pairs.iter().map(|(name, text)| (http::HeaderName::from_static(name), value(text))).collect()
    }

    #[test]
    fn the_headers_of_a_body_select_its_scanner() {
        let paths = ["n".parse().unwrap()];
        let of = |pairs: &[(&'static str, &'static str)]| UsageScanner::of(&headers(pairs), &paths);
        for events in ["text/event-stream", "Text/Event-Stream; charset=utf-8"] {
            assert!(matches!(of(&[("content-type", events)]), Some(UsageScanner::Events(_))), "{events}");
        }
        for json in ["application/json", "application/x-ndjson", "text/plain"] {
            assert!(matches!(of(&[("content-type", json)]), Some(UsageScanner::Json(_))), "{json}");
        }
        assert!(matches!(of(&[]), Some(UsageScanner::Json(_))));
        assert!(of(&[("content-encoding", "identity")]).is_some());
        for coding in ["gzip", "identity, br", "x"] {
            assert!(of(&[("content-encoding", coding)]).is_none(), "{coding}");
        }
    }
}
