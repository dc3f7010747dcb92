//! Fuzz target: the fields of responses that the client reads.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_client::{Hint, HintSource, limits};
use tidegate_test_support::fuzz::{target, text};

const WORDS: [&str; 44] = [
    "ratelimit: ",
    "ratelimit-policy: ",
    "ratelimit-partition: ",
    "ratelimit-limit: ",
    "ratelimit-remaining: ",
    "ratelimit-reset: ",
    "x-ratelimit-limit: ",
    "x-ratelimit-remaining: ",
    "x-ratelimit-reset: ",
    "x-ratelimit-reset-after: ",
    "x-ratelimit-bucket: ",
    "x-ratelimit-resource: ",
    "x-rate-limit-remaining: ",
    "x-rate-limit-reset: ",
    "x-ratelimit-limit-tokens: ",
    "x-ratelimit-remaining-tokens: ",
    "x-ratelimit-reset-tokens: ",
    "anthropic-ratelimit-requests-remaining: ",
    "anthropic-ratelimit-requests-reset: ",
    "retry-after: ",
    "retry-after-ms: ",
    "grpc-status-details-bin: ",
    "grpc-retry-pushback-ms: ",
    "date: ",
    "age: ",
    "\n",
    "\"burst\";r=12;t=30",
    "\"burst\";a=12;w=30",
    "\"burst\";q=100;w=60",
    "limit=100, remaining=50, reset=30",
    ";pk=:YWxpY2U=:",
    ";qu=\"requests\"",
    ";r=",
    ";t=",
    ", ",
    "Wed, 18 Nov 2026 11:06:40 GMT",
    "2026-11-18T11:06:40Z",
    "+01:00",
    "6m0s",
    "20ms",
    "1795000030",
    "0.25",
    "999999999999999",
    "-1",
];

fn headers(lines: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines.lines().filter_map(|line| line.split_once(": ")) {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
            let _ = headers.try_append(name, value);
        }
    }
    headers
}

/// Whether a text contains a number that is not part of a longer one.
fn is_stated(lines: &str, number: u64) -> bool {
    let runs = lines.split(|c: char| !c.is_ascii_digit()).filter(|run| !run.is_empty());
    runs.filter_map(|run| run.parse().ok()).any(|stated: u64| stated == number)
}

/// For any response, the client accepts only limits and hints that the response contains, and no wait beyond a month.
#[test]
fn limits_and_hints_are_what_a_response_states() {
    let wall: SystemTime = UNIX_EPOCH + Duration::from_secs(1_795_000_000);
    let month = Duration::from_hours(31 * 24);
    target!("response-fields").for_each(|bytes: &[u8]| {
        let lines = String::from_utf8_lossy(&text(bytes, &WORDS)).into_owned();
        let headers = headers(&lines);
        let (limits, hint) = (limits::read(&headers, wall), Hint::read(&headers, wall));
        let is_fresh = headers
            .get("age")
            .is_none_or(|age| age.to_str().is_ok_and(|age| age.trim().trim_start_matches('0').is_empty()));
        assert!(is_fresh || (limits.is_empty() && hint.is_none()), "{lines}");
        for limit in &limits {
            assert!(limit.window <= month && is_stated(&lines, limit.remaining), "{limit:?} of\n{lines}");
            assert!(limit.quota.is_none_or(|quota| quota > 0 && is_stated(&lines, quota)), "{limit:?} of\n{lines}");
        }
        if let Some(hint) = hint {
            assert!(hint.wait <= month, "{hint:?} of\n{lines}");
            let spent = limits.iter().filter(|limit| limit.remaining == 0).map(|limit| limit.window).max();
            // A limit that is to last for longer than a month is not among them, and its hint is one of a month.
            let is_stated = spent == Some(hint.wait) || hint.wait == month;
            assert!(hint.source != HintSource::RateLimit || is_stated, "{hint:?} of\n{lines}");
        }
    });
}
