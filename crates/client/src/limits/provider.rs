//! Fields of providers of language models, which limit requests and tokens separately.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName};

use super::{LimitId, ServerLimit, Unit, text};
use crate::times;

/// The fields of one limit.
struct Fields {
    name: &'static str,
    unit: Unit,
    limit: HeaderName,
    remaining: HeaderName,
    reset: HeaderName,
}

static OPENAI: [Fields; 2] = [
    Fields {
        name: "requests",
        unit: Unit::Requests,
        limit: HeaderName::from_static("x-ratelimit-limit-requests"),
        remaining: HeaderName::from_static("x-ratelimit-remaining-requests"),
        reset: HeaderName::from_static("x-ratelimit-reset-requests"),
    },
    Fields {
        name: "tokens",
        unit: Unit::Tokens,
        limit: HeaderName::from_static("x-ratelimit-limit-tokens"),
        remaining: HeaderName::from_static("x-ratelimit-remaining-tokens"),
        reset: HeaderName::from_static("x-ratelimit-reset-tokens"),
    },
];

static ANTHROPIC: [Fields; 4] = [
    Fields {
        name: "requests",
        unit: Unit::Requests,
        limit: HeaderName::from_static("anthropic-ratelimit-requests-limit"),
        remaining: HeaderName::from_static("anthropic-ratelimit-requests-remaining"),
        reset: HeaderName::from_static("anthropic-ratelimit-requests-reset"),
    },
    Fields {
        name: "tokens",
        unit: Unit::Tokens,
        limit: HeaderName::from_static("anthropic-ratelimit-tokens-limit"),
        remaining: HeaderName::from_static("anthropic-ratelimit-tokens-remaining"),
        reset: HeaderName::from_static("anthropic-ratelimit-tokens-reset"),
    },
    Fields {
        name: "input-tokens",
        unit: Unit::Tokens,
        limit: HeaderName::from_static("anthropic-ratelimit-input-tokens-limit"),
        remaining: HeaderName::from_static("anthropic-ratelimit-input-tokens-remaining"),
        reset: HeaderName::from_static("anthropic-ratelimit-input-tokens-reset"),
    },
    Fields {
        name: "output-tokens",
        unit: Unit::Tokens,
        limit: HeaderName::from_static("anthropic-ratelimit-output-tokens-limit"),
        remaining: HeaderName::from_static("anthropic-ratelimit-output-tokens-remaining"),
        reset: HeaderName::from_static("anthropic-ratelimit-output-tokens-reset"),
    },
];

/// OpenAI's limits: resets are durations such as `6m0s`. Others serve the same fields.
pub(super) fn openai(headers: &HeaderMap) -> impl Iterator<Item = ServerLimit> {
    OPENAI.iter().filter_map(|fields| read(headers, fields, times::units))
}

/// Anthropic's limits: resets are timestamps of RFC 3339.
pub(super) fn anthropic(headers: &HeaderMap, now: SystemTime) -> impl Iterator<Item = ServerLimit> {
    let reset = move |text: &str| times::until(times::rfc3339(text)?, now);
    ANTHROPIC.iter().filter_map(move |fields| read(headers, fields, reset))
}

fn read(headers: &HeaderMap, fields: &Fields, window: impl Fn(&str) -> Option<Duration>) -> Option<ServerLimit> {
    let remaining = times::whole(text(headers, &fields.remaining)?)?;
    let window = window(text(headers, &fields.reset)?)?;
    let quota = text(headers, &fields.limit).and_then(times::whole).filter(|quota| *quota > 0);
    Some(ServerLimit { id: LimitId::named(fields.name), unit: fields.unit, quota, remaining, window })
}
