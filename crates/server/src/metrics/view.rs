//! Live data of a server, for programs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_redis::tier::TierStats;
use tidegate_rules::{AdaptiveRate, Condition, Limiter, Mode, RateSummary, Rule, RuleSet, Switches};

use super::limit_counters::{LimitEvent, LimitEventCounts};
use super::{Denial, Metrics, OwnRegion, Ranking, RequestOutcome, TopKeys, top_store_keys};
use crate::store::AnyStore;

/// Live data of a server. Counts are totals since the start; compute rates from the difference between two views.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Time, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Generation of the rules.
    pub generation: u64,
    /// Last reload of the rules; `None` if there was none since the start.
    #[serde(default)]
    pub reload: Option<Reload>,
    /// Mode that all rules are switched to, if any.
    pub all: Option<Mode>,
    /// Switches; a switch for all rules comes first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switched: Vec<SwitchView>,
    /// Requests by outcome.
    pub requests: Requests,
    /// Limits by number of denials, up to the requested number.
    pub rules: Vec<RuleView>,
    /// Number of limits that have decided anything.
    pub rules_known: usize,
    /// State of the store.
    pub store: StoreView,
    /// Region of the server, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<OwnRegion>,
    /// Busiest keys.
    pub traffic: TopKeys,
    /// Keys with the most denials.
    pub denied: TopKeys,
    /// Keys with the most calls to Redis; `None` if the store is in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_keys: Option<TopKeys>,
    /// Sampled denials since the previous view, oldest first.
    pub denials: Vec<Denial>,
}

/// A switch that overrides the mode in the rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchView {
    /// Rule; `None` for all rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Mode set by the switch.
    pub mode: Mode,
    /// End, in seconds since the Unix epoch; `None` if it lasts until it is removed.
    pub until: Option<u64>,
}

/// Result of a reload of the rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reload {
    /// Time, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Errors in the rules; `None` if they are in force.
    pub problem: Option<String>,
}

/// Requests by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// Allowed requests.
    pub allowed: u64,
    /// Requests denied by a limit.
    pub denied: u64,
    /// Requests refused because they lack a required part of a key.
    pub refused: u64,
}

/// Counts of one limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleView {
    /// Name of the limit.
    pub rule: String,
    /// Rule with several limits that this one belongs to; `None` if the rule has just one limit, which has the rule's
    /// name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// Current mode of the rule; `None` if the limit belongs to no rule.
    pub mode: Option<Mode>,
    /// Requests allowed in mode `enforce`.
    pub allowed: u64,
    /// Requests denied, including those that are too large.
    pub denied: u64,
    /// Requests that mode `shadow` would have allowed.
    pub shadow_allowed: u64,
    /// Requests that mode `shadow` would have denied.
    pub shadow_denied: u64,
    /// Requests refused because they lack a part of the key.
    pub refused: u64,
    /// Requests decided without the store.
    pub without_store: u64,
    /// Requests without a part of the rule's key, which are charged to a shared key.
    #[serde(default)]
    pub without_key: u64,
    /// Current rate of the rule, if it is adaptive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateView>,
}

/// An adaptive rate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateView {
    /// Current rate, such as `550/s`.
    pub present: String,
    /// Minimum rate.
    pub lowest: String,
    /// Maximum rate.
    pub highest: String,
}

impl RateView {
    fn of(rate: &AdaptiveRate) -> RateView {
        let RateSummary { present, lowest, highest, .. } = RateSummary::of(rate);
        RateView { present, lowest, highest }
    }
}

/// State of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreView {
    /// `memory` or `redis`.
    pub kind: String,
    /// Whether the store is available.
    pub healthy: bool,
    /// Reason why the store is unavailable.
    pub trouble: Option<String>,
    /// Number of keys in memory, and the capacity. Unknown for Redis.
    pub keys: Option<(u64, u64)>,
    /// Times that a new key found no room and shared a bucket with others.
    pub overflowed: u64,
    /// Requests decided without the store.
    pub without: u64,
    /// Decisions by tier; `None` if the store is in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierView>,
}

/// Requests by the tier that decided them, and the leases of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierView {
    /// Requests decided by Redis.
    pub by_redis: u64,
    /// Requests denied by a cached denial.
    pub by_memory: u64,
    /// Requests decided by leases.
    pub by_lease: u64,
    /// Calls to Redis that renewed or returned leases.
    pub lease_calls: u64,
    /// Number of keys that this node leases.
    pub keys_held: u64,
    /// Unspent cost of these leases.
    pub cost_held: u64,
}

impl TierView {
    fn of(stats: &TierStats) -> TierView {
        let leases = stats.leases.unwrap_or_default();
        TierView {
            by_redis: stats.asked,
            by_memory: stats.spared,
            by_lease: leases.admitted + leases.denied,
            lease_calls: leases.calls,
            keys_held: leases.leased as u64,
            cost_held: leases.outstanding,
        }
    }

    /// All requests.
    #[must_use]
    pub const fn decisions(&self) -> u64 {
        self.by_redis + self.by_memory + self.by_lease
    }

    /// Calls to Redis.
    #[must_use]
    pub const fn calls(&self) -> u64 {
        self.by_redis + self.lease_calls
    }

    /// Counts since an earlier view, with the current leases.
    #[must_use]
    pub const fn since(&self, before: &TierView) -> TierView {
        TierView {
            by_redis: self.by_redis.saturating_sub(before.by_redis),
            by_memory: self.by_memory.saturating_sub(before.by_memory),
            by_lease: self.by_lease.saturating_sub(before.by_lease),
            lease_calls: self.lease_calls.saturating_sub(before.lease_calls),
            ..*self
        }
    }
}

impl RuleView {
    fn new(rule: &str, counts: LimitEventCounts) -> RuleView {
        let of = |event: LimitEvent| counts[event as usize];
        RuleView {
            rule: rule.to_owned(),
            of: None,
            mode: None,
            allowed: of(LimitEvent::Allowed),
            denied: of(LimitEvent::Denied) + of(LimitEvent::TooLarge),
            shadow_allowed: of(LimitEvent::ShadowAllowed),
            shadow_denied: of(LimitEvent::ShadowDenied) + of(LimitEvent::ShadowTooLarge),
            refused: of(LimitEvent::Refused),
            without_store: of(LimitEvent::WithoutStore),
            without_key: 0,
            rate: None,
        }
    }

    /// Total number of decisions.
    #[must_use]
    pub const fn all(&self) -> u64 {
        self.allowed + self.denied + self.shadow_allowed + self.shadow_denied
    }
}

impl Metrics {
    /// Requests by outcome.
    #[must_use]
    pub fn requests(&self) -> Requests {
        let counts = self.requests.counts();
        let of = |outcome: RequestOutcome| counts[outcome as usize];
        Requests {
            allowed: of(RequestOutcome::Allowed),
            denied: of(RequestOutcome::Denied),
            refused: of(RequestOutcome::Refused),
        }
    }

    /// Decisions on limits that regions share, by the names of shares in the regions' records.
    pub(crate) fn demand(&self, present: &RuleSet) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        self.limits.each(|counters| {
            let rule = present.rule_of(counters.id.as_str()).map(Rule::id);
            if let Some(name) = rule.and_then(|rule| present.share_name(rule)) {
                let all = RuleView::new("", counters.counts()).all();
                sums.entry(name.to_owned()).and_modify(|sum| *sum += all).or_insert(all);
            }
        });
        sums
    }

    fn rules(&self, present: &RuleSet, most: usize) -> (Vec<RuleView>, usize) {
        let mut rules = Vec::new();
        self.limits.each(|counters| rules.push(RuleView::new(counters.id.as_str(), counters.counts())));
        let known = rules.len();
        rules.sort_by(|one, other| {
            let rank = |rule: &RuleView| (rule.denied + rule.shadow_denied, rule.all());
            rank(other).cmp(&rank(one)).then_with(|| one.rule.cmp(&other.rule))
        });
        rules.truncate(most);
        for rule in &mut rules {
            rule.of = present.rule_of(&rule.rule).map(Rule::id).filter(|id| **id != rule.rule).map(str::to_owned);
            rule.mode = present.mode_of(rule.of.as_deref().unwrap_or(&rule.rule));
            let of_rule = rule.of.as_deref().map_or(0, |rule| self.unkeyed.of(rule));
            rule.without_key = self.unkeyed.of(&rule.rule).max(of_rule);
            let adaptive = present.rule_of(&rule.rule).and_then(Rule::adaptive_rate);
            rule.rate = adaptive.map(|rate| RateView::of(rate));
        }
        (rules, known)
    }
}

/// Active switches.
fn switched(switches: &Switches) -> Vec<SwitchView> {
    let all = switches.all().map(|mode| (None, mode));
    let single = switches.rules().map(|(rule, mode)| (Some(rule), mode));
    let shown = |(rule, mode): (Option<&str>, Mode)| SwitchView {
        rule: rule.map(str::to_owned),
        mode,
        until: switches.end(rule).map(|end| end.as_micros().div_ceil(1_000_000)),
    };
    all.into_iter().chain(single).map(shown).collect()
}

impl View {
    /// Live data of a server: the first `most` rules and keys, and the denials after number `after`.
    #[must_use]
    pub fn of(metrics: &Metrics, limiter: &Limiter<AnyStore>, most: usize, after: u64) -> View {
        let present = limiter.rules();
        let (rules, rules_known) = metrics.rules(&present.rules, most);
        View {
            at_ms: metrics.now().as_micros() / 1_000,
            generation: present.number,
            reload: metrics.last_reload().map(|reload| (*reload).clone()),
            all: present.rules.switches().all(),
            switched: switched(present.rules.switches()),
            requests: metrics.requests(),
            rules,
            rules_known,
            store: StoreView::of(limiter),
            region: OwnRegion::of(metrics, limiter),
            traffic: metrics.top_keys(Ranking::Traffic, most),
            denied: metrics.top_keys(Ranking::Denials, most),
            store_keys: top_store_keys(limiter, most),
            denials: metrics.denials_after(after).iter().map(|denial| (**denial).clone()).collect(),
        }
    }
}

impl StoreView {
    fn of(limiter: &Limiter<AnyStore>) -> StoreView {
        let health = limiter.health();
        let decided = health.decided;
        let trouble = match (&health.store, &health.keys) {
            (Condition::Failing { reason, .. }, _) | (_, Condition::Failing { reason, .. }) => Some(reason.to_string()),
            (Condition::Healthy, Condition::Healthy) => None,
        };
        let view = StoreView {
            kind: "redis".to_owned(),
            healthy: health.store.is_healthy(),
            trouble,
            keys: None,
            overflowed: 0,
            without: decided.allow
                + decided.allow_ended
                + decided.deny
                + decided.local_allowed
                + decided.local_denied
                + decided.too_large,
            tier: None,
        };
        match limiter.store() {
            AnyStore::Redis(tier) => StoreView { tier: Some(TierView::of(&tier.behind().stats())), ..view },
            AnyStore::Memory(store) => {
                let stats = store.stats();
                let keys = Some((stats.keys as u64, stats.max_keys as u64));
                StoreView { kind: "memory".to_owned(), keys, overflowed: stats.overflowed, ..view }
            }
        }
    }
}
