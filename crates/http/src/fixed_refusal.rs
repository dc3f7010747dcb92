//! Refusals with a constant text.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use crate::grpc::{self, is_grpc};
use crate::problem_document::{PROBLEM_JSON, ProblemDocument, UNTYPED};

/// The refusal of a request for a reason other than a rule.
#[derive(Clone, Copy, Debug)]
pub struct FixedRefusal {
    /// The type of the problem, as a URI.
    pub kind: &'static str,
    /// The title of the problem. `None` means the usual phrase for the status.
    pub title: Option<&'static str>,
    /// The status of the response.
    pub status: StatusCode,
    /// The status of the response to a gRPC call.
    pub grpc_status: u8,
    /// The problem and a suggestion: printable ASCII without `%`.
    pub detail: &'static str,
}

impl FixedRefusal {
    /// A refusal whose problem has no type besides its status.
    #[must_use]
    pub const fn new(status: StatusCode, grpc_status: u8, detail: &'static str) -> FixedRefusal {
        FixedRefusal { kind: UNTYPED, title: None, status, grpc_status, detail }
    }

    /// The response to a request with these headers: a gRPC status for a gRPC call, otherwise a problem.
    #[must_use]
    pub fn response(&self, request: &HeaderMap) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        if is_grpc(request) {
            grpc::write_status(self.grpc_status, HeaderValue::from_static(self.detail), response.headers_mut());
            return response;
        }
        let &FixedRefusal { kind, title, status, detail, .. } = self;
        let title = title.or(status.canonical_reason()).unwrap_or("Error");
        let document = ProblemDocument { kind, title, status: status.as_u16(), detail, extension: () };
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, PROBLEM_JSON);
        *response.body_mut() = document.to_json();
        response
    }
}
