//! Explanations of why each rule does or does not limit a request.

use std::net::IpAddr;

use serde::Serialize;

use super::RuleSet;
use super::applicable_rule::ApplicableRule;
use super::condition::Mismatch;
use super::fact_name::FactName;
use super::index::IndexLookup;
use super::key_parts::part_of;
use super::matched::{Granted, MatchedRule};
use super::pattern::Pattern;
use super::request_view::RequestView;
use super::rule::{KeyFault, KeyPart, Mode, Rule};
use super::rule_effect::RuleEffect;
use super::secret::Secret;
use crate::facts::Facts;
use crate::yaml::Place;
use tidegate_core::Limit;
use tidegate_core::disclosure::DenialStatus;
use tidegate_core::notation::write_span;
use tidegate_core::priority::Priority;
use tidegate_core::write_behind::WriteBehind;

/// The outcome of a request, rule by rule. Secret values are hidden ([`Secret::display`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The method, in upper case.
    pub method: Option<String>,
    /// The host, in lower case.
    pub host: Option<String>,
    /// The path as rules see it.
    pub path: String,
    /// The tier that the request belongs to.
    pub tier: Option<String>,
    /// The client's address, in its canonical form.
    pub address: Option<IpAddr>,
    /// All rules, in the order of evaluation.
    pub rules: Vec<ExplainedRule>,
}

impl Explanation {
    /// Adds the share of each of `nodes` nodes to limits that nodes decide by their own copies.
    pub fn set_nodes(&mut self, nodes: u32) {
        self.write_behind_mut().for_each(|shown| {
            shown.nodes = Some(nodes);
            shown.each_node = Some(shown.at_most / u64::from(nodes.max(1)));
        });
    }

    /// Returns `true` if any of the limits is decided by nodes' own copies.
    #[must_use]
    pub fn has_write_behind(&self) -> bool {
        let limits = self.rules.iter().filter_map(|rule| match &rule.outcome {
            RuleOutcome::Matched(charged) => Some(&charged.limits),
            _ => None,
        });
        limits.flatten().any(|limit| limit.write_behind.is_some())
    }

    fn write_behind_mut(&mut self) -> impl Iterator<Item = &mut ShownWriteBehind> {
        self.limits_mut().filter_map(|(_, limit)| limit.write_behind.as_mut())
    }

    /// Adds the present rate of a rule that adapts, such as `550/s`.
    pub fn set_present_rate(&mut self, rule: &str, rate: &str) {
        let adapting = self.limits_mut().filter(|(id, limit)| *id == rule && limit.adapt.is_some());
        adapting.for_each(|(_, limit)| limit.present_rate = Some(rate.to_owned()));
    }

    /// The limits of rules that match, with the ids of these rules.
    fn limits_mut(&mut self) -> impl Iterator<Item = (&str, &mut ShownLimit)> {
        let limits = self.rules.iter_mut().filter_map(|rule| match &mut rule.outcome {
            RuleOutcome::Matched(charged) => Some((rule.id.as_str(), &mut charged.limits)),
            _ => None,
        });
        limits.flat_map(|(id, limits)| limits.iter_mut().map(move |limit| (id, limit)))
    }

    /// The rules that limit the request: the same that [`RuleSet::matching`] finds.
    pub fn matched(&self) -> impl Iterator<Item = &ExplainedRule> {
        self.rules.iter().filter(|rule| matches!(rule.outcome, RuleOutcome::Matched(_)))
    }

    /// The rule, if any, that refuses the request because its key or cost cannot be determined.
    #[must_use]
    pub fn refused_by(&self) -> Option<&ExplainedRule> {
        let refuses = |rule: &&ExplainedRule| {
            matches!(rule.outcome, RuleOutcome::Refused { .. } | RuleOutcome::Repeated { .. } | RuleOutcome::Unmeasured)
        };
        self.rules.iter().filter(|rule| rule.mode == Mode::Enforce).find(refuses)
    }
}

/// The outcome of a request under one rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedRule {
    /// The rule's id.
    pub id: String,
    /// The place of the rule in its file.
    #[serde(flatten)]
    pub place: Place,
    /// Whether the rule denies, only reports, or does nothing, including switches.
    pub mode: Mode,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: RuleOutcome,
}

/// Whether a rule limits a request, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum RuleOutcome {
    /// The rule limits the request.
    Matched(Charged),
    /// A condition does not hold. If several do not, this is the first.
    Mismatch {
        /// The subject of the condition, such as `path` or `header:x-env`.
        condition: String,
        /// The requirement, in words.
        wanted: String,
        /// The request's value; `None` if it has none.
        actual: Option<String>,
    },
    /// The rule matches, but another matching rule replaces it.
    Replaced {
        /// The id of the other rule.
        by: String,
    },
    /// The rule was not evaluated, because an earlier rule matched and stops the search.
    NotReached {
        /// The id of the rule that stops.
        stopped_by: String,
    },
    /// The rule is off.
    Off,
    /// The rule's conditions hold, but it limits only certain tiers or keys, not those of this request.
    NoLimit,
    /// The request lacks a part of the key, and the rule lets such requests pass.
    Skipped {
        /// The part.
        missing: String,
    },
    /// The request lacks a part of the key, and the rule refuses such requests.
    Refused {
        /// The part.
        missing: String,
    },
    /// The request has several values for a part of the key or for its tier, and the rule refuses such requests.
    Repeated {
        /// The part.
        repeated: String,
    },
    /// The cost of the request is the length of its body, which is not stated.
    Unmeasured,
}

/// The key that a rule charges for a request, and the limits that apply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Charged {
    /// The parts of the key. Empty if all requests share one key.
    pub key: Vec<ShownPart>,
    /// The part of the key that the request lacks. All requests without it share one key.
    pub missing: Option<String>,
    /// The group to which the limits that apply were granted.
    pub granted: Granted,
    /// The limits. Empty if there is no limit for this tier or key.
    pub limits: Vec<ShownLimit>,
    /// The policy for when the store cannot decide.
    pub on_store_failure: String,
    /// The time that the request can wait for the store; `None` for the store's default.
    pub store_deadline: Option<String>,
    /// The priority that the rule sets for its requests, if it sets one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<&'static str>,
    /// The problem type of denials.
    pub problem: &'static str,
    /// The HTTP status of a denial, if it is not 429.
    pub status: Option<u16>,
}

/// A part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShownPart {
    /// The name of the part, such as `address` or `header:x-tenant`.
    pub part: String,
    /// Its value, hidden if it is secret.
    pub value: String,
}

/// A limit, and what the request takes from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShownLimit {
    /// The name under which state is kept: the rule's id, with the number of the limit if the rule has several.
    pub id: String,
    /// The limit in its short notation.
    pub limit: String,
    /// The most that the limit can admit at once.
    pub capacity: u64,
    /// The cost of the request. A cost above the capacity is always denied.
    pub cost: u64,
    /// The source of the cost in the request, such as `body:max_tokens`.
    pub cost_from: Option<String>,
    /// Whether the request has no such number, so that the cost is the rule's `otherwise`.
    pub cost_is_fallback: bool,
    /// The time in which the cost can be settled.
    pub reserve: Option<String>,
    /// The source of the actual cost in the response, such as `body:usage.total_tokens`.
    pub settle: Option<String>,
    /// Whether and how the nodes of a fleet lease the limit: `auto`, `off`, or the terms. `None` if it is never leased.
    pub lease: Option<String>,
    /// The cost per second for a key at a node from which on the node leases it, under `auto` and other terms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leased_from: Option<u64>,
    /// Bound on decisions by the nodes' own copies.
    pub write_behind: Option<ShownWriteBehind>,
    /// The part of the limit that each node charges, such as `4 parts of shaper 1/40ms queue 12`. `None` if it is not split.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<String>,
    /// The share of the node's region, such as `60% of 20/s burst 50 in eu`. `None` if regions do not share the limit, or
    /// the node is in no region.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Whether clients see the limit.
    pub show: bool,
    /// The terms on which the limit's rate adapts, if it does. In that case, `limit` is the present limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapt: Option<String>,
    /// The present rate at a server, such as `550/s`. `None` unless it was [set](Explanation::set_present_rate).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub present_rate: Option<String>,
}

/// Bound on decisions by the nodes' own copies of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShownWriteBehind {
    /// Maximum that the fleet admits beyond the limit, in percent of it.
    pub at_most_percent: u8,
    /// The same maximum as a number.
    pub at_most: u64,
    /// The time between two reports.
    pub every: String,
    /// The number of nodes, if it is known.
    pub nodes: Option<u32>,
    /// Maximum that each of these nodes may have admitted and not reported, per key.
    pub each_node: Option<u64>,
}

impl ShownWriteBehind {
    fn of(setting: WriteBehind, limit: &Limit) -> ShownWriteBehind {
        ShownWriteBehind {
            at_most_percent: setting.percent(),
            at_most: setting.most_beyond(limit),
            every: write_span(setting.every()),
            nodes: None,
            each_node: None,
        }
    }
}

impl RuleSet {
    /// Evaluates every rule for a request, and gives each outcome with its reason.
    ///
    /// Slower than [`RuleSet::matching`], which evaluates only rules that may match. Intended for diagnosis, not for
    /// traffic.
    #[must_use]
    pub fn explain<'r>(&'r self, facts: &(impl Facts + ?Sized)) -> Explanation {
        let request = RequestView::new(facts, &self.written.tiers, self.stored_tiers());
        let all: Vec<(&'r Rule, Mode)> = self.in_force().collect();
        let taking_part = |&(rule, mode): &(&'r Rule, Mode)| rule.taking_part(mode, &request, &self.secret);
        let stops = |rule: &(&'r Rule, Mode)| rule.0.stops && taking_part(rule).is_some_and(|rule| rule.may_displace());
        let last = all.iter().position(stops);
        let (reached, beyond) = all.split_at(last.map_or(all.len(), |last| last + 1));
        let governing: Vec<ApplicableRule<'_>> = reached.iter().filter_map(taking_part).collect();

        let priority = self.matching(facts).priority_of(facts);
        let mut rules = Vec::with_capacity(all.len());
        let explained = |&(rule, mode): &(&Rule, Mode)| {
            rule.explained(mode, self.outcome(rule, mode, &request, (&governing, priority)))
        };
        rules.extend(reached.iter().map(explained));
        if let Some(last) = last {
            let stopped_by = all[last].0.id();
            rules.extend(beyond.iter().map(|&(rule, mode)| {
                rule.explained(
                    mode,
                    match mode {
                        Mode::Off => RuleOutcome::Off,
                        Mode::Enforce | Mode::Shadow => RuleOutcome::NotReached { stopped_by: stopped_by.to_owned() },
                    },
                )
            }));
        }
        Explanation {
            method: request.values(&FactName::Method).shown(str::to_owned),
            host: request.values(&FactName::Host).shown(str::to_owned),
            path: request.path().to_owned(),
            tier: request.tier().shown(str::to_owned),
            address: request.address(),
            rules,
        }
    }

    fn outcome<F: Facts + ?Sized>(
        &self,
        rule: &Rule,
        mode: Mode,
        request: &RequestView<'_, F>,
        (governing, priority): (&[ApplicableRule<'_>], Priority),
    ) -> RuleOutcome {
        let readings = match rule.governs(mode, request) {
            Err(Mismatch::Off) => return RuleOutcome::Off,
            Err(mismatch) => return mismatch.explained(request, &self.secret),
            Ok(readings) => readings,
        };
        if let Some(by) = rule.replaced_by(governing) {
            return RuleOutcome::Replaced { by: by.id().to_owned() };
        }
        let faulty = rule.key.iter().find(|part| part_of(part, rule, request).is_err()).map(ToString::to_string);
        let mut matched = MatchedRule::begin(rule, mode, readings);
        match rule.apply(&mut matched, request, &self.secret) {
            RuleEffect::Limited => {
                matched.limit_by(priority);
                RuleOutcome::Matched(matched.explained(request, faulty, &self.secret))
            }
            RuleEffect::NoLimit => RuleOutcome::NoLimit,
            RuleEffect::Skipped => RuleOutcome::Skipped { missing: faulty.unwrap_or_default() },
            RuleEffect::Refused(KeyFault::Missing) => RuleOutcome::Refused { missing: faulty.unwrap_or_default() },
            RuleEffect::Refused(KeyFault::Repeated) => {
                // If every part of the key has one value, the tier is what was repeated: it selects the rule's limits.
                RuleOutcome::Repeated { repeated: faulty.unwrap_or_else(|| FactName::Tier.to_string()) }
            }
            RuleEffect::Refused(KeyFault::Unmeasured) => RuleOutcome::Unmeasured,
        }
    }
}

impl Rule {
    fn explained(&self, mode: Mode, outcome: RuleOutcome) -> ExplainedRule {
        ExplainedRule { id: self.id().to_owned(), place: self.place.clone(), mode, outcome }
    }
}

impl MatchedRule<'_, '_> {
    fn explained<F: Facts + ?Sized>(
        &self,
        request: &RequestView<'_, F>,
        missing: Option<String>,
        secret: &Secret,
    ) -> Charged {
        let shown = |part: &KeyPart| {
            let value = part_of(part, self.rule, request).ok()?;
            let value = if part.is_secret() { secret.display(&value) } else { value.to_string() };
            Some(ShownPart { part: part.to_string(), value })
        };
        let limits = self.each_limit().iter().zip(&self.costs).map(|(limit, &cost)| ShownLimit {
            id: limit.id.to_string(),
            limit: limit.limit.to_string(),
            capacity: limit.limit.capacity(),
            cost,
            cost_from: limit.cost.said_by(),
            cost_is_fallback: limit.cost.is_fallback(request),
            reserve: limit.reserve.map(write_span),
            settle: limit.settle.as_ref().map(ToString::to_string),
            lease: limit.leased(),
            leased_from: limit.leased_from(),
            write_behind: limit.write_behind.map(|setting| ShownWriteBehind::of(setting, &limit.limit)),
            split: limit.split.and_then(|split| {
                let part = split.part_of(&limit.limit)?;
                Some(format!("{} parts of {part}", split.parts()))
            }),
            region: limit.whole.as_ref().map(ToString::to_string),
            show: limit.disclosure.is_shown,
            adapt: self.rule.adaptive_rate().map(ToString::to_string),
            present_rate: None,
        });
        let disclosure = self.rule.disclosure();
        Charged {
            key: if missing.is_none() { self.rule.key.iter().filter_map(shown).collect() } else { Vec::new() },
            missing,
            granted: self.granted,
            limits: limits.collect(),
            on_store_failure: self.rule.on_store_failure.to_string(),
            store_deadline: self.rule.store_deadline.map(write_span),
            priority: self.rule.priority.map(Priority::as_str),
            problem: disclosure.problem.as_str(),
            status: disclosure.status.map(DenialStatus::get),
        }
    }
}

impl Mismatch<'_> {
    fn explained<F: Facts + ?Sized>(self, request: &RequestView<'_, F>, secret: &Secret) -> RuleOutcome {
        let listed = |negated: bool, words: &mut dyn Iterator<Item = String>| {
            let words = either(words.map(|word| format!("`{word}`")));
            if negated { format!("anything but {words}") } else { words }
        };
        let (condition, wanted, actual) = match self {
            Mismatch::Off => return RuleOutcome::Off,
            Mismatch::Path(paths) => {
                let wanted = listed(paths.negated, &mut paths.any.iter().map(ToString::to_string));
                ("path".to_owned(), wanted, Some(request.path().to_owned()))
            }
            Mismatch::Address(addresses) => {
                let wanted = listed(addresses.negated, &mut addresses.any.iter().map(ToString::to_string));
                ("address".to_owned(), wanted, request.address().map(|address| address.to_string()))
            }
            Mismatch::Value(fact, pattern) => {
                let show = |value: &str| match fact.is_secret() {
                    true => secret.display(value),
                    false => value.to_owned(),
                };
                let wanted = pattern.describe(&|value| format!("`{}`", show(value)));
                (fact.to_string(), wanted, request.values(fact).shown(show))
            }
        };
        RuleOutcome::Mismatch { condition, wanted, actual }
    }
}

impl Pattern {
    /// Describes the values that match. `show` displays a value, or hides it.
    fn describe(&self, show: &dyn Fn(&str) -> String) -> String {
        match self {
            Pattern::Exact(values) => either(values.iter().map(|value| show(value))),
            Pattern::Glob(glob) => show(&glob.to_string()),
            Pattern::Regex(regex) => {
                let whole = regex.as_str();
                let inner = whole.strip_prefix("^(?:").and_then(|rest| rest.strip_suffix(")$"));
                format!("the regex {}", show(inner.unwrap_or(whole)))
            }
            Pattern::Any(patterns) => either(patterns.iter().map(|pattern| pattern.describe(show))),
            Pattern::Not(pattern) => format!("anything but {}", pattern.describe(show)),
            Pattern::Present => "any value".to_owned(),
            Pattern::Absent => "no value".to_owned(),
        }
    }
}

/// `a, b or c`.
fn either(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words.collect();
    match &words[..] {
        [rest @ .., last] if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        words => words.concat(),
    }
}

#[cfg(test)]
mod tests;
