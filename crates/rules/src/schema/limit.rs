//! Limits and costs.

use std::collections::BTreeMap;

use schemars::JsonSchema;

use super::optional;
use super::value::{CostFact, CostSaid, Count, Id, Notation, SettleFact, Span, Text};

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
    /// Which of the rule's limits this is. What was counted belongs to rule and name.
    name: Id,
    /// Whether clients see this limit in headers and in the bodies of denials. Operators always do.
    show: bool,
    /// What a request costs here, if not what the rule says.
    cost: Cost,
    /// For how long the cost stays open to be settled at what it really was, such as `2min`.
    reserve: Span,
    /// Where the response says what the request really cost: one place, several to add up, or places with what each unit costs.
    settle: Settle,
    /// The limit in its short notation; or, with `algorithm`, how much a window admits.
    limit: Text,
    /// The algorithm. A token bucket, if left out.
    algorithm: Algorithm,
    /// How much is allowed in which time, such as `20/s`.
    rate: String,
    /// How much may come at once.
    burst: Count,
    /// How many may wait (shaper).
    queue: Count,
    /// How long a window is, such as `1h`.
    window: Span,
    /// The stretch of the UTC calendar that a window is (fixed): `day`, `week`, `month` or `year`.
    calendar: Span,
    /// In how many parts a window slides (sliding).
    parts: Count,
    /// How many may be under way at once (concurrent).
    slots: Count,
    /// How long a slot is held at most, such as `30s` (concurrent).
    ttl: Span,
    /// The time in which `limit` is allowed: another name for `window`.
    per: Span,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "kebab-case")]
enum Algorithm {
    /// A bucket of `burst` tokens, refilled at `rate`.
    TokenBucket,
    /// Decides as a token bucket, by one timestamp.
    Gcra,
    /// Leaky bucket that refuses.
    Meter,
    /// Leaky bucket that delays.
    Shaper,
    /// One counter per window.
    Fixed,
    /// Two counters, the older one weighted by how much of it still counts.
    Sliding,
    /// Exact: one entry per request.
    Log,
    /// At most so many at once.
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
    /// What says the cost: one place, or several of which those count that are there.
    from: CostFrom,
    /// What each unit that `from` says costs. One, if left out.
    times: u64,
    /// The cost if nothing here says it. One, if left out.
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

/// Places in the response, and what each unit there costs.
#[derive(JsonSchema)]
#[schemars(transparent, extend("minProperties" = 1, "propertyNames" = { "pattern": "^(body|header):.*\\S.*$" }))]
pub(super) struct Prices(BTreeMap<String, u64>);
