//! Builds Envoy's response from a ruling.

use tidegate_core::{Micros, Timestamp};
use tidegate_rules::envoy::{Allowance, DescriptorMatch, RateUnit};
use tidegate_rules::{DescriptorRuling, DescriptorsRuling, Ruled};

use super::messages::{Code, DescriptorStatus, Duration, RateLimit, RateLimitRequest, RateLimitResponse, Unit};
use super::{Settings, headers, metadata};

/// The response to Envoy. `at` is the time of its request.
pub(super) fn answer(
    request: &RateLimitRequest,
    decided: &DescriptorsRuling<'_, '_>,
    settings: &Settings,
    at: Timestamp,
) -> RateLimitResponse {
    let statuses = decided.descriptors.iter().map(|descriptor| status(descriptor, decided.disclosed(descriptor)));
    RateLimitResponse {
        overall_code: code(!decided.ruling.is_allowed()),
        statuses: statuses.collect(),
        response_headers_to_add: headers::of(&decided.ruling, &settings.headers, at),
        request_headers_to_add: Vec::new(),
        raw_body: Vec::new(),
        dynamic_metadata: metadata::of(request, decided, settings.metadata),
    }
}

fn code(is_over: bool) -> i32 {
    if is_over { Code::OverLimit.into() } else { Code::Ok.into() }
}

fn status(descriptor: &DescriptorRuling<'_, '_>, ruled: Option<&Ruled<'_>>) -> DescriptorStatus {
    let code = code(descriptor.is_over);
    let Some(ruled) = ruled else {
        // envoyproxy/ratelimit answers `u32::MAX` for unlimited descriptors.
        let is_unlimited = |found: &DescriptorMatch<'_, '_>| found.allowance == Allowance::Unlimited;
        let limit_remaining = if descriptor.found.as_ref().is_some_and(is_unlimited) { u32::MAX } else { 0 };
        return DescriptorStatus { code, limit_remaining, ..DescriptorStatus::default() };
    };
    DescriptorStatus {
        code,
        current_limit: Some(current_limit(descriptor, ruled)),
        limit_remaining: saturated(ruled.decision.remaining),
        duration_until_reset: Some(duration(ruled.decision.reset_after)),
    }
}

/// The limit as written in the Envoy file. Tidegate's own rules have a name and a number, but no unit that Envoy knows.
fn current_limit(descriptor: &DescriptorRuling<'_, '_>, ruled: &Ruled<'_>) -> RateLimit {
    match descriptor.found.as_ref().and_then(|found| Some((found, found.per_unit?))) {
        Some((found, per_unit)) => RateLimit {
            name: found.name().to_owned(),
            requests_per_unit: per_unit.requests,
            unit: wire_unit(per_unit.unit).into(),
        },
        None => RateLimit {
            name: ruled.id.as_str().to_owned(),
            requests_per_unit: saturated(ruled.decision.limit),
            unit: Unit::Unknown.into(),
        },
    }
}

const fn wire_unit(unit: RateUnit) -> Unit {
    match unit {
        RateUnit::Second => Unit::Second,
        RateUnit::Minute => Unit::Minute,
        RateUnit::Hour => Unit::Hour,
        RateUnit::Day => Unit::Day,
        RateUnit::Week => Unit::Week,
        RateUnit::Month => Unit::Month,
        RateUnit::Year => Unit::Year,
    }
}

fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Converts exactly, to the microsecond.
fn duration(span: Micros) -> Duration {
    let (seconds, micros) = (span.get() / 1_000_000, span.get() % 1_000_000);
    Duration {
        seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
        nanos: i32::try_from(micros * 1_000).unwrap_or_default(),
    }
}
