//! Headers that Envoy adds to the client's response.

use http::HeaderMap;
use tidegate_core::Timestamp;
use tidegate_http::{Caller, HeaderStyle, Reply, ReplyContext};
use tidegate_rules::Ruling;

use super::messages::HeaderValue;

/// The headers for a ruling, in this style. The client is unknown, because Envoy does not identify it.
pub(super) fn of(ruling: &Ruling<'_>, style: &HeaderStyle, at: Timestamp) -> Vec<HeaderValue> {
    if ruling.is_allowed() && !style.on_allowed {
        return Vec::new();
    }
    let random = if style.jitter.is_zero() { 0 } else { fastrand::u64(..) };
    let mut headers = HeaderMap::new();
    let context = ReplyContext { at, caller: Caller::Unauthenticated, random };
    Reply::new(ruling, style, context).write_headers(&mut headers);
    let written = headers.iter().filter_map(|(name, value)| {
        let value = value.to_str().ok()?.to_owned();
        Some(HeaderValue { key: name.as_str().to_owned(), value, raw_value: Vec::new() })
    });
    written.collect()
}
