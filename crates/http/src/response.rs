//! The response to a refused request, assembled for HTTP and for gRPC.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response};

use crate::denial_body::DenialBodies;
use crate::problem_document::PROBLEM_JSON;
use crate::reply::{Reply, ReplyRefusal};
use crate::template::TemplateValues;
use crate::{grpc, refusal_problem};

impl Reply<'_, '_> {
    /// The refusal as an RFC 9457 problem in JSON. Empty for an allowed request.
    #[must_use]
    pub fn problem(&self) -> Bytes {
        self.refusal().map(|refusal| refusal_problem::json(self, refusal)).unwrap_or_default()
    }

    /// The complete response to a refused request, with a problem in JSON. For an allowed request it is an empty 200.
    #[must_use]
    pub fn response(&self) -> Response<Bytes> {
        self.response_with(|_, answer| {
            answer.insert(CONTENT_TYPE, PROBLEM_JSON);
            self.problem()
        })
    }

    /// The complete response to a refused request, with a body from `bodies`. `request` is the headers of the request.
    #[must_use]
    pub fn response_as(&self, bodies: &DenialBodies, request: &HeaderMap) -> Response<Bytes> {
        self.response_with(|refusal, answer| {
            let (kind, title) = refusal_problem::kind_and_title(self, refusal);
            let explanation = TemplateValues {
                status: self.status(),
                kind,
                title,
                detail: &refusal_problem::ProblemDetail { reply: self, refusal },
                rule: self.violated().next(),
                retry_after: self.retry_after().map(|wait| wait.as_secs_ceil().max(1)),
                request_id: None,
            };
            bodies.write(explanation, request, answer, || self.problem())
        })
    }

    fn response_with(&self, body: impl FnOnce(ReplyRefusal, &mut HeaderMap) -> Bytes) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = self.status();
        let limits = self.headers();
        // Two more for `Content-Type` and `Vary`.
        response.headers_mut().reserve(limits.len() + 2);
        if let Some(refusal) = self.refusal() {
            *response.body_mut() = body(refusal, response.headers_mut());
            // Caches never store a 429, but they may store a rule's own status, such as 404.
            if matches!(refusal, ReplyRefusal::Denied(_)) && self.status_of_rule().is_some() {
                response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            }
        }
        limits.insert_into(response.headers_mut());
        response
    }

    /// The headers of a complete gRPC response to a refused request. Its HTTP status is 200 and its body is empty.
    ///
    /// | gRPC status | the request |
    /// |---|---|
    /// | `RESOURCE_EXHAUSTED`, with `RetryInfo` if a retry can succeed | was denied by a limit |
    /// | `UNAVAILABLE`, with `RetryInfo` | was denied by rules with `shed` only, or because the store is unavailable |
    /// | `PERMISSION_DENIED` | lacks a part of a rule's key |
    /// | `INVALID_ARGUMENT` | repeats a part of a rule's key, or has a body of unknown length |
    #[must_use]
    pub fn grpc_headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        self.write_headers(&mut headers);
        if let Some(refusal) = self.refusal() {
            grpc::write(self, refusal, &mut headers);
        }
        headers
    }
}
