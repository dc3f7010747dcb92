//! Limits stated by responses.
//!
//! All parsers ignore fields that are malformed or implausible: a limit that is not understood does not slow down a client.

mod conventional;
mod ietf;
mod provider;

use std::time::{Duration, SystemTime};

use http::header::{AGE, DATE};
use http::{HeaderMap, HeaderName};

use crate::times;

/// A limit stated by a response: no more than `remaining` within `window`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLimit {
    /// The name and the partition of the limit.
    pub id: LimitId,
    /// The unit of the limit.
    pub unit: Unit,
    /// The quota, if the response states it.
    pub quota: Option<u64>,
    /// The remaining part of the quota.
    pub remaining: u64,
    /// The time, from now on, in which no more than that remains.
    pub window: Duration,
}

/// The name of a limit of a host. Routes whose responses name the same limit share its pace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LimitId {
    /// The name of the policy or bucket. Empty if it has none.
    pub name: String,
    /// The partition key, which identifies the callers that are counted together.
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
    /// Tokens of a language model: the cost of a request is the number in its [`Tokens`](crate::Tokens).
    Tokens,
}

/// The limits stated by a response. Empty if the response comes from a cache (`Age` above 0), because its limits are
/// outdated. Limits that state more than 31 days are left out.
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
    let mut limits = stated(headers, wall);
    limits.retain(is_plausible);
    limits
}

/// Whether a limit does not last longer than a monthly quota.
fn is_plausible(limit: &ServerLimit) -> bool {
    limit.window <= times::LONGEST_BELIEVED
}

/// The limits stated by a response, however long they are to last.
pub(crate) fn stated(headers: &HeaderMap, wall: SystemTime) -> Vec<ServerLimit> {
    let stated = StatedFields::of(headers);
    if stated == StatedFields::default() || is_cached(headers) {
        return Vec::new();
    }
    let now = sent_at(headers, wall);
    // If a server sends both, they describe the same limit, and the standard fields are more precise.
    let mut limits = if stated.ietf { ietf::read(headers, now) } else { Vec::new() };
    if stated.conventional {
        if !limits.iter().any(is_plausible) {
            limits.extend(conventional::read(headers, now));
        }
        limits.extend(provider::openai(headers));
    }
    if stated.anthropic {
        limits.extend(provider::anthropic(headers, now));
    }
    limits
}

/// The limits stated by the response to a request for this path, each assigned to its resource.
pub(crate) fn read_at(path: &str, headers: &HeaderMap, wall: SystemTime) -> Vec<ServerLimit> {
    let mut limits = read(headers, wall);
    conventional::split_by_resource(&mut limits, headers, path);
    limits
}

/// Whether a response contains any field that may state a limit.
pub(crate) fn are_stated(headers: &HeaderMap) -> bool {
    StatedFields::of(headers) != StatedFields::default()
}

/// The families of fields in a response. Most responses have at most one, so the others need not be searched.
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

/// The time of the server's clock when it created the response.
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
