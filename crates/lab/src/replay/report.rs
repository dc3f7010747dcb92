//! What came of a replay.

use serde::Serialize;

use super::reading::Reading;
use super::spread::Waits;
use super::suggest::Suggestion;
use super::timeline::Bin;

/// What came of a replay. Instants are microseconds since the epoch.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What there was to read.
    pub reading: Reading,
    /// What the rules would have done.
    pub outcome: JudgeReport,
    /// What other rules would have done, and who would have noticed the difference.
    pub comparison: Option<Comparison>,
    /// Limits that would have left almost everybody alone.
    pub suggestions: Vec<Suggestion>,
    /// Whether the rules were there for their keys alone, and what they would have done means nothing.
    pub suggestions_only: bool,
}

/// What one set of rules would have done.
#[derive(Clone, Debug, Default, Serialize)]
pub struct JudgeReport {
    /// Requests.
    pub requests: u64,
    /// Those that would have gone ahead.
    pub admitted: u64,
    /// Those that would not.
    pub denied: u64,
    /// Of those, the ones that lacked a part of a rule's key, by rule.
    pub refused: Vec<(String, u64)>,
    /// Requests that no rule governs.
    pub ungoverned: u64,
    /// Rules that governed no request.
    pub idle_rules: Vec<String>,
    /// What each limit said.
    pub limits: Vec<LimitReport>,
    /// The number of keys that enforced limits denied, limit by limit.
    pub denied_keys: u64,
    /// By how much the counts of denied keys may be too low: zero unless there were very many.
    pub keys_short_by: u64,
    /// The keys that were denied most often.
    pub keys: Vec<DeniedKey>,
    /// The number of keys that limits in shadow mode would have denied, limit by limit.
    pub shadow_keys: u64,
    /// The keys that limits in shadow mode would have denied most often.
    pub keys_in_shadow: Vec<DeniedKey>,
    /// The longest row of denials of one key by an enforced limit, without an admission between.
    pub streak: Option<Streak>,
    /// How long denied requests were told to wait.
    pub waits: Option<Waits>,
    /// The first request.
    pub from: Option<u64>,
    /// The last.
    pub to: Option<u64>,
    /// Admissions and denials over time.
    pub timeline: Vec<Bin>,
    /// Requests that took slots of a concurrency limit, and of which the log does not say how long they lasted.
    pub slots_without_duration: u64,
    /// Decisions on keys for which there was no room, and which had to share a bucket.
    pub shared_keys: u64,
}

/// What one limit said.
#[derive(Clone, Debug, Serialize)]
pub struct LimitReport {
    /// Its id: that of its rule, and which of its limits this is if it has several.
    pub id: String,
    /// The limit, unless there are several by tier or override.
    pub limit: Option<String>,
    /// Whether it counts.
    pub mode: String,
    /// Requests that it would have let through.
    pub admitted: u64,
    /// Requests that it would not.
    pub denied: u64,
    /// Of those, the ones that it never would, because they cost too much.
    pub too_large: u64,
}

/// A key that was denied.
#[derive(Clone, Debug, Serialize)]
pub struct DeniedKey {
    /// By which limit.
    pub limit: String,
    /// The key.
    pub key: String,
    /// How often.
    pub denied: u64,
    /// When first.
    pub first: u64,
    /// When last.
    pub last: u64,
    /// The most in a row.
    pub longest_streak: u64,
}

/// Denials in a row.
#[derive(Clone, Debug, Serialize)]
pub struct Streak {
    /// By which limit.
    pub limit: String,
    /// The key.
    pub key: String,
    /// How many.
    pub denied: u64,
    /// The first of them.
    pub from: u64,
    /// The last of them.
    pub to: u64,
}

/// What changes from one set of rules to another.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// What the new rules would have done.
    pub new: JudgeReport,
    /// Requests that both let through.
    pub both_admit: u64,
    /// Requests that neither does.
    pub both_deny: u64,
    /// Requests that only the old rules let through.
    pub newly_denied: u64,
    /// Requests that only the new rules let through.
    pub newly_admitted: u64,
    /// How many keys are denied something that they had before.
    pub losing_keys: u64,
    /// How many keys are let through where they were denied before.
    pub gaining_keys: u64,
    /// Those that lose most, by the new rules' keys.
    pub losers: Vec<Changed>,
    /// Those that gain most, by the old rules' keys.
    pub gainers: Vec<Changed>,
}

/// A key that a change of rules affects.
#[derive(Clone, Debug, Serialize)]
pub struct Changed {
    /// The limit that denies it: the new one for those that lose, the old one for those that gain.
    pub limit: String,
    /// The key.
    pub key: String,
    /// Requests that come out otherwise.
    pub requests: u64,
    /// When first.
    pub first: u64,
    /// When last.
    pub last: u64,
}
