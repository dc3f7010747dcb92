//! Bodies that are looked into as they pass.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use tidegate_rules::FieldPath;

use crate::json::{EventFinder, FieldFinder};

/// Looks for numbers in a few fields of a body as it passes: of JSON, of lines of JSON, or of the events of a
/// `text/event-stream`. Nothing of the body is kept.
#[derive(Debug)]
pub enum PassingBody {
    /// JSON, or lines of it.
    Json(FieldFinder),
    /// Events.
    Events(EventFinder),
}

impl PassingBody {
    /// Looks for these fields in the body that comes with these headers. `None` if it is compressed: nobody looks into that.
    #[must_use]
    pub fn of(headers: &HeaderMap, paths: &[FieldPath]) -> Option<PassingBody> {
        if is_encoded(headers) {
            return None;
        }
        Some(if is_event_stream(headers) {
            PassingBody::Events(EventFinder::new(paths))
        } else {
            PassingBody::Json(FieldFinder::new(paths))
        })
    }

    /// The next piece.
    pub fn feed(&mut self, bytes: &[u8]) {
        match self {
            PassingBody::Json(finder) => finder.feed(bytes),
            PassingBody::Events(finder) => finder.feed(bytes),
        }
    }

    /// The last number in the field of this number, as it is written.
    #[must_use]
    pub fn found(&self, field: usize) -> Option<&str> {
        match self {
            PassingBody::Json(finder) => finder.found(field),
            PassingBody::Events(finder) => finder.found(field),
        }
    }

    /// Whether the body has said itself that it is over.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        match self {
            PassingBody::Json(_) => false,
            PassingBody::Events(finder) => finder.is_done(),
        }
    }
}

/// Whether a body is compressed or otherwise encoded, so that its bytes are not what it says.
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
    fn what_a_body_is_stands_in_its_headers() {
        let paths = ["n".parse().unwrap()];
        let of = |pairs: &[(&'static str, &'static str)]| PassingBody::of(&headers(pairs), &paths);
        for events in ["text/event-stream", "Text/Event-Stream; charset=utf-8"] {
            assert!(matches!(of(&[("content-type", events)]), Some(PassingBody::Events(_))), "{events}");
        }
        for json in ["application/json", "application/x-ndjson", "text/plain"] {
            assert!(matches!(of(&[("content-type", json)]), Some(PassingBody::Json(_))), "{json}");
        }
        assert!(matches!(of(&[]), Some(PassingBody::Json(_))));
        assert!(of(&[("content-encoding", "identity")]).is_some());
        for coding in ["gzip", "identity, br", "x"] {
            assert!(of(&[("content-encoding", coding)]).is_none(), "{coding}");
        }
    }
}
