//! The `X-RateLimit` fields, with the additions of GitHub and Discord.

use std::time::SystemTime;

use http::{HeaderMap, HeaderName};

use super::{LimitId, ServerLimit, Unit, text};
use crate::times;

const BUCKET: HeaderName = HeaderName::from_static("x-ratelimit-bucket");
const RESOURCE: HeaderName = HeaderName::from_static("x-ratelimit-resource");
const RESET_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-reset-after");

/// The names of one family of fields.
struct Names {
    limit: HeaderName,
    remaining: HeaderName,
    reset: HeaderName,
}

const FAMILIES: [Names; 2] = [
    Names {
        limit: HeaderName::from_static("x-ratelimit-limit"),
        remaining: HeaderName::from_static("x-ratelimit-remaining"),
        reset: HeaderName::from_static("x-ratelimit-reset"),
    },
    Names {
        limit: HeaderName::from_static("x-rate-limit-limit"),
        remaining: HeaderName::from_static("x-rate-limit-remaining"),
        reset: HeaderName::from_static("x-rate-limit-reset"),
    },
];

/// The limit in the conventional fields. Its name is that of Discord's bucket or GitHub's resource.
pub(super) fn read(headers: &HeaderMap, now: SystemTime) -> Option<ServerLimit> {
    FAMILIES.iter().find_map(|names| family(headers, names, now))
}

fn family(headers: &HeaderMap, names: &Names, now: SystemTime) -> Option<ServerLimit> {
    // `10` or `10, 10;w=1`.
    let first = |value: &str| times::whole(value.split([',', ';']).next()?);
    let remaining = text(headers, &names.remaining).and_then(first)?;
    // The seconds to go are finer, and need no agreement on the time of day.
    let window = match text(headers, &RESET_AFTER) {
        Some(reset_after) => times::seconds(reset_after),
        None => times::seconds_or_epoch(text(headers, &names.reset)?, now),
    }?;
    let quota = text(headers, &names.limit).and_then(first).filter(|quota| *quota > 0);
    let name = text(headers, &BUCKET).or_else(|| text(headers, &RESOURCE)).unwrap_or_default();
    Some(ServerLimit { id: LimitId::named(name), unit: Unit::Requests, quota, remaining, window })
}

/// Discord counts the channels, guilds and webhooks of a bucket apart, without saying so in the response.
pub(super) fn split_by_resource(limits: &mut [ServerLimit], headers: &HeaderMap, path: &str) {
    let Some(bucket) = text(headers, &BUCKET) else { return };
    let Some(resource) = resource_of(path) else { return };
    for limit in limits.iter_mut().filter(|limit| limit.id.name == bucket) {
        limit.id.partition = resource.as_bytes().to_vec();
    }
}

/// The part of a path that names the resource: `channels/123` of `/api/v10/channels/123/messages`. A webhook has a token too.
fn resource_of(path: &str) -> Option<&str> {
    let path = path.trim_start_matches('/');
    let path = path.strip_prefix("api/").unwrap_or(path);
    let is_version = |segment: &str| segment.strip_prefix('v').is_some_and(|number| times::whole(number).is_some());
    let path = path.split_once('/').filter(|(first, _)| is_version(first)).map_or(path, |(_, rest)| rest);
    let segments = match path.split('/').next()? {
        "channels" | "guilds" => 2,
        "webhooks" => 3,
        _ => return None,
    };
    let ends = path.match_indices('/').map(|(at, _)| at).nth(segments - 1).unwrap_or(path.len());
    path.get(..ends)
}
