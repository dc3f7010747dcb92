//! The headers that Envoy is to add to the response.

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use http::HeaderMap;
use tidegate_core::Timestamp;
use tidegate_http::{Caller, HeaderStyle, Reply, ReplyContext};
use tidegate_rules::Ruling;

/// The headers that the style shows of a ruling. Envoy does not say who the client is.
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
