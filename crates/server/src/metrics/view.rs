//! How a server is doing, in numbers that a program can follow.

use serde::{Deserialize, Serialize};
use tidegate_rules::{Condition, Mode, Rule, RuleSet, Switches};

use super::tally::{Counts, Said};
use super::{Denial, Metrics, Ranking, RequestOutcome, TopKeys};
use crate::engine::Engine;
use crate::store::AnyStore;

/// How a server is doing. Counts are since it started: whoever wants to know how fast they grow looks twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The generation of the rules.
    pub generation: u64,
    /// What came of reading the rules the last time; `None` if that was when the server started.
    #[serde(default)]
    pub reload: Option<Reload>,
    /// The mode that all rules are switched to, if they are.
    pub all: Option<Mode>,
    /// The switches, that of all rules first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switched: Vec<SwitchView>,
    /// All requests.
    pub requests: Requests,
    /// The limits that had anything to say: those that deny most first, and no more of them than were asked for.
    pub rules: Vec<RuleView>,
    /// How many limits had anything to say.
    pub rules_known: usize,
    /// The store.
    pub store: StoreView,
    /// The keys that were asked about most.
    pub traffic: TopKeys,
    /// The keys that were denied most.
    pub denied: TopKeys,
    /// Some of the requests that were denied since the last time, the oldest first.
    pub denials: Vec<Denial>,
}

/// A mode that stands in for what is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchView {
    /// The rule; `None` for all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The mode that it is switched to.
    pub mode: Mode,
    /// When that ends, in seconds since the Unix epoch; `None` if it lasts until it is taken back.
    pub until: Option<u64>,
}

/// What came of reading the rules again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reload {
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// What is wrong with them, and where; `None` if they are in force.
    pub problem: Option<String>,
}

/// Requests, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// They could go ahead.
    pub allowed: u64,
    /// A limit denied them.
    pub denied: u64,
    /// They lacked a part of a key that a rule insists on.
    pub refused: u64,
}

/// What one limit has said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleView {
    /// The limit.
    pub rule: String,
    /// The rule that it is one of several limits of; `None` if it is the only one, and has the rule's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// The mode that its rule is in now; `None` if it belongs to no rule.
    pub mode: Option<Mode>,
    /// Allowed, while it was enforced.
    pub allowed: u64,
    /// Denied, too large ones included.
    pub denied: u64,
    /// Would have been allowed, while it was in the shadow.
    pub shadow_allowed: u64,
    /// Would have been denied.
    pub shadow_denied: u64,
    /// Refused, for lack of a part of the key.
    pub refused: u64,
    /// Decided without the store.
    pub without_store: u64,
    /// Requests that lacked a part of its rule's key, and were charged to the key that such requests share.
    #[serde(default)]
    pub without_key: u64,
}

/// How the store is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreView {
    /// `memory` or `redis`.
    pub kind: String,
    /// Whether it answers.
    pub well: bool,
    /// Why not, if it does not.
    pub trouble: Option<String>,
    /// Keys held in memory, and the most that can be kept apart. In Redis they are not counted.
    pub keys: Option<(u64, u64)>,
    /// Times that there was no room for a new key.
    pub overflowed: u64,
    /// Requests that were decided without it.
    pub without: u64,
}

impl RuleView {
    fn new(rule: &str, counts: Counts) -> RuleView {
        let of = |said: Said| counts[said as usize];
        RuleView {
            rule: rule.to_owned(),
            of: None,
            mode: None,
            allowed: of(Said::Allowed),
            denied: of(Said::Denied) + of(Said::TooLarge),
            shadow_allowed: of(Said::ShadowAllowed),
            shadow_denied: of(Said::ShadowDenied) + of(Said::ShadowTooLarge),
            refused: of(Said::Refused),
            without_store: of(Said::WithoutStore),
            without_key: 0,
        }
    }

    /// What it has said, in all.
    #[must_use]
    pub const fn all(&self) -> u64 {
        self.allowed + self.denied + self.shadow_allowed + self.shadow_denied
    }
}

impl Metrics {
    /// Requests, by what became of them.
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

    fn rules(&self, present: &RuleSet, most: usize) -> (Vec<RuleView>, usize) {
        let mut rules = Vec::new();
        self.tallies.each(|tally| rules.push(RuleView::new(tally.id.as_str(), tally.counts())));
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
        }
        (rules, known)
    }
}

/// A switch that is in force.
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
    /// How the server of this engine is doing: of rules and keys the first `most`, of denials those after `after`.
    #[must_use]
    pub fn of(engine: &Engine, most: usize, after: u64) -> View {
        let (metrics, present) = (engine.metrics(), engine.limiter().rules());
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
            store: StoreView::of(engine),
            traffic: metrics.top_keys(Ranking::Traffic, most),
            denied: metrics.top_keys(Ranking::Denials, most),
            denials: metrics.denials_after(after).iter().map(|denial| (**denial).clone()).collect(),
        }
    }
}

impl StoreView {
    fn of(engine: &Engine) -> StoreView {
        let health = engine.limiter().health();
        let decided = health.decided;
        let trouble = match (&health.store, &health.keys) {
            (Condition::Failing { reason, .. }, _) | (_, Condition::Failing { reason, .. }) => Some(reason.to_string()),
            (Condition::Well, Condition::Well) => None,
        };
        let view = StoreView {
            kind: "redis".to_owned(),
            well: health.store.is_well(),
            trouble,
            keys: None,
            overflowed: 0,
            without: decided.allow
                + decided.allow_ended
                + decided.deny
                + decided.local_allowed
                + decided.local_denied
                + decided.too_large,
        };
        match engine.limiter().store() {
            AnyStore::Redis(_) => view,
            AnyStore::Memory(store) => {
                let stats = store.stats();
                let keys = Some((stats.keys as u64, stats.max_keys as u64));
                StoreView { kind: "memory".to_owned(), keys, overflowed: stats.overflowed, ..view }
            }
        }
    }
}
