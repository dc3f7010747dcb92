//! Limits as responses state them.
//!
//! Every reader ignores fields that are malformed or implausible: a limit that is not understood does not slow a client down.

mod conventional;
mod ietf;
mod provider;

use std::time::{Duration, SystemTime};

use http::header::{AGE, DATE};
use http::{HeaderMap, HeaderName};

use crate::times;

/// A limit as a response states it: no more than `remaining` within `window`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLimit {
    /// The name and the partition.
    pub id: LimitId,
    /// The unit that it counts.
    pub unit: Unit,
    /// The quota, where the response says so.
    pub quota: Option<u64>,
    /// The part of the quota that is left.
    pub remaining: u64,
    /// The time from now on within which no more than that is left.
    pub window: Duration,
}

/// The name of a limit at a host. Routes whose responses name the same limit share its pace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LimitId {
    /// The name of its policy or bucket. Empty if it has none.
    pub name: String,
    /// The partition key: the part of the callers that it counts together.
    pub partition: Vec<u8>,
}

impl LimitId {
    /// A limit with this name that counts all calls together.
    #[must_use]
    pub fn named(name: impl Into<String>) -> LimitId {
        LimitId { name: name.into(), partition: Vec::new() }
    }
}

/// The unit of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Requests: each costs one.
    Requests,
    /// Tokens of a language model: a request costs what its [`Tokens`](crate::Tokens) say.
    Tokens,
}

/// The limits that a response states. None if the response comes from a cache (`Age` above 0): they are those of another moment.
///
/// `wall` is the time of day, for dates in responses without `Date`.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use http::HeaderMap;
/// use tidegate_client::limits;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("ratelimit-policy", r#""burst";q=100;w=60"#.parse()?);
/// headers.insert("ratelimit", r#""burst";r=12;t=30"#.parse()?);
/// let burst = &limits::read(&headers, SystemTime::UNIX_EPOCH)[0];
/// assert_eq!((burst.quota, burst.remaining, burst.window), (Some(100), 12, Duration::from_secs(30)));
/// # Ok::<(), http::header::InvalidHeaderValue>(())
/// ```
#[must_use]
pub fn read(headers: &HeaderMap, wall: SystemTime) -> Vec<ServerLimit> {
    let stated = StatedFields::of(headers);
    if stated == StatedFields::default() || is_cached(headers) {
        return Vec::new();
    }
    let now = sent_at(headers, wall);
    // A server that sends both means the same limit by them, and the standard ones say more.
    let mut limits = if stated.ietf { ietf::read(headers, now) } else { Vec::new() };
    if stated.conventional {
        if limits.is_empty() {
            limits.extend(conventional::read(headers, now));
        }
        limits.extend(provider::openai(headers));
    }
    if stated.anthropic {
        limits.extend(provider::anthropic(headers, now));
    }
    limits
}

/// The limits that the response to a request for this path states, each for the resource that it is about.
pub(crate) fn read_at(path: &str, headers: &HeaderMap, wall: SystemTime) -> Vec<ServerLimit> {
    let mut limits = read(headers, wall);
    conventional::split_by_resource(&mut limits, headers, path);
    limits
}

/// Whether a response has any field that may state a limit.
pub(crate) fn are_stated(headers: &HeaderMap) -> bool {
    StatedFields::of(headers) != StatedFields::default()
}

/// The families of fields that a response has. Most have none or one, and need not be searched for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StatedFields {
    ietf: bool,
    conventional: bool,
    anthropic: bool,
}

impl StatedFields {
    fn of(headers: &HeaderMap) -> StatedFields {
        let mut stated = StatedFields::default();
        for name in headers.keys().map(HeaderName::as_str) {
            stated.ietf |= name.starts_with("ratelimit");
            stated.conventional |= name.starts_with("x-ratelimit-") || name.starts_with("x-rate-limit-");
            stated.anthropic |= name.starts_with("anthropic-ratelimit-");
        }
        stated
    }
}

/// Whether a response comes from a cache.
pub(crate) fn is_cached(headers: &HeaderMap) -> bool {
    headers.get(AGE).is_some_and(|age| age.to_str().ok().and_then(times::whole) != Some(0))
}

/// The time of the server's clock when it made the response.
pub(crate) fn sent_at(headers: &HeaderMap, wall: SystemTime) -> SystemTime {
    text(headers, &DATE).and_then(times::http_date).unwrap_or(wall)
}

/// The value of a field that occurs once.
pub(crate) fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests;
