//! Why a request does not go ahead, in JSON (RFC 9457).

use std::fmt::{self, Write};

use bytes::Bytes;
use tidegate_core::Micros;

use crate::reply::{Refused, Reply};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

pub(crate) fn json(reply: &Reply<'_>, refused: Refused<'_>) -> Bytes {
    let (kind, title) = match refused {
        Refused::Denied(_) | Refused::TooLarge(_) => (QUOTA_EXCEEDED, "The assigned quota has been exceeded"),
        Refused::Unavailable(_) => (REDUCED_CAPACITY, "Too little capacity for the moment"),
        Refused::Unkeyed(_) => ("about:blank", "Forbidden"),
    };
    let (status, detail) = (reply.status().as_u16(), Detail { reply, refused });
    // Written by hand, since denials come by the hundred thousand. All of it is plain text but for the names of limits.
    let mut text = String::with_capacity(320);
    let _ = write!(text, r#"{{"type":"{kind}","title":"{title}","status":{status},"detail":"{detail}""#);
    let mut violated = reply.violated();
    if let Some(first) = violated.next() {
        text.push_str(r#","violated-policies":["#);
        put_quoted(&mut text, first);
        for limit in violated {
            text.push(',');
            put_quoted(&mut text, limit);
        }
        text.push(']');
    }
    text.push('}');
    Bytes::from(text)
}

/// A string as JSON writes it.
fn put_quoted(text: &mut String, name: &str) {
    text.push('"');
    for character in name.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            control if control < ' ' => {
                let _ = write!(text, "\\u{:04x}", u32::from(control));
            }
            plain => text.push(plain),
        }
    }
    text.push('"');
}

/// The same in a sentence or two.
pub(crate) struct Detail<'a> {
    pub(crate) reply: &'a Reply<'a>,
    pub(crate) refused: Refused<'a>,
}

impl fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.reply.retry_after().map_or(1, Micros::as_secs_ceil).max(1);
        match self.refused {
            Refused::Denied(_) => write!(f, "Too many requests. Try again in {seconds} s."),
            Refused::Unavailable(_) => {
                write!(f, "Whether there is room for this request cannot be told now. Try again in {seconds} s.")
            }
            Refused::TooLarge(max) if self.reply.violated().next().is_some() => {
                write!(f, "This request costs more than can ever pass at once, which is {max}. Trying again is no use.")
            }
            Refused::TooLarge(_) => {
                f.write_str("This request costs more than can ever pass at once. Trying again is no use.")
            }
            Refused::Unkeyed(_) => {
                f.write_str("This request does not say whom it is for, and is refused without that.")
            }
        }
    }
}
