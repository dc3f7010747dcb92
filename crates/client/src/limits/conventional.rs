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
