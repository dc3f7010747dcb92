//! The `X-RateLimit` fields, with the additions of GitHub and Discord.

use std::sync::LazyLock;
use std::time::SystemTime;

use ahash::RandomState;
use http::{HeaderMap, HeaderName};

use super::{LimitId, ServerLimit, Unit, text};
use crate::times;

const BUCKET: HeaderName = HeaderName::from_static("x-ratelimit-bucket");
const RESOURCE: HeaderName = HeaderName::from_static("x-ratelimit-resource");
const RESET_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-reset-after");

/// Discord's ids are numbers of 64 bits.
const LONGEST_ID: usize = 20;

/// Random, so that a hash does not tell what it stands for.
static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The names of one family of fields.
struct FieldNames {
    limit: HeaderName,
    remaining: HeaderName,
    reset: HeaderName,
}

const FAMILIES: [FieldNames; 2] = [
    FieldNames {
        limit: HeaderName::from_static("x-ratelimit-limit"),
        remaining: HeaderName::from_static("x-ratelimit-remaining"),
        reset: HeaderName::from_static("x-ratelimit-reset"),
    },
    FieldNames {
        limit: HeaderName::from_static("x-rate-limit-limit"),
        remaining: HeaderName::from_static("x-rate-limit-remaining"),
        reset: HeaderName::from_static("x-rate-limit-reset"),
    },
];

/// The limit in the conventional fields. Its name is Discord's bucket or GitHub's resource.
pub(super) fn read(headers: &HeaderMap, now: SystemTime) -> Option<ServerLimit> {
    FAMILIES.iter().find_map(|names| family(headers, names, now))
}

fn family(headers: &HeaderMap, names: &FieldNames, now: SystemTime) -> Option<ServerLimit> {
    // `10` or `10, 10;w=1`.
    let first = |value: &str| times::whole(value.split([',', ';']).next()?);
    let remaining = text(headers, &names.remaining).and_then(first)?;
    // The remaining seconds are more precise, and do not depend on the time of day.
    let window = match text(headers, &RESET_AFTER) {
        Some(reset_after) => times::seconds(reset_after),
        None => times::seconds_or_epoch(text(headers, &names.reset)?, now),
    }?;
    let quota = text(headers, &names.limit).and_then(first).filter(|quota| *quota > 0);
    let name = text(headers, &BUCKET).or_else(|| text(headers, &RESOURCE)).unwrap_or_default();
    Some(ServerLimit { id: LimitId::named(name), unit: Unit::Requests, quota, remaining, window })
}

/// Discord counts the channels, guilds and webhooks of a bucket separately, but its responses do not contain this.
pub(super) fn split_by_resource(limits: &mut [ServerLimit], headers: &HeaderMap, path: &str) {
    let Some(bucket) = text(headers, &BUCKET) else { return };
    let Some(resource) = resource_of(path) else { return };
    for limit in limits.iter_mut().filter(|limit| limit.id.name == bucket) {
        limit.id.partition = resource.as_bytes().to_vec();
    }
}

/// The resource that a path is about: `channels/123` of `/api/v10/channels/123/messages`. A webhook is known by its token too, which is a
/// secret: a hash stands for it, and for ids that are too long to be ids.
fn resource_of(path: &str) -> Option<String> {
    let path = path.trim_start_matches('/');
    let path = path.strip_prefix("api/").unwrap_or(path);
    let is_version = |segment: &str| segment.strip_prefix('v').is_some_and(|number| times::whole(number).is_some());
    let path = path.split_once('/').filter(|(first, _)| is_version(first)).map_or(path, |(_, rest)| rest);
    let mut segments = path.split('/');
    let kind = segments.next().filter(|kind| matches!(*kind, "channels" | "guilds" | "webhooks"))?;
    let Some(id) = segments.next() else { return Some(kind.to_owned()) };
    let id = if id.len() > LONGEST_ID { hashed(id) } else { id.to_owned() };
    match segments.next().filter(|_| kind == "webhooks") {
        Some(token) => Some(format!("{kind}/{id}/{}", hashed(token))),
        None => Some(format!("{kind}/{id}")),
    }
}

fn hashed(text: &str) -> String {
    format!("{:016x}", HASHES.hash_one(text))
}
