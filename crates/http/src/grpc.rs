//! Refusals as gRPC statuses.
//!
//! The status goes into headers. `grpc-status-details-bin` holds a `google.rpc.Status` with a `google.rpc.RetryInfo`, by
//! which client libraries time their retries. These are three small protobuf messages, encoded here by hand.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_core::Micros;
use tidegate_core::disclosure::DenialKind;
use tidegate_rules::KeyFault;

use crate::refusal_problem::ProblemDetail;
use crate::reply::{Reply, ReplyRefusal};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

pub(crate) const INVALID_ARGUMENT: u8 = 3;
const PERMISSION_DENIED: u8 = 7;
const RESOURCE_EXHAUSTED: u8 = 8;
const UNAVAILABLE: u8 = 14;

const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// Returns `true` if a request is a gRPC call, by its content type.
#[must_use]
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(CONTENT_TYPE) else { return false };
    // gRPC-Web is a different protocol, with trailers in the body.
    kind.as_bytes()
        .strip_prefix(b"application/grpc")
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

pub(crate) fn write(reply: &Reply<'_, '_>, refusal: ReplyRefusal, headers: &mut HeaderMap) {
    let code = match refusal {
        ReplyRefusal::Denied(_) if reply.denial_kind() == DenialKind::ReducedCapacity => UNAVAILABLE,
        ReplyRefusal::Denied(_) | ReplyRefusal::TooLarge(_) => RESOURCE_EXHAUSTED,
        ReplyRefusal::Unavailable(_) => UNAVAILABLE,
        ReplyRefusal::Unkeyed(KeyFault::Missing) => PERMISSION_DENIED,
        ReplyRefusal::Unkeyed(KeyFault::Repeated | KeyFault::Unmeasured) => INVALID_ARGUMENT,
    };
    let message = ProblemDetail { reply, refusal }.to_string();
    if let Some(wait) = reply.retry_after() {
        let details = STANDARD_NO_PAD.encode(status(code, &message, wait));
        // Cannot fail: Base64 is a valid value.
        if let Ok(details) = HeaderValue::try_from(details) {
            headers.insert(DETAILS, details);
        }
    }
    // Cannot fail: every message is ASCII.
    write_status(code, HeaderValue::try_from(message).unwrap_or(HeaderValue::from_static("")), headers);
}

/// Writes a status with a message that needs no percent-encoding: printable ASCII without `%`.
pub(crate) fn write_status(code: u8, message: HeaderValue, headers: &mut HeaderMap) {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(STATUS, HeaderValue::from(u16::from(code)));
    headers.insert(MESSAGE, message);
}

/// `Status { code, message, details: [Any { type_url, value: RetryInfo { retry_delay } }] }`
fn status(code: u8, message: &str, wait: Micros) -> Vec<u8> {
    let mut delay = Vec::new();
    number(&mut delay, 1, wait.get() / 1_000_000);
    number(&mut delay, 2, wait.get() % 1_000_000 * 1_000);
    let mut retry_info = Vec::new();
    bytes(&mut retry_info, 1, &delay);
    let mut any = Vec::new();
    bytes(&mut any, 1, RETRY_INFO.as_bytes());
    bytes(&mut any, 2, &retry_info);
    let mut status = Vec::new();
    number(&mut status, 1, u64::from(code));
    bytes(&mut status, 2, message.as_bytes());
    bytes(&mut status, 3, &any);
    status
}

fn number(out: &mut Vec<u8>, field: u8, value: u64) {
    out.push(field << 3);
    varint(out, value);
}

fn bytes(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

#[expect(clippy::cast_possible_truncation, reason = "seven bits at a time")]
fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
