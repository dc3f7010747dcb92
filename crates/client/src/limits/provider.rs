//! Fields of providers of language models, which limit requests and tokens separately.

use std::time::{Duration, SystemTime};

use http::HeaderMap;

use super::{LimitId, ServerLimit, Unit};
use crate::times;

/// OpenAI's limits: resets are durations such as `6m0s`. Others serve the same fields.
pub(super) fn openai(headers: &HeaderMap) -> impl Iterator<Item = ServerLimit> {
    [("requests", Unit::Requests), ("tokens", Unit::Tokens)].into_iter().filter_map(|(what, unit)| {
        let fields = [
            format!("x-ratelimit-limit-{what}"),
            format!("x-ratelimit-remaining-{what}"),
            format!("x-ratelimit-reset-{what}"),
        ];
        read(headers, what, unit, &fields, times::units)
    })
}

/// Anthropic's limits: resets are timestamps of RFC 3339.
pub(super) fn anthropic(headers: &HeaderMap, now: SystemTime) -> impl Iterator<Item = ServerLimit> {
    const LIMITS: [(&str, Unit); 4] = [
        ("requests", Unit::Requests),
        ("tokens", Unit::Tokens),
        ("input-tokens", Unit::Tokens),
        ("output-tokens", Unit::Tokens),
    ];
    LIMITS.into_iter().filter_map(move |(what, unit)| {
        let field = |name: &str| format!("anthropic-ratelimit-{what}-{name}");
        let reset = |text: &str| times::until(times::rfc3339(text)?, now);
        read(headers, what, unit, &[field("limit"), field("remaining"), field("reset")], reset)
    })
}

fn read(
    headers: &HeaderMap,
    name: &str,
    unit: Unit,
    [limit, remaining, reset]: &[String; 3],
    window: impl Fn(&str) -> Option<Duration>,
) -> Option<ServerLimit> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    let remaining = times::whole(text(remaining)?)?;
    let window = window(text(reset)?)?;
    let quota = text(limit).and_then(times::whole).filter(|quota| *quota > 0);
    Some(ServerLimit { id: LimitId::named(name), unit, quota, remaining, window })
}
