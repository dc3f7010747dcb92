//! Converts refusals by the rules to problems.

use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use tidegate_core::Micros;
use tidegate_core::disclosure::DenialKind;
use tidegate_rules::KeyFault;

use crate::problem_document::{ProblemDocument, REDUCED_CAPACITY, UNTYPED};
use crate::reply::{Reply, ReplyRefusal};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const ABNORMAL_USAGE: &str = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";

const REDUCED: (&str, &str) = (REDUCED_CAPACITY, "Too little capacity for the moment");

#[derive(Serialize)]
struct ViolatedPolicies<'a> {
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    violated: Vec<&'a str>,
}

pub(crate) fn kind_and_title(reply: &Reply<'_, '_>, refusal: ReplyRefusal) -> (&'static str, &'static str) {
    match refusal {
        ReplyRefusal::Denied(_) | ReplyRefusal::TooLarge(_) => match reply.denial_kind() {
            DenialKind::QuotaExceeded => (QUOTA_EXCEEDED, "The assigned quota has been exceeded"),
            DenialKind::AbnormalUsage => (ABNORMAL_USAGE, "Abnormal usage has been detected"),
            DenialKind::ReducedCapacity => REDUCED,
        },
        ReplyRefusal::Unavailable(_) => REDUCED,
        ReplyRefusal::Unkeyed(KeyFault::Missing) => (UNTYPED, "Forbidden"),
        ReplyRefusal::Unkeyed(KeyFault::Repeated) => (UNTYPED, "Bad Request"),
        ReplyRefusal::Unkeyed(KeyFault::Unmeasured) => (UNTYPED, "Length Required"),
    }
}

pub(crate) fn json(reply: &Reply<'_, '_>, refusal: ReplyRefusal) -> Bytes {
    let (kind, title) = kind_and_title(reply, refusal);
    let extension = ViolatedPolicies { violated: reply.violated().collect() };
    let status = reply.status().as_u16();
    ProblemDocument { kind, title, status, detail: ProblemDetail { reply, refusal }, extension }.to_json()
}

/// The reason for a refusal, in one or two sentences.
pub(crate) struct ProblemDetail<'a, 'r> {
    pub(crate) reply: &'a Reply<'a, 'r>,
    pub(crate) refusal: ReplyRefusal,
}

impl fmt::Display for ProblemDetail<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.reply.retry_after().map_or(1, Micros::as_secs_ceil).max(1);
        match self.refusal {
            ReplyRefusal::Denied(_) if self.reply.denial_kind() == DenialKind::ReducedCapacity => {
                write!(f, "There are more requests than can be served. Try again in {seconds} s.")
            }
            ReplyRefusal::Denied(_) => write!(f, "Too many requests. Try again in {seconds} s."),
            ReplyRefusal::Unavailable(_) => {
                write!(f, "The limits of this request cannot be checked now. Try again in {seconds} s.")
            }
            ReplyRefusal::TooLarge(max) if self.reply.shows_max() => {
                write!(
                    f,
                    "This request costs more than can ever pass at once, which is {max}. Retrying cannot succeed."
                )
            }
            ReplyRefusal::TooLarge(_) => {
                f.write_str("This request costs more than can ever pass at once. Retrying cannot succeed.")
            }
            ReplyRefusal::Unkeyed(KeyFault::Missing) => {
                f.write_str("This request lacks a value that its limit is counted by, and is refused without it.")
            }
            ReplyRefusal::Unkeyed(KeyFault::Repeated) => f.write_str(
                "A header, cookie or query parameter that requests are limited by occurs more than once. Send it once.",
            ),
            ReplyRefusal::Unkeyed(KeyFault::Unmeasured) => {
                f.write_str("The cost of this request is the length of its body. Send a Content-Length.")
            }
        }
    }
}
