//! Limits and costs.

use std::collections::BTreeMap;

use schemars::JsonSchema;

use super::optional;
use super::value::{CostFact, CostSaid, Count, Id, Notation, Percent, SettleFact, Span, Text};

/// An adaptive rate.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, extend("required" = ["between", "on"]))]
pub(super) struct Adapt {
    /// The lowest and the highest rate, such as `100/s..1000/s`. The highest must be that of `limit`, if there is one.
    between: RateBounds,
    /// The method: additive increase, multiplicative decrease.
    by: AdaptMethod,
    /// The signals of overload, any of which lowers the rate, such as `latency > 200ms`, `p99 > 1s` or `errors > 5%`.
    on: AdaptSignals,
    /// The interval of changes, from `100ms` to `1h`. `1s` by default.
    every: Span,
    /// The part of the range by which the rate rises in each interval, from `2%`. `5%` by default.
    increase: Percent,
    /// The part of itself by which the rate falls, from `1%` to `90%`. `30%` by default.
    decrease: Percent,
}

#[derive(JsonSchema)]
#[schemars(transparent, inline)]
struct RateBounds(#[schemars(regex(pattern = r"^\s*[0-9][0-9_]*/\S+\s*\.\.\s*[0-9][0-9_]*/\S+\s*$"))] String);

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum AdaptMethod {
    /// Additive increase, multiplicative decrease.
    Aimd,
}

#[derive(JsonSchema)]
#[schemars(untagged, inline)]
enum AdaptSignals {
    One(AdaptSignal),
    Several(#[schemars(length(min = 1, max = 8))] Vec<AdaptSignal>),
}

#[derive(JsonSchema)]
#[schemars(transparent, inline)]
struct AdaptSignal(#[schemars(regex(pattern = r"^\s*(latency|p[1-9][0-9]?|errors)\s*>\s*[0-9].*$"))] String);

/// Slots shared by priorities.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, extend("required" = ["slots"]))]
pub(super) struct Shed {
    /// Maximum number of requests in flight, at all servers together.
    slots: Count,
    /// The time after which the slot of a crashed server is free again, such as `1min`.
    ttl: Span,
    /// The part of the slots above which critical requests are refused. 100% by default.
    critical: Percent,
    /// The part of the slots above which requests of high priority are refused. 90% by default.
    high: Percent,
    /// The part of the slots above which requests of normal priority are refused. 80% by default.
    normal: Percent,
    /// The part of the slots above which requests of low priority are refused. 50% by default.
    low: Percent,
}

/// A limit, several that must all admit, or `unlimited`.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub(super) enum Limits {
    One(Limit),
    Several(#[schemars(length(min = 1))] Vec<Limit>),
}

#[derive(JsonSchema)]
#[schemars(untagged)]
pub(super) enum Limit {
    Short(Notation),
    Long(SpelledOut),
}

/// A limit with its parts in fields.
#[derive(JsonSchema)]
#[schemars(
    deny_unknown_fields,
    transform = optional,
    extend("anyOf" = [{ "required": ["limit"] }, { "required": ["rate"] }, { "required": ["slots"] }])
)]
pub(super) struct SpelledOut {
    /// The name of the limit within its rule. Counters belong to rule and name.
    name: Id,
    /// Whether clients see this limit in headers and in the bodies of denials. Operators always do.
    show: bool,
    /// The cost of a request under this limit, if it differs from the rule's.
    cost: Cost,
    /// The time for which the cost is reserved until it is settled at its actual amount, such as `2min`.
    reserve: Span,
    /// The place of the actual cost in the response: one place, several to add up, or places with a cost for each unit.
    settle: Settle,
    /// Whether the nodes of a fleet lease this limit, if that differs from the rule.
    lease: Lease,
    /// Lets nodes decide this limit by their own copies, if that differs from the rule.
    write_behind: WriteBehind,
    /// The number of parts, of which each node charges one. Only for shapers and logs, which cannot be leased.
    #[schemars(range(min = 2, max = 64))]
    split: u8,
    /// The limit in its short notation. With `algorithm`, the number that a window admits.
    limit: Text,
    /// The algorithm. A token bucket by default.
    algorithm: Algorithm,
    /// The rate, such as `20/s`.
    rate: String,
    /// Maximum number of requests at once.
    burst: Count,
    /// Maximum number of waiting requests (shaper).
    queue: Count,
    /// The length of a window, such as `1h`.
    window: Span,
    /// The period of the UTC calendar that a window covers (fixed): `day`, `week`, `month` or `year`.
    calendar: Span,
    /// The number of parts in which a window slides (sliding).
    parts: Count,
    /// Maximum number of requests in flight (concurrent).
    slots: Count,
    /// Maximum time that a slot is held, such as `30s` (concurrent).
    ttl: Span,
    /// The period of `limit`: another name for `window`.
    per: Span,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
pub(super) enum Lease {
    Word(LeaseWord),
    Terms(LeaseTerms),
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub(super) enum LeaseWord {
    /// Nodes lease the keys with enough traffic. The default.
    Auto,
    /// The store decides every request.
    Off,
}

/// The terms on which nodes lease keys with enough traffic.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, transform = optional, extend("minProperties" = 1))]
pub(super) struct LeaseTerms {
    /// Maximum that one node holds of a key, as a share of the limit from `1%` to `50%`.
    at_most: LeaseShare,
    /// The longest time between two renewals, from `20ms` to `200ms`.
    every: Span,
}

/// Bound on decisions by the nodes' own copies, and the interval of reports to the store.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, extend("required" = ["at_most"]))]
pub(super) struct WriteBehind {
    /// Maximum that the fleet admits beyond the limit, as a share of it from `1%` to `50%`.
    at_most: LeaseShare,
    /// The time between two reports, from `10ms` to `10s`. `100ms` by default.
    every: Span,
}

#[derive(JsonSchema)]
#[schemars(transparent, inline)]
pub(super) struct LeaseShare(#[schemars(regex(pattern = r"^([1-9]|[1-4][0-9]|50) *%$"))] String);

#[derive(JsonSchema)]
#[schemars(rename_all = "kebab-case")]
enum Algorithm {
    /// A bucket of `burst` tokens, refilled at `rate`.
    TokenBucket,
    /// Decides like a token bucket, with a single timestamp.
    Gcra,
    /// Leaky bucket that refuses.
    Meter,
    /// Leaky bucket that delays.
    Shaper,
    /// One counter per window.
    Fixed,
    /// Two counters, the older one weighted by the part of it that still counts.
    Sliding,
    /// Exact: one entry per request.
    Log,
    /// At most this many at once.
    Concurrent,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
pub(super) enum Cost {
    Fixed(u64),
    Said(CostFact),
    Several(#[schemars(length(min = 1))] Vec<CostSaid>),
    More(CostBy),
}

#[derive(JsonSchema)]
#[schemars(
    deny_unknown_fields,
    transform = optional,
    extend("oneOf" = [{ "required": ["from"] }, { "required": ["paths"] }])
)]
pub(super) struct CostBy {
    /// The source of the cost: one place, or several, of which those that are present count.
    from: CostFrom,
    /// The cost of each unit that `from` counts. 1 by default.
    times: u64,
    /// The cost if it cannot be determined otherwise. 1 by default.
    otherwise: u64,
    /// Costs by path pattern; the first that matches counts.
    paths: BTreeMap<String, u64>,
}

#[derive(JsonSchema)]
#[schemars(untagged, inline)]
enum CostFrom {
    One(CostFact),
    Several(#[schemars(length(min = 1))] Vec<CostSaid>),
}

#[derive(JsonSchema)]
#[schemars(untagged)]
pub(super) enum Settle {
    One(SettleFact),
    Sum(#[schemars(length(min = 1))] Vec<SettleFact>),
    Priced(Prices),
}

/// Places in the response, with the cost of each unit.
#[derive(JsonSchema)]
#[schemars(transparent, extend("minProperties" = 1, "propertyNames" = { "pattern": "^(body|header):.*\\S.*$" }))]
pub(super) struct Prices(BTreeMap<String, u64>);
