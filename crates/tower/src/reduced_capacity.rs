//! The response to a request that is refused for lack of capacity.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tidegate_http::{REDUCED_CAPACITY, is_grpc};

use crate::delivery::Unserved;

const DETAIL: &str = "The service is overloaded; the request was not processed.";

/// 503 with a problem and `Retry-After`, or a gRPC status, for a request with these headers.
#[cold]
pub(crate) fn refusal(headers: &HeaderMap) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    response.extensions_mut().insert(Unserved);
    if is_grpc(headers) {
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from_static("14"));
        headers.insert("grpc-message", HeaderValue::from_static(DETAIL));
        return response;
    }
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    // Clients that are refused together do not come back together.
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(fastrand::u16(1..=5)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    // Neither text has characters that JSON escapes.
    let text = format!(
        r#"{{"type":"{REDUCED_CAPACITY}","title":"Too little capacity for the moment","status":503,"detail":"{DETAIL}"}}"#
    );
    *response.body_mut() = Bytes::from(text);
    response
}
