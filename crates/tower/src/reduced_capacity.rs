//! The response to a request refused for lack of capacity.

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tidegate_http::{FixedRefusal, REDUCED_CAPACITY, is_grpc};

use crate::response_markers::{Shed, Unserved};

/// 503, or UNAVAILABLE for a gRPC call.
const OVERLOADED: FixedRefusal = FixedRefusal {
    kind: REDUCED_CAPACITY,
    title: Some("Too little capacity for the moment"),
    status: StatusCode::SERVICE_UNAVAILABLE,
    grpc_status: 14,
    detail: "The service is overloaded; the request was not processed.",
};

/// 503 with a problem and `Retry-After`, or a gRPC status, for a request with these headers.
#[cold]
pub(crate) fn refusal(headers: &HeaderMap) -> Response<Bytes> {
    let mut response = OVERLOADED.response(headers);
    response.extensions_mut().insert(Unserved);
    response.extensions_mut().insert(Shed);
    if !is_grpc(headers) {
        // A random wait spreads the retries of clients that are refused together.
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(fastrand::u16(1..=5)));
    }
    response
}
