//! `ShouldRateLimit` over gRPC.

use std::time::Duration;

use bytes::{BufMut, Bytes};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use prost::Message;
use tonic::{Code, Status};

use super::messages::{RateLimitRequest, RateLimitResponse};
use super::question::QuestionError;
use super::{AnswerBody, RlsServer, Settings};
use crate::whole_body::{BodyError, WholeBody};

pub(super) const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

const CONTENT: HeaderValue = HeaderValue::from_static("application/grpc");

/// Length of a message's prefix: its flag and its length.
const PREFIX: usize = 5;

/// Answers a call. Exceeding the limit is a normal response; only invalid requests are errors.
pub(super) async fn call<B: Body<Data = Bytes> + Unpin>(
    server: &RlsServer,
    request: Request<B>,
) -> Response<AnswerBody> {
    match answer(server, request).await {
        Ok(answer) => respond(AnswerBody::GrpcMessage(framed(&answer))),
        Err(status) => status.into_http().map(AnswerBody::Routed),
    }
}

async fn answer<B: Body<Data = Bytes> + Unpin>(
    server: &RlsServer,
    request: Request<B>,
) -> Result<RateLimitResponse, Status> {
    let Settings { most_bytes, arrival, .. } = **server.0.settings.load();
    let body = WholeBody::new(request.into_body(), most_bytes + PREFIX, arrival).await?;
    let message = RateLimitRequest::decode(unframed(&body)?)
        .map_err(|error| Status::invalid_argument(format!("not a RateLimitRequest: {error}")))?;
    Ok(server.decide(&message).await?)
}

/// The response to a call whose message did not arrive in time.
pub(super) fn too_slow(within: Duration) -> Response<AnswerBody> {
    Status::from(BodyError::TooSlow { within }).into_http().map(AnswerBody::Routed)
}

fn respond(body: AnswerBody) -> Response<AnswerBody> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, CONTENT);
    response
}

/// The single message in a body.
fn unframed(body: &[u8]) -> Result<&[u8], Status> {
    let Some((prefix, message)) = body.split_first_chunk::<PREFIX>() else {
        return Err(Status::invalid_argument("there is no message: send a RateLimitRequest"));
    };
    let [flag, length @ ..] = *prefix;
    match flag {
        0 => {}
        1 => return Err(Status::unimplemented("the message is compressed: send it as it is")),
        _ => {
            return Err(Status::invalid_argument(
                "the message does not begin with 0, the flag of an uncompressed message",
            ));
        }
    }
    if usize::try_from(u32::from_be_bytes(length)) != Ok(message.len()) {
        return Err(Status::invalid_argument(
            "the length of the message differs from its prefix: send one whole message",
        ));
    }
    Ok(message)
}

#[expect(clippy::cast_possible_truncation, reason = "an answer has one short status for each of a few descriptors")]
fn framed(answer: &RateLimitResponse) -> Vec<u8> {
    let length = answer.encoded_len();
    let mut bytes = Vec::with_capacity(PREFIX + length);
    bytes.put_u8(0);
    bytes.put_u32(length as u32);
    answer.encode_raw(&mut bytes);
    bytes
}

impl From<QuestionError> for Status {
    fn from(error: QuestionError) -> Status {
        Status::invalid_argument(error.to_string())
    }
}

impl From<BodyError> for Status {
    fn from(error: BodyError) -> Status {
        let code = match error {
            BodyError::TooLarge { .. } => Code::ResourceExhausted,
            BodyError::TooSlow { .. } => Code::DeadlineExceeded,
            BodyError::Broken => Code::Cancelled,
        };
        Status::new(code, error.to_string())
    }
}

/// Whether a request uses gRPC.
pub(super) fn is_spoken<B>(request: &Request<B>) -> bool {
    let content = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    content.is_some_and(|content| content.starts_with(b"application/grpc"))
}
