//! Rate-limit headers of a response.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_core::{Micros, Timestamp, Verdict};
use tidegate_rules::{Mode, Partitions, Ruled};

use crate::policy_text::{PolicyText, printable};
use crate::reply::Reply;
use crate::style::{IetfForm, ResetForm};
use crate::upstream_limits::{self, Stricter};

/// The headers that are formatted for each response, in writing order.
#[derive(Clone, Copy, Debug)]
enum LimitHeader {
    RetryAfter,
    Limit,
    Remaining,
    Reset,
    ResetAfter,
    Bucket,
    RateLimit,
}

// Constants: parsing a name from text takes as long as writing the rest of its header.
const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const RESET_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-reset-after");
const BUCKET: HeaderName = HeaderName::from_static("x-ratelimit-bucket");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");

impl LimitHeader {
    const ALL: [LimitHeader; 7] = [
        LimitHeader::RetryAfter,
        LimitHeader::Limit,
        LimitHeader::Remaining,
        LimitHeader::Reset,
        LimitHeader::ResetAfter,
        LimitHeader::Bucket,
        LimitHeader::RateLimit,
    ];

    /// Whether this is one of the `X-RateLimit` fields, which together describe one limit.
    const fn is_conventional(self) -> bool {
        match self {
            LimitHeader::Limit
            | LimitHeader::Remaining
            | LimitHeader::Reset
            | LimitHeader::ResetAfter
            | LimitHeader::Bucket => true,
            LimitHeader::RetryAfter | LimitHeader::RateLimit => false,
        }
    }

    const fn header(self) -> HeaderName {
        match self {
            LimitHeader::RetryAfter => RETRY_AFTER,
            LimitHeader::Limit => LIMIT,
            LimitHeader::Remaining => REMAINING,
            LimitHeader::Reset => RESET,
            LimitHeader::ResetAfter => RESET_AFTER,
            LimitHeader::Bucket => BUCKET,
            LimitHeader::RateLimit => RATE_LIMIT,
        }
    }
}

impl Reply<'_, '_> {
    /// Writes the style's headers into `headers`, [merged](ReplyHeaders::insert_into) with those of an upstream.
    pub fn write_headers(&self, headers: &mut HeaderMap) {
        self.headers().insert_into(headers);
    }

    /// The style's headers, for a response that does not exist yet.
    #[must_use]
    pub fn headers(&self) -> ReplyHeaders {
        let mut values = ReplyHeaders::default();
        if let Some(wait) = self.retry_after() {
            values.number(LimitHeader::RetryAfter, wait.as_secs_ceil().max(1));
        }
        if self.shows_headers() {
            self.conventional(&mut values);
            if let Some(form) = self.style.ietf {
                PolicyText::with(self.limits(), |policy| {
                    values.policy = policy.header();
                    let (partitions, retry_after) = (self.partitions, self.retry_after());
                    let field = RateLimitField { form, policy, partitions, retry_after };
                    values.write(LimitHeader::RateLimit, |text| field.write(text, self.limits()));
                });
            }
        }
        values
    }

    fn shows_headers(&self) -> bool {
        self.style.audience.includes(self.context.caller) && (self.style.on_allowed || !self.ruling.is_allowed())
    }

    /// The enforced and visible limits.
    fn limits(&self) -> impl Iterator<Item = &Ruled<'_>> + Clone {
        self.ruling.ruled.iter().filter(|ruled| ruled.mode == Mode::Enforce && ruled.disclosure.is_shown)
    }

    /// The visible limit that is closest to being exhausted.
    fn binding_limit(&self) -> Option<&Ruled<'_>> {
        let binding = self.ruling.ruled.get(self.ruling.verdict.binding?)?;
        if binding.disclosure.is_shown {
            return Some(binding);
        }
        let decisions = self.limits().map(|ruled| &ruled.decision).enumerate();
        self.limits().nth(Verdict::binding_among(decisions)?)
    }

    fn conventional(&self, values: &mut ReplyHeaders) {
        let Some(ruled) = self.binding_limit() else { return };
        let decision = &ruled.decision;
        if let Some(form) = self.style.x_ratelimit {
            values.number(LimitHeader::Limit, decision.limit);
            values.number(LimitHeader::Remaining, decision.remaining);
            let reset = match form {
                ResetForm::Delta => decision.reset_after,
                ResetForm::Epoch => (self.context.at + decision.reset_after).since(Timestamp::EPOCH),
            };
            values.number(LimitHeader::Reset, reset.as_secs_ceil());
        }
        if self.style.reset_after {
            let millis = decision.reset_after.as_millis_ceil();
            // Writing to a `String` cannot fail.
            values.write(LimitHeader::ResetAfter, |text| {
                let _ = write!(text, "{}.{:03}", millis / 1_000, millis % 1_000);
            });
        }
        if self.style.bucket {
            values.write(LimitHeader::Bucket, |text| text.push_str(&printable(ruled.id.as_str())));
        }
    }
}

/// The value of `RateLimit`: `"burst";r=12;t=2, "daily";r=900;t=70000`.
struct RateLimitField<'p> {
    form: IetfForm,
    policy: &'p PolicyText,
    partitions: Option<&'p Partitions>,
    /// The wait of `Retry-After`, which bounds every `t`.
    retry_after: Option<Micros>,
}

impl RateLimitField<'_> {
    fn write<'r>(&self, text: &mut String, limits: impl Iterator<Item = &'r Ruled<'r>>) {
        let (names, start) = (self.form.names(), text.len());
        for (ruled, name) in limits.zip(self.policy.names()) {
            if text.len() > start {
                text.push_str(", ");
            }
            text.push_str(name);
            text.push_str(names.available);
            put_number(text, ruled.decision.remaining.min(MAX_INTEGER));
            if let Some(more) = ruled.more_after() {
                let more = self.retry_after.map_or(more, |wait| wait.min(more));
                text.push_str(names.window);
                put_number(text, more.as_secs_ceil().min(MAX_INTEGER));
            }
            if let Some(partition) = self.partitions.and_then(|partitions| partitions.of(&ruled.id)) {
                text.push_str(names.partition);
                STANDARD.encode_string(partition, text);
                text.push(':');
            }
        }
    }
}

/// The largest integer of a structured field, which has 15 digits. Larger numbers are clamped.
const MAX_INTEGER: u64 = 999_999_999_999_999;

fn put_number(text: &mut String, number: u64) {
    text.push_str(itoa::Buffer::new().format(number));
}

/// Formatted rate-limit headers, ready to be inserted into a response.
#[derive(Clone, Debug, Default)]
pub struct ReplyHeaders {
    /// `RateLimit-Policy`. Responses under the same limits share one value.
    policy: Option<HeaderValue>,
    /// The other values, one after the other in one allocation.
    text: String,
    /// The end of each value in `text`, in the order of [`LimitHeader`]; 0 if there is none.
    ends: [u32; LimitHeader::ALL.len()],
}

impl ReplyHeaders {
    /// The number of headers.
    pub(crate) fn len(&self) -> usize {
        usize::from(self.policy.is_some()) + self.ends.iter().filter(|end| **end > 0).count()
    }

    /// Inserts them into `headers`, merged with an upstream's own. `RateLimit` and `RateLimit-Policy` list the
    /// upstream's limits after Tidegate's. Of the two sets of `X-RateLimit` fields, the stricter one is kept.
    pub fn insert_into(self, headers: &mut HeaderMap) {
        let count = self.len();
        // Reserving lets the map grow at most once. It fails if the response already has as many headers as a map can
        // hold; then none are added.
        if count == 0 || headers.try_reserve(count).is_err() {
            return;
        }
        let keeps_upstream = self.keeps_upstream(headers);
        let text = Bytes::from(self.text);
        let mut start = 0;
        // `try_append` reports whether the field existed before, which saves a lookup.
        let mut upstream = UpstreamFields::default();
        for (name, end) in LimitHeader::ALL.into_iter().zip(self.ends).filter(|(_, end)| *end > 0) {
            let end = end as usize;
            if keeps_upstream && name.is_conventional() {
                start = end;
                continue;
            }
            // Digits and printable characters are always a valid value.
            if let Ok(value) = HeaderValue::from_maybe_shared(text.slice(start..end)) {
                if let LimitHeader::RetryAfter = name {
                    let _ = headers.try_insert(name.header(), value);
                } else if headers.try_append(name.header(), value).unwrap_or(false) {
                    upstream.record(name);
                }
            }
            start = end;
        }
        if let Some(policy) = self.policy {
            upstream.policy = headers.try_append(POLICY, policy).unwrap_or(false);
        }
        if upstream != UpstreamFields::default() {
            upstream.merge(headers, &self.ends);
        }
    }

    /// Whether an upstream's `X-RateLimit` fields are kept and Tidegate's omitted. They are if Tidegate's lack
    /// `-Remaining`: clients would take them for a part of the upstream's.
    fn keeps_upstream(&self, headers: &HeaderMap) -> bool {
        let is_written = |name: LimitHeader| self.ends[name as usize] > 0;
        !is_written(LimitHeader::Remaining)
            && (is_written(LimitHeader::ResetAfter) || is_written(LimitHeader::Bucket))
            && LimitHeader::ALL.into_iter().any(|name| name.is_conventional() && headers.contains_key(name.header()))
    }

    /// Stores the text that `write` appends as a header's value, if it appends any. Must be called in the order of
    /// [`LimitHeader`].
    fn write(&mut self, name: LimitHeader, write: impl FnOnce(&mut String)) {
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

    fn number(&mut self, name: LimitHeader, number: u64) {
        self.write(name, |text| put_number(text, number));
    }
}

/// The rate-limit fields that an upstream had set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct UpstreamFields {
    conventional: bool,
    rate_limit: bool,
    policy: bool,
}

impl UpstreamFields {
    fn record(&mut self, name: LimitHeader) {
        self.conventional |= name.is_conventional();
        self.rate_limit |= matches!(name, LimitHeader::RateLimit);
    }

    /// Merges the upstream's values with those appended to them.
    #[cold]
    fn merge(self, headers: &mut HeaderMap, written: &[u32; LimitHeader::ALL.len()]) {
        if self.rate_limit {
            upstream_limits::join_lists(headers, &RATE_LIMIT);
        }
        if self.policy {
            upstream_limits::join_lists(headers, &POLICY);
        }
        if self.conventional {
            let stricter: Stricter = upstream_limits::stricter(headers, &REMAINING, &RESET);
            for name in LimitHeader::ALL.into_iter().filter(|name| name.is_conventional()) {
                upstream_limits::keep(headers, &name.header(), stricter, written[name as usize] > 0);
            }
        }
    }
}
