//! The headers that tell clients how they stand.

use std::borrow::Cow;
use std::fmt::Write;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_core::rules::Mode;
use tidegate_core::{Micros, Ruled, Timestamp};

use crate::reply::{Caller, Reply};
use crate::written::Written;

/// Which headers clients see, and who sees them.
///
/// `Retry-After` is not a matter of style: a denied request always has it, unless it can never succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderStyle {
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, of the limit that is closest to its end, with the reset in this
    /// form; `None` leaves them out.
    pub x_ratelimit: Option<ResetForm>,
    /// `RateLimit` and `RateLimit-Policy`, of every limit that counts, as the IETF drafts them.
    pub ietf: bool,
    /// `X-RateLimit-Bucket`: the name of the limit that the other `X-RateLimit` headers tell of.
    pub bucket: bool,
    /// `X-RateLimit-Reset-After`: seconds with their thousandths.
    pub reset_after: bool,
    /// Whether answers to requests that were allowed have them too.
    pub on_allowed: bool,
    /// Who sees them. To others, a denial says when to come back and nothing more.
    pub audience: Audience,
    /// Up to how much is added to waits by chance, so that those who were denied together do not come back together.
    pub jitter: Micros,
}

impl Default for HeaderStyle {
    /// `X-RateLimit` with seconds to go and the IETF's headers, on every answer, to everyone, without jitter.
    fn default() -> HeaderStyle {
        HeaderStyle {
            x_ratelimit: Some(ResetForm::Delta),
            ietf: true,
            bucket: false,
            reset_after: false,
            on_allowed: true,
            audience: Audience::Everyone,
            jitter: Micros::ZERO,
        }
    }
}

impl HeaderStyle {
    /// No headers but `Retry-After`.
    #[must_use]
    pub fn none() -> HeaderStyle {
        HeaderStyle { x_ratelimit: None, ietf: false, ..HeaderStyle::default() }
    }
}

/// How a reset is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResetForm {
    /// Seconds to go.
    Delta,
    /// Seconds since the Unix epoch.
    Epoch,
}

/// Who sees the headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Audience {
    /// Everyone.
    #[default]
    Everyone,
    /// Only callers of whom somebody has verified who they are.
    Authenticated,
}

impl Audience {
    pub(crate) fn has(self, caller: Caller) -> bool {
        match (self, caller) {
            (Audience::Everyone, Caller::Authenticated | Caller::Unauthenticated)
            | (Audience::Authenticated, Caller::Authenticated) => true,
            (Audience::Authenticated, Caller::Unauthenticated) => false,
        }
    }
}

/// The headers that are written anew for each response, in the order in which that is done.
#[derive(Clone, Copy, Debug)]
enum Name {
    RetryAfter,
    Limit,
    Remaining,
    Reset,
    ResetAfter,
    Bucket,
    RateLimit,
}

// Constants, because making a name out of text costs as much as the rest of a header.
const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const RESET_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-reset-after");
const BUCKET: HeaderName = HeaderName::from_static("x-ratelimit-bucket");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");

impl Name {
    const ALL: [Name; 7] =
        [Name::RetryAfter, Name::Limit, Name::Remaining, Name::Reset, Name::ResetAfter, Name::Bucket, Name::RateLimit];

    const fn header(self) -> HeaderName {
        match self {
            Name::RetryAfter => RETRY_AFTER,
            Name::Limit => LIMIT,
            Name::Remaining => REMAINING,
            Name::Reset => RESET,
            Name::ResetAfter => RESET_AFTER,
            Name::Bucket => BUCKET,
            Name::RateLimit => RATE_LIMIT,
        }
    }
}

impl Reply<'_, '_> {
    /// Writes what the style shows into `headers`, in place of what is there under the same names.
    pub fn write_headers(&self, headers: &mut HeaderMap) {
        self.headers().insert_into(headers);
    }

    /// What the style shows, for a response that is yet to come.
    #[must_use]
    pub fn headers(&self) -> ReplyHeaders {
        let mut values = ReplyHeaders::default();
        if let Some(wait) = self.retry_after() {
            values.number(Name::RetryAfter, wait.as_secs_ceil().max(1));
        }
        if self.shows_headers() {
            self.conventional(&mut values);
            if self.style.ietf {
                Written::with(self.limits(), |written| {
                    values.policy = written.policy();
                    values.write(Name::RateLimit, |text| standing(text, self.limits(), written));
                });
            }
        }
        values
    }

    fn shows_headers(&self) -> bool {
        self.style.audience.has(self.asked.caller) && (self.style.on_allowed || !self.ruling.is_allowed())
    }

    /// The limits that count.
    fn limits(&self) -> impl Iterator<Item = &Ruled<'_>> + Clone {
        self.ruling.ruled.iter().filter(|ruled| ruled.mode == Mode::Enforce)
    }

    fn conventional(&self, values: &mut ReplyHeaders) {
        let Some(ruled) = self.ruling.verdict.telling.and_then(|telling| self.ruling.ruled.get(telling)) else {
            return;
        };
        let decision = &ruled.decision;
        if let Some(form) = self.style.x_ratelimit {
            values.number(Name::Limit, decision.limit);
            values.number(Name::Remaining, decision.remaining);
            let reset = match form {
                ResetForm::Delta => decision.reset_after,
                ResetForm::Epoch => (self.asked.at + decision.reset_after).since(Timestamp::EPOCH),
            };
            values.number(Name::Reset, reset.as_secs_ceil());
        }
        if self.style.reset_after {
            let millis = decision.reset_after.as_millis_ceil();
            // Writing into a string does not fail.
            values.write(Name::ResetAfter, |text| {
                let _ = write!(text, "{}.{:03}", millis / 1_000, millis % 1_000);
            });
        }
        if self.style.bucket {
            values.write(Name::Bucket, |text| text.push_str(&printable(ruled.id.as_str())));
        }
    }
}

/// `"burst";r=12;t=2, "daily";r=900;t=70000`
fn standing<'r>(text: &mut String, limits: impl Iterator<Item = &'r Ruled<'r>>, written: &Written) {
    let start = text.len();
    for (ruled, name) in limits.zip(written.names()) {
        if text.len() > start {
            text.push_str(", ");
        }
        text.push_str(name);
        text.push_str(";r=");
        put_number(text, ruled.decision.remaining.min(LARGEST));
        text.push_str(";t=");
        put_number(text, ruled.decision.reset_after.as_secs_ceil().min(LARGEST));
    }
}

/// Structured fields hold numbers of up to 15 digits. Larger ones are as good as the largest.
const LARGEST: u64 = 999_999_999_999_999;

fn put_number(text: &mut String, number: u64) {
    text.push_str(itoa::Buffer::new().format(number));
}

/// A name in characters that a header can hold.
pub(crate) fn printable(name: &str) -> Cow<'_, str> {
    let is_printable = |byte: u8| (b' '..=b'~').contains(&byte);
    if name.bytes().all(is_printable) { Cow::Borrowed(name) } else { Cow::Owned(name.escape_default().to_string()) }
}

/// Headers that tell how a request stands, written and not yet in a response.
#[derive(Clone, Debug, Default)]
pub struct ReplyHeaders {
    /// Many responses share one.
    policy: Option<HeaderValue>,
    /// The values of the others, one after the other. In the end all of them share it.
    text: String,
    /// Where the value of each ends, in the order of [`Name`]; 0 if it is not there.
    ends: [u32; Name::ALL.len()],
}

impl ReplyHeaders {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        usize::from(self.policy.is_some()) + self.ends.iter().filter(|end| **end > 0).count()
    }

    /// Puts them into `headers`, in place of what is there under the same names.
    pub fn insert_into(self, headers: &mut HeaderMap) {
        let number = self.len();
        // So that the map grows once, if it has to. A response may have so many headers already that there is no room for
        // more: it goes without.
        if number == 0 || headers.try_reserve(number).is_err() {
            return;
        }
        let text = Bytes::from(self.text);
        let mut start = 0;
        for (name, end) in Name::ALL.into_iter().zip(self.ends).filter(|(_, end)| *end > 0) {
            let end = end as usize;
            // Digits and printable characters always make a value.
            if let Ok(value) = HeaderValue::from_maybe_shared(text.slice(start..end)) {
                let _ = headers.try_insert(name.header(), value);
            }
            start = end;
        }
        if let Some(policy) = self.policy {
            let _ = headers.try_insert(POLICY, policy);
        }
    }

    /// Keeps what `write` adds to the buffer as a header's value, if it adds anything. To be called in the order of the
    /// names.
    fn write(&mut self, name: Name, write: impl FnOnce(&mut String)) {
        if self.text.capacity() == 0 {
            self.text.reserve(256);
        }
        let start = self.text.len();
        write(&mut self.text);
        match u32::try_from(self.text.len()) {
            Ok(end) if self.text.len() > start => self.ends[name as usize] = end,
            _ => self.text.truncate(start),
        }
    }

    fn number(&mut self, name: Name, number: u64) {
        self.write(name, |text| put_number(text, number));
    }
}
