//! The response to a request without a client address where a rule needs one.

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use tidegate_http::FixedRefusal;

/// The status of a gRPC call that meets a fault of the server.
const INTERNAL: u8 = 13;

/// The problem and its remedy.
pub(crate) const DETAIL: &str = "Requests are limited by client address, but they have none. With axum, turn \
                                 on the feature `axum` of tidegate-tower and serve \
                                 `app.into_make_service_with_connect_info::<SocketAddr>()`; with tonic, turn on the feature \
                                 `tonic`; otherwise insert a `tidegate_tower::Peer` into each request's extensions. \
                                 `RateLimitLayer::share_missing_addresses` treats them as one client instead.";

/// A 500, or INTERNAL for a gRPC call, because the program is misconfigured.
#[cold]
pub(crate) fn refused(headers: &HeaderMap) -> Response<Bytes> {
    FixedRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, INTERNAL, DETAIL).response(headers)
}
