//! Fields of providers of language models, which limit requests and tokens separately.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName};

use super::{LimitId, ServerLimit, Unit, text};
use crate::times;

/// The fields of one limit.
struct ProviderFields {
    name: &'static str,
    unit: Unit,
    limit: HeaderName,
    remaining: HeaderName,
    reset: HeaderName,
}

static OPENAI: [ProviderFields; 2] = [
    ProviderFields {
        name: "requests",
        unit: Unit::Requests,
        limit: HeaderName::from_static("x-ratelimit-limit-requests"),
        remaining: HeaderName::from_static("x-ratelimit-remaining-requests"),
        reset: HeaderName::from_static("x-ratelimit-reset-requests"),
    },
    ProviderFields {
        name: "tokens",
        unit: Unit::Tokens,
        limit: HeaderName::from_static("x-ratelimit-limit-tokens"),
        remaining: HeaderName::from_static("x-ratelimit-remaining-tokens"),
        reset: HeaderName::from_static("x-ratelimit-reset-tokens"),
    },
];

static ANTHROPIC: [ProviderFields; 4] = [
    ProviderFields {
        name: "requests",
        unit: Unit::Requests,
        limit: HeaderName::from_static("anthropic-ratelimit-requests-limit"),
        remaining: HeaderName::from_static("anthropic-ratelimit-requests-remaining"),
        reset: HeaderName::from_static("anthropic-ratelimit-requests-reset"),
    },
    ProviderFields {
        name: "tokens",
        unit: Unit::Tokens,
        limit: HeaderName::from_static("anthropic-ratelimit-tokens-limit"),
        remaining: HeaderName::from_static("anthropic-ratelimit-tokens-remaining"),
        reset: HeaderName::from_static("anthropic-ratelimit-tokens-reset"),
    },
    ProviderFields {
        name: "input-tokens",
        unit: Unit::Tokens,
        limit: HeaderName::from_static("anthropic-ratelimit-input-tokens-limit"),
        remaining: HeaderName::from_static("anthropic-ratelimit-input-tokens-remaining"),
        reset: HeaderName::from_static("anthropic-ratelimit-input-tokens-reset"),
    },
    ProviderFields {
        name: "output-tokens",
        unit: Unit::Tokens,
        limit: HeaderName::from_static("anthropic-ratelimit-output-tokens-limit"),
        remaining: HeaderName::from_static("anthropic-ratelimit-output-tokens-remaining"),
        reset: HeaderName::from_static("anthropic-ratelimit-output-tokens-reset"),
    },
];

/// OpenAI's limits: resets are durations such as `6m0s`. Other providers use the same fields.
pub(super) fn openai(headers: &HeaderMap) -> impl Iterator<Item = ServerLimit> {
    OPENAI.iter().filter_map(|fields| read(headers, fields, times::units))
}

/// Anthropic's limits: resets are RFC 3339 timestamps.
pub(super) fn anthropic(headers: &HeaderMap, now: SystemTime) -> impl Iterator<Item = ServerLimit> {
    let reset = move |text: &str| Some(times::until(times::rfc3339(text)?, now));
    ANTHROPIC.iter().filter_map(move |fields| read(headers, fields, reset))
}

fn read(
    headers: &HeaderMap,
    fields: &ProviderFields,
    window: impl Fn(&str) -> Option<Duration>,
) -> Option<ServerLimit> {
    let remaining = times::whole(text(headers, &fields.remaining)?)?;
    let window = window(text(headers, &fields.reset)?)?;
    let quota = text(headers, &fields.limit).and_then(times::whole).filter(|quota| *quota > 0);
    Some(ServerLimit { id: LimitId::named(fields.name), unit: fields.unit, quota, remaining, window })
}
