//! The report of a replay.

use serde::Serialize;

use super::histogram::Waits;
use super::log_reader::LogSummary;
use super::suggest::Suggestion;
use super::timeline::Bin;

/// The report of a replay. Instants are microseconds since the epoch.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayReport {
    /// A summary of the logs.
    pub reading: LogSummary,
    /// The outcome under the rules.
    pub outcome: RuleReport,
    /// The outcome under the second set of rules, and the differences.
    pub comparison: Option<Comparison>,
    /// Suggested limits, which would have denied almost no key.
    pub suggestions: Vec<Suggestion>,
    /// The rules only provided keys, so their outcome is meaningless.
    pub suggestions_only: bool,
}

/// The outcome under one set of rules.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RuleReport {
    /// The number of requests.
    pub requests: u64,
    /// Admitted requests.
    pub admitted: u64,
    /// Denied requests.
    pub denied: u64,
    /// Denied requests that lacked a part of a rule's key, by rule.
    pub refused: Vec<(String, u64)>,
    /// Requests without the key of a rule that charges them to one shared key, by rule.
    pub unkeyed: Vec<UnkeyedRequests>,
    /// Requests that no rule matches.
    pub ungoverned: u64,
    /// Rules that match no request.
    pub idle_rules: Vec<String>,
    /// The outcome under each limit.
    pub limits: Vec<LimitReport>,
    /// The number of keys denied by enforced limits, counted for each limit separately.
    pub denied_keys: u64,
    /// The most by which the counts of denied keys may be too low. Zero unless there were very many keys.
    pub keys_short_by: u64,
    /// The keys that were denied most often.
    pub keys: Vec<DeniedKey>,
    /// The number of keys that limits in shadow mode would have denied, counted for each limit separately.
    pub shadow_keys: u64,
    /// The keys that limits in shadow mode would have denied most often.
    pub keys_in_shadow: Vec<DeniedKey>,
    /// The longest run of denials of one key by an enforced limit.
    pub streak: Option<Streak>,
    /// The distribution of `Retry-After` over denials.
    pub waits: Option<Waits>,
    /// The instant of the first request.
    pub from: Option<u64>,
    /// The instant of the last request.
    pub to: Option<u64>,
    /// Admissions and denials over time.
    pub timeline: Vec<Bin>,
    /// Requests that took slots of a concurrency limit and have no duration in the log.
    pub slots_without_duration: u64,
    /// Decisions on keys beyond `max_keys`, which share a bucket.
    pub shared_keys: u64,
}

/// Requests that lack the key of a rule, and therefore share one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnkeyedRequests {
    /// The rule.
    pub rule: String,
    /// The parts of its key.
    pub key: Vec<String>,
    /// The requests that lack one of these parts.
    pub requests: u64,
    /// All requests that the rule limits.
    pub of: u64,
}

/// The outcome under one limit.
#[derive(Clone, Debug, Serialize)]
pub struct LimitReport {
    /// The id: that of the rule, plus the limit's name if the rule has several.
    pub id: String,
    /// The notation. `None` if tiers or overrides have limits of their own.
    pub limit: Option<String>,
    /// The mode of the rule.
    pub mode: String,
    /// Admitted requests.
    pub admitted: u64,
    /// Denied requests.
    pub denied: u64,
    /// Denied requests that cost more than the limit can ever admit.
    pub too_large: u64,
}

/// A key that was denied.
#[derive(Clone, Debug, Serialize)]
pub struct DeniedKey {
    /// The limit.
    pub limit: String,
    /// The key.
    pub key: String,
    /// The number of events.
    pub denied: u64,
    /// The instant of the first one.
    pub first: u64,
    /// The instant of the last one.
    pub last: u64,
    /// The longest run of denials.
    pub longest_streak: u64,
}

/// A run of denials.
#[derive(Clone, Debug, Serialize)]
pub struct Streak {
    /// The limit.
    pub limit: String,
    /// The key.
    pub key: String,
    /// The number of denials.
    pub denied: u64,
    /// The instant of the first one.
    pub from: u64,
    /// The instant of the last one.
    pub to: u64,
}

/// The differences between two sets of rules.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The outcome under the new rules.
    pub new: RuleReport,
    /// Requests that both admit.
    pub both_admit: u64,
    /// Requests that both deny.
    pub both_deny: u64,
    /// Requests that only the old rules admit.
    pub newly_denied: u64,
    /// Requests that only the new rules admit.
    pub newly_admitted: u64,
    /// The number of keys with newly denied requests.
    pub losing_keys: u64,
    /// The number of keys with newly admitted requests.
    pub gaining_keys: u64,
    /// The keys with the most newly denied requests, as the new rules key them.
    pub losers: Vec<AffectedKey>,
    /// The keys with the most newly admitted requests, as the old rules key them.
    pub gainers: Vec<AffectedKey>,
}

/// A key that a change of rules affects.
#[derive(Clone, Debug, Serialize)]
pub struct AffectedKey {
    /// The limit that denies the key: a new one for newly denied requests, an old one for newly admitted ones.
    pub limit: String,
    /// The key.
    pub key: String,
    /// Requests with another outcome.
    pub requests: u64,
    /// The instant of the first one.
    pub first: u64,
    /// The instant of the last one.
    pub last: u64,
}
