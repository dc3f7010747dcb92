//! The response to a request whose path is refused.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde::Serialize;
use tidegate_rules::PathRefusal;

use crate::grpc::is_grpc;

#[derive(Serialize)]
struct PathProblem {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    detail: &'static str,
}

/// The response to a request whose path is refused: 400 with an RFC 9457 problem, or `INVALID_ARGUMENT` for a gRPC call.
/// `headers` are those of the request.
#[must_use]
pub fn path_refused(why: PathRefusal, headers: &HeaderMap) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    if is_grpc(headers) {
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from_static("3"));
        headers.insert("grpc-message", HeaderValue::from_static(why.reason()));
        return response;
    }
    let problem = PathProblem { kind: "about:blank", title: "Bad Request", status: 400, detail: why.reason() };
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    // Cannot fail: text and numbers are always valid JSON.
    *response.body_mut() = Bytes::from(serde_json::to_vec(&problem).unwrap_or_default());
    response
}

#[cfg(test)]
mod tests {
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
