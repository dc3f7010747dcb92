//! Hints: how long a server asks a client to wait.

use std::time::{Duration, SystemTime};

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName};

use crate::grpc;
use crate::limits;
use crate::times;

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// The wait requested by a response. It is an extension of each response that was denied and not retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The wait, counted from the arrival of the response.
    pub wait: Duration,
    /// The fields that contain the wait.
    pub source: HintSource,
}

/// The fields from which a hint was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HintSource {
    /// `Retry-After`, in seconds or as a date; or `Retry-After-Ms`.
    RetryAfter,
    /// gRPC: `RetryInfo` in the details of the status, or `grpc-retry-pushback-ms`.
    RetryInfo,
    /// A limit with nothing remaining, such as `RateLimit: "burst";r=0;t=30`.
    RateLimit,
}

impl Hint {
    /// The wait requested by these fields of a denial.
    ///
    /// `Retry-After` takes precedence over limits. Of several limits with nothing left, the last to recover counts. A date is
    /// compared with the `Date` of the response, or with `wall` if it has none. A wait of more than 31 days is one of 31 days. Fields
    /// that are malformed or come from a cache are ignored.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use http::HeaderMap;
    /// use tidegate_client::Hint;
    ///
    /// let mut headers = HeaderMap::new();
    /// headers.insert("date", "Wed, 18 Nov 2026 11:06:40 GMT".parse()?);
    /// headers.insert("retry-after", "Wed, 18 Nov 2026 11:07:00 GMT".parse()?);
    /// let hint = Hint::read(&headers, SystemTime::UNIX_EPOCH).map(|hint| hint.wait);
    /// assert_eq!(hint, Some(Duration::from_secs(20)));
    /// # Ok::<(), http::header::InvalidHeaderValue>(())
    /// ```
    #[must_use]
    pub fn read(headers: &HeaderMap, wall: SystemTime) -> Option<Hint> {
        if limits::is_cached(headers) {
            return None;
        }
        if let Some(grpc::Advice::Wait(wait)) = grpc::advice(headers) {
            return Some(Hint { wait, source: HintSource::RetryInfo });
        }
        if let Some(wait) = retry_after(headers, wall) {
            return Some(Hint { wait, source: HintSource::RetryAfter });
        }
        // A client that ignored a time because it is too long would come back at once.
        let spent = limits::stated(headers, wall).into_iter().filter(|limit| limit.remaining == 0);
        let wait = spent.map(|limit| limit.window.min(times::LONGEST_BELIEVED)).max()?;
        Some(Hint { wait, source: HintSource::RateLimit })
    }
}

fn retry_after(headers: &HeaderMap, wall: SystemTime) -> Option<Duration> {
    let millis = || limits::text(headers, &RETRY_AFTER_MS);
    if let Some(wait) = millis().and_then(|text| times::asked(text, Duration::from_millis(1))) {
        return Some(wait);
    }
    let text = limits::text(headers, &RETRY_AFTER)?;
    match times::http_date(text) {
        Some(date) => Some(times::asked_until(date, limits::sent_at(headers, wall))),
        None => times::asked(text, Duration::from_secs(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    fn hint(fields: &[(&'static str, &str)]) -> Option<(u128, HintSource)> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        let wall = UNIX_EPOCH + Duration::from_secs(1_795_000_000);
        Hint::read(&headers, wall).map(|hint| (hint.wait.as_millis(), hint.source))
    }

    #[test]
    fn retry_after_is_read_in_seconds_and_as_a_date() {
        assert_eq!(hint(&[("retry-after", "7")]), Some((7_000, HintSource::RetryAfter)));
        assert_eq!(hint(&[("retry-after", "0.5")]), Some((500, HintSource::RetryAfter)));
        assert_eq!(hint(&[("retry-after-ms", "250"), ("retry-after", "1")]), Some((250, HintSource::RetryAfter)));
        let date = ("retry-after", "Wed, 18 Nov 2026 11:06:45 GMT");
        assert_eq!(hint(&[date]), Some((5_000, HintSource::RetryAfter)), "by our clock");
        let servers_date = ("date", "Wed, 18 Nov 2026 11:06:15 GMT");
        assert_eq!(hint(&[date, servers_date]), Some((30_000, HintSource::RetryAfter)), "by the server's");
        let past = ("retry-after", "Wed, 18 Nov 2020 11:06:45 GMT");
        assert_eq!(hint(&[past]), Some((0, HintSource::RetryAfter)));
    }

    #[test]
    fn retry_after_takes_precedence_over_limits() {
        let spent = ("ratelimit", "\"burst\";r=0;t=60");
        assert_eq!(hint(&[spent]), Some((60_000, HintSource::RateLimit)));
        assert_eq!(hint(&[spent, ("retry-after", "30")]), Some((30_000, HintSource::RetryAfter)));
    }

    #[test]
    fn the_last_limit_to_recover_counts() {
        let spent = ("ratelimit", "\"burst\";r=0;t=5, \"daily\";r=0;t=900, \"monthly\";r=3;t=9000");
        assert_eq!(hint(&[spent]), Some((900_000, HintSource::RateLimit)));
    }

    #[test]
    fn a_wait_beyond_belief_is_the_longest_that_is_believed() {
        let longest = Some((31 * 86_400_000, HintSource::RetryAfter));
        for fields in [
            &[("retry-after", "99999999")][..],
            &[("retry-after", "9999999999999999999999")],
            &[("retry-after", "Fri, 31 Dec 9999 23:59:59 GMT")],
            &[("retry-after-ms", "9999999999999999999999"), ("retry-after", "1")],
        ] {
            assert_eq!(hint(fields), longest, "{fields:?}");
        }
        let longest = Some((31 * 86_400_000, HintSource::RateLimit));
        for fields in [
            &[("ratelimit", "\"burst\";r=0;t=2678401")][..],
            &[("ratelimit", "\"burst\";r=0;t=5, \"all\";r=0;t=999999999999999")],
            &[("ratelimit", "limit=9, remaining=0, reset=99999999")],
            &[("ratelimit-remaining", "0"), ("ratelimit-reset", "99999999")],
            &[("ratelimit-policy", "\"burst\";q=9;w=99999999"), ("ratelimit", "\"burst\";r=0")],
            &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "99999999")],
            &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1900000000")],
            &[("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "9999h0m0s")],
            &[
                ("anthropic-ratelimit-tokens-remaining", "0"),
                ("anthropic-ratelimit-tokens-reset", "2099-01-01T00:00:00Z"),
            ],
        ] {
            assert_eq!(hint(fields), longest, "{fields:?}");
        }
    }

    #[test]
    fn what_cannot_be_believed_is_no_hint() {
        for fields in [
            &[("retry-after", "soon")][..],
            &[("retry-after", "-1")],
            &[("ratelimit", "\"burst\";r=1;t=99999999")],
            &[("ratelimit", "\"burst\";r=0;t=9999999999999999")],
            &[("retry-after", "1"), ("retry-after", "2")],
            &[("retry-after", "5"), ("age", "10")],
            &[("ratelimit", "\"burst\";r=1;t=5")],
            &[],
        ] {
            assert_eq!(hint(fields), None, "{fields:?}");
        }
    }
}
