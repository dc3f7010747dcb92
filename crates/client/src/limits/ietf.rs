//! The IETF's fields, in all forms used by servers.
//!
//! | draft | fields |
//! |---|---|
//! | up to 06 | `RateLimit-Limit: 100`, `RateLimit-Remaining: 50`, `RateLimit-Reset: 30`; GitLab: an epoch, `RateLimit-Name` |
//! | 07 | `RateLimit: limit=100, remaining=50, reset=30` |
//! | 08 to 11 | `RateLimit-Policy: "burst";q=100;w=60`, `RateLimit: "burst";r=50;t=30` |
//! | proposed | `RateLimit: "burst";a=50;w=30`, `RateLimit-Partition` |

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName};
use sfv::{BareItem, Dictionary, FieldType, Item, List, ListEntry, Parameters, Parser};

use super::{LimitId, ServerLimit, Unit, text};
use crate::times;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const PARTITION: HeaderName = HeaderName::from_static("ratelimit-partition");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
const NAME: HeaderName = HeaderName::from_static("ratelimit-name");

/// The limits in the IETF's fields.
pub(super) fn read(headers: &HeaderMap, now: SystemTime) -> Vec<ServerLimit> {
    if !headers.contains_key(RATE_LIMIT) {
        return single_fields(headers, now).into_iter().collect();
    }
    if let Some(list) = structured::<List>(headers, &RATE_LIMIT)
        && list.iter().any(|entry| name_of(entry).is_some())
    {
        return lists(headers, &list);
    }
    structured::<Dictionary>(headers, &RATE_LIMIT).and_then(|fields| dictionary(&fields)).into_iter().collect()
}

/// All lines of a field as one structured value.
fn structured<T: FieldType>(headers: &HeaderMap, name: &HeaderName) -> Option<T> {
    let lines: Vec<&[u8]> = headers.get_all(name).iter().map(http::HeaderValue::as_bytes).collect();
    Parser::new(&lines.join(&b", "[..])).parse::<T>().ok()
}

/// Draft 08 and later: an entry for each limit.
fn lists(headers: &HeaderMap, limits: &List) -> Vec<ServerLimit> {
    let policies = structured::<List>(headers, &POLICY).unwrap_or_default();
    let shared_partition = headers.get(PARTITION).map(|value| value.as_bytes().to_vec());
    let mut read = Vec::new();
    for entry in limits {
        let Some((name, params)) = name_of(entry) else { continue };
        let policy = policies.iter().filter_map(name_of).find(|(known, _)| *known == name).map(|(_, params)| params);
        let Some(unit) = policy.map_or(Some(Unit::Requests), unit_of) else { continue };
        let is_proposed = !params.contains_key("r") && params.contains_key("a");
        let (available, window) = if is_proposed { ("a", "w") } else { ("r", "t") };
        let Some(remaining) = number(params, available) else { continue };
        let quota = policy.and_then(|policy| number(policy, "q")).filter(|quota| *quota > 0);
        let window = match (params.contains_key(window), policy) {
            (true, _) => number(params, window).map(Duration::from_secs),
            (false, Some(policy)) => {
                number(policy, "w").map(|length| until_more(Duration::from_secs(length), quota, remaining))
            }
            (false, None) => None,
        };
        let Some(window) = window else { continue };
        let partition = partition_of(params).or_else(|| policy.and_then(partition_of)).or(shared_partition.clone());
        let id = LimitId { name: name.to_owned(), partition: partition.unwrap_or_default() };
        read.push(ServerLimit { id, unit, quota, remaining, window });
    }
    read
}

/// The time within which no more than `remaining` is left, if a server states only the length of the window. When a sliding
/// window with nothing remaining has passed, its spending begins to expire; the first request is possible after a further
/// part of the window, which is its length divided by the quota.
fn until_more(window: Duration, quota: Option<u64>, remaining: u64) -> Duration {
    match quota.and_then(|quota| u32::try_from(quota).ok()) {
        Some(quota) if remaining == 0 => window.saturating_add(window / quota),
        Some(_) | None => window,
    }
}

/// Draft 07: one limit.
fn dictionary(fields: &Dictionary) -> Option<ServerLimit> {
    let number = |name: &str| match fields.get(name)? {
        ListEntry::Item(Item { bare_item: BareItem::Integer(number), .. }) => u64::try_from(i64::from(*number)).ok(),
        ListEntry::Item(_) | ListEntry::InnerList(_) => None,
    };
    let window = Duration::from_secs(number("reset")?);
    Some(one("", number("limit"), number("remaining")?, window))
}

/// Draft 06 and before: one limit.
fn single_fields(headers: &HeaderMap, now: SystemTime) -> Option<ServerLimit> {
    // `100` or `100, 100;w=60`.
    let quota = text(headers, &LIMIT).and_then(|limit| times::whole(limit.split([',', ';']).next()?));
    let reset = text(headers, &RESET)?;
    times::whole(reset)?;
    let window = times::seconds_or_epoch(reset, now)?;
    Some(one(text(headers, &NAME).unwrap_or_default(), quota, times::whole(text(headers, &REMAINING)?)?, window))
}

fn one(name: &str, quota: Option<u64>, remaining: u64, window: Duration) -> ServerLimit {
    let quota = quota.filter(|quota| *quota > 0);
    ServerLimit { id: LimitId::named(name), unit: Unit::Requests, quota, remaining, window }
}

/// The name of an entry and its parameters. The draft requires strings; some servers send tokens.
fn name_of(entry: &ListEntry) -> Option<(&str, &Parameters)> {
    match entry {
        ListEntry::Item(Item { bare_item: BareItem::String(name), params }) => Some((name.as_str(), params)),
        // A draft-07 dictionary parses as a list too: of tokens without parameters.
        ListEntry::Item(Item { bare_item: BareItem::Token(name), params }) if !params.is_empty() => {
            Some((name.as_str(), params))
        }
        ListEntry::Item(_) | ListEntry::InnerList(_) => None,
    }
}

fn number(params: &Parameters, name: &str) -> Option<u64> {
    match params.get(name)? {
        BareItem::Integer(number) => u64::try_from(i64::from(*number)).ok(),
        _ => None,
    }
}

/// The unit of a policy. `None` for units that a pace cannot respect: bytes, concurrent requests and unknown ones.
fn unit_of(policy: &Parameters) -> Option<Unit> {
    match policy.get("qu") {
        None => Some(Unit::Requests),
        Some(BareItem::String(unit)) if unit.as_str() == "requests" => Some(Unit::Requests),
        Some(BareItem::String(unit)) if unit.as_str() == "tokens" => Some(Unit::Tokens),
        Some(_) => None,
    }
}

fn partition_of(params: &Parameters) -> Option<Vec<u8>> {
    match params.get("pk")? {
        BareItem::ByteSequence(key) => Some(key.clone()),
        _ => None,
    }
}
