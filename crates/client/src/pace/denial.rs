//! Responses that deny a request because of its rate.

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, StatusCode};

use crate::grpc;

const RESOURCE: HeaderName = HeaderName::from_static("x-ratelimit-resource");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const GLOBAL: HeaderName = HeaderName::from_static("x-ratelimit-global");
const SCOPE: HeaderName = HeaderName::from_static("x-ratelimit-scope");

/// Whether a response denies a request because of its rate: 429, gRPC's `RESOURCE_EXHAUSTED`, or GitHub's 403 with nothing
/// remaining or with a time to wait.
pub(crate) fn is_denied(status: StatusCode, headers: &HeaderMap) -> bool {
    let is_githubs = || {
        headers.contains_key(RESOURCE)
            && (headers.get(REMAINING).is_some_and(|left| left == "0") || headers.contains_key(RETRY_AFTER))
    };
    status == StatusCode::TOO_MANY_REQUESTS
        || (status == StatusCode::FORBIDDEN && is_githubs())
        || (grpc::is_grpc(headers) && grpc::status(headers) == Some(grpc::RESOURCE_EXHAUSTED))
}

/// Whether a denial applies to all routes of the host: Discord's global limit, and GitHub's secondary limits, which apply
/// while its resources have quota left.
pub(super) fn is_host_wide(headers: &HeaderMap) -> bool {
    let is_global = headers.get(GLOBAL).is_some_and(|global| global.as_bytes().eq_ignore_ascii_case(b"true"))
        || headers.get(SCOPE).is_some_and(|scope| scope == "global");
    let is_secondary = || {
        headers.contains_key(RESOURCE)
            && headers.contains_key(RETRY_AFTER)
            && headers.get(REMAINING).is_some_and(|left| left != "0")
    };
    is_global || is_secondary()
}
