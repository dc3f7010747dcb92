//! The headers that tell clients how they stand.

use std::borrow::Cow;
use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tidegate_core::{Micros, Timestamp, Verdict};
use tidegate_rules::{Mode, Partitions, Ruled};

use crate::beside::{self, Stricter};
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
    /// `RateLimit` and `RateLimit-Policy`, of every limit that counts, in this form; `None` leaves them out.
    pub ietf: Option<IetfForm>,
    /// Whether `RateLimit` says which partition of a quota is told of (`pk`), as a hash of what the limit is keyed by.
    pub partition_key: bool,
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
    /// The status of a request that costs more than a limit can ever hold. 413 keeps clients from trying again, which 429 asks
    /// them to.
    pub too_large: StatusCode,
}

impl Default for HeaderStyle {
    /// `X-RateLimit` with seconds to go and the IETF's headers, on every answer, to everyone, without jitter.
    fn default() -> HeaderStyle {
        HeaderStyle {
            x_ratelimit: Some(ResetForm::Delta),
            ietf: Some(IetfForm::Draft11),
            partition_key: false,
            bucket: false,
            reset_after: false,
            on_allowed: true,
            audience: Audience::Everyone,
            jitter: Micros::ZERO,
            too_large: StatusCode::PAYLOAD_TOO_LARGE,
        }
    }
}

impl HeaderStyle {
    /// No headers but `Retry-After`.
    #[must_use]
    pub fn none() -> HeaderStyle {
        HeaderStyle { x_ratelimit: None, ietf: None, ..HeaderStyle::default() }
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

/// A form of the IETF's fields. They are a draft, whose parameters may still be renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IetfForm {
    /// As of draft-ietf-httpapi-ratelimit-headers-11: `"burst";r=12;t=2`.
    Draft11,
}

/// What the parameters of `RateLimit` are called.
struct ParameterNames {
    available: &'static str,
    /// The time within which no more than what is available can be used.
    window: &'static str,
    partition: &'static str,
}

impl IetfForm {
    const fn names(self) -> ParameterNames {
        match self {
            IetfForm::Draft11 => ParameterNames { available: ";r=", window: ";t=", partition: ";pk=:" },
        }
    }
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

    /// Whether it is one of the `X-RateLimit` fields, which tell of one limit together.
    const fn is_conventional(self) -> bool {
        match self {
            Name::Limit | Name::Remaining | Name::Reset | Name::ResetAfter | Name::Bucket => true,
            Name::RetryAfter | Name::RateLimit => false,
        }
    }

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
    /// Writes what the style shows into `headers`, [beside](ReplyHeaders::insert_into) what an upstream says of its own limits.
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
            if let Some(form) = self.style.ietf {
                Written::with(self.limits(), |written| {
                    values.policy = written.policy();
                    let standing = Standing { form, written, partitions: self.partitions, wait: self.retry_after() };
                    values.write(Name::RateLimit, |text| standing.write(text, self.limits()));
                });
            }
        }
        values
    }

    fn shows_headers(&self) -> bool {
        self.style.audience.has(self.asked.caller) && (self.style.on_allowed || !self.ruling.is_allowed())
    }

    /// The limits that count and that clients may see.
    fn limits(&self) -> impl Iterator<Item = &Ruled<'_>> + Clone {
        self.ruling.ruled.iter().filter(|ruled| ruled.mode == Mode::Enforce && ruled.disclosure.is_shown)
    }

    /// The limit that says most of those that clients may see.
    fn telling(&self) -> Option<&Ruled<'_>> {
        let telling = self.ruling.ruled.get(self.ruling.verdict.telling?)?;
        if telling.disclosure.is_shown {
            return Some(telling);
        }
        let decisions = self.limits().map(|ruled| &ruled.decision).enumerate();
        self.limits().nth(Verdict::most_telling(decisions)?)
    }

    fn conventional(&self, values: &mut ReplyHeaders) {
        let Some(ruled) = self.telling() else { return };
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
struct Standing<'w> {
    form: IetfForm,
    written: &'w Written,
    partitions: Option<&'w Partitions>,
    /// What `Retry-After` says: nothing that is told here lies beyond it.
    wait: Option<Micros>,
}

impl Standing<'_> {
    fn write<'r>(&self, text: &mut String, limits: impl Iterator<Item = &'r Ruled<'r>>) {
        let (names, start) = (self.form.names(), text.len());
        for (ruled, name) in limits.zip(self.written.names()) {
            if text.len() > start {
                text.push_str(", ");
            }
            text.push_str(name);
            text.push_str(names.available);
            put_number(text, ruled.decision.remaining.min(LARGEST));
            if let Some(more) = ruled.more_after() {
                let more = self.wait.map_or(more, |wait| wait.min(more));
                text.push_str(names.window);
                put_number(text, more.as_secs_ceil().min(LARGEST));
            }
            if let Some(partition) = self.partitions.and_then(|partitions| partitions.of(&ruled.id)) {
                text.push_str(names.partition);
                STANDARD.encode_string(partition, text);
                text.push(':');
            }
        }
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

    /// Puts them into `headers`. What an upstream says there of limits of its own is kept: in `RateLimit` and `RateLimit-Policy`
    /// behind what is said here, and of the two families of `X-RateLimit` fields the stricter one.
    pub fn insert_into(self, headers: &mut HeaderMap) {
        let number = self.len();
        // So that the map grows once, if it has to. A response may have so many headers already that there is no room for
        // more: it goes without.
        if number == 0 || headers.try_reserve(number).is_err() {
            return;
        }
        let leaves_theirs = self.leaves_theirs(headers);
        let text = Bytes::from(self.text);
        let mut start = 0;
        // Whether somebody has said it before, which appending tells without another look.
        let mut said = Said::default();
        for (name, end) in Name::ALL.into_iter().zip(self.ends).filter(|(_, end)| *end > 0) {
            let end = end as usize;
            if leaves_theirs && name.is_conventional() {
                start = end;
                continue;
            }
            // Digits and printable characters always make a value.
            if let Ok(value) = HeaderValue::from_maybe_shared(text.slice(start..end)) {
                if let Name::RetryAfter = name {
                    let _ = headers.try_insert(name.header(), value);
                } else if headers.try_append(name.header(), value).unwrap_or(false) {
                    said.note(name);
                }
            }
            start = end;
        }
        if let Some(policy) = self.policy {
            said.policy = headers.try_append(POLICY, policy).unwrap_or(false);
        }
        if said != Said::default() {
            said.settle(headers, &self.ends);
        }
    }

    /// Whether an upstream's `X-RateLimit` fields stay alone: ours would tell of a limit without saying what is left of it,
    /// and would be taken for a part of theirs.
    fn leaves_theirs(&self, headers: &HeaderMap) -> bool {
        let is_written = |name: Name| self.ends[name as usize] > 0;
        !is_written(Name::Remaining)
            && (is_written(Name::ResetAfter) || is_written(Name::Bucket))
            && Name::ALL.into_iter().any(|name| name.is_conventional() && headers.contains_key(name.header()))
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

/// Which fields an upstream has said before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Said {
    conventional: bool,
    rate_limit: bool,
    policy: bool,
}

impl Said {
    fn note(&mut self, name: Name) {
        self.conventional |= name.is_conventional();
        self.rate_limit |= matches!(name, Name::RateLimit);
    }

    /// Brings what the upstream said and what was appended to it together.
    #[cold]
    fn settle(self, headers: &mut HeaderMap, written: &[u32; Name::ALL.len()]) {
        if self.rate_limit {
            beside::join_lists(headers, &RATE_LIMIT);
        }
        if self.policy {
            beside::join_lists(headers, &POLICY);
        }
        if self.conventional {
            let told: Stricter = beside::stricter(headers, &REMAINING, &RESET);
            for name in Name::ALL.into_iter().filter(|name| name.is_conventional()) {
                beside::keep(headers, &name.header(), told, written[name as usize] > 0);
            }
        }
    }
}
