//! The response to a request whose client has no address, where rules go by it.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tidegate_http::is_grpc;

/// What is wrong, and what to add.
pub(crate) const DETAIL: &str = "Requests are limited by the address of their client, and come without one. With axum, turn \
                                 on the feature `axum` of tidegate-tower and serve \
                                 `app.into_make_service_with_connect_info::<SocketAddr>()`; with tonic, turn on the feature \
                                 `tonic`; otherwise put a `tidegate_tower::Peer` into the extensions of requests. \
                                 `RateLimitLayer::sharing_missing_addresses` takes them for one client instead.";

/// 500, or INTERNAL for a gRPC call: the program is at fault.
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
    // It has no characters that JSON would write otherwise.
    let text = format!(r#"{{"type":"about:blank","title":"Internal Server Error","status":500,"detail":"{DETAIL}"}}"#);
    *response.body_mut() = Bytes::from(text);
    response
}
