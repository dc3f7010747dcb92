//! The response to a request whose path is refused.

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use tidegate_rules::PathRefusal;

use crate::fixed_refusal::FixedRefusal;
use crate::grpc::INVALID_ARGUMENT;

/// The response to a request whose path is refused: 400 with an RFC 9457 problem, or `INVALID_ARGUMENT` for a gRPC call.
/// `headers` are those of the request.
#[must_use]
pub fn path_refused(why: PathRefusal, headers: &HeaderMap) -> Response<Bytes> {
    FixedRefusal::new(StatusCode::BAD_REQUEST, INVALID_ARGUMENT, why.reason()).response(headers)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::CONTENT_TYPE;

    use super::*;

    #[test]
    fn a_refusal_states_its_reason() {
        let response = path_refused(PathRefusal::EncodedSlash, &HeaderMap::new());
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        assert!(String::from_utf8_lossy(response.body()).contains("encoded slash"));
        let grpc = [(CONTENT_TYPE, HeaderValue::from_static("application/grpc"))].into_iter().collect();
        assert_eq!(path_refused(PathRefusal::Control, &grpc).headers()["grpc-status"], "3");
    }
}
