//! The response to a request without a client address where a rule needs one.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tidegate_http::is_grpc;

/// The problem and its remedy.
pub(crate) const DETAIL: &str = "Requests are limited by client address, but they have none. With axum, turn \
                                 on the feature `axum` of tidegate-tower and serve \
                                 `app.into_make_service_with_connect_info::<SocketAddr>()`; with tonic, turn on the feature \
                                 `tonic`; otherwise insert a `tidegate_tower::Peer` into each request's extensions. \
                                 `RateLimitLayer::share_missing_addresses` treats them as one client instead.";

/// A 500, or INTERNAL for a gRPC call, because the program is misconfigured.
#[cold]
pub(crate) fn refused(headers: &HeaderMap) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    if is_grpc(headers) {
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from_static("13"));
        headers.insert("grpc-message", HeaderValue::from_static(DETAIL));
        return response;
    }
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    // `DETAIL` has no characters that JSON escapes.
    let text = format!(r#"{{"type":"about:blank","title":"Internal Server Error","status":500,"detail":"{DETAIL}"}}"#);
    *response.body_mut() = Bytes::from(text);
    response
}
