//! Rules.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::RandomState;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::adaptive_rate::RateLadder;
use super::fact_name::FactName;
use super::field::FieldPath;
use super::key_parts::override_name;
use super::pattern::Pattern;
use super::priority::Priority;
use super::route::PathPattern;
use super::settle::Settle;
use crate::facts::Fact;
use crate::split::Split;
use crate::yaml::Place;
use tidegate_core::disclosure::{Disclosure, QuotaUnit};
use tidegate_core::lease::{Leasing, Terms};
use tidegate_core::limit::Limit;
use tidegate_core::notation::write_span;
use tidegate_core::write_behind::WriteBehind;
use tidegate_core::{Micros, RuleId};

/// A rule: which requests it governs, whom it charges, and what it allows.
// What every request looks at comes first and close together: between two requests a gateway does so much else that nothing of
// it is left in the nearest cache, and each line of it is fetched anew.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Rule {
    pub(super) stops: bool,
    pub(super) on_missing_key: OnMissingKey,
    pub(super) on_repeated_key: OnRepeatedKey,
    pub(super) priority: Priority,
    pub(super) mode: Mode,
    pub(super) limits: Limits,
    pub(super) conditions: Conditions,
    pub(super) key: SmallVec<[KeyPart; 1]>,
    pub(super) store_deadline: Option<Micros>,
    pub(super) replaces: Vec<Arc<str>>,
    pub(super) id: Arc<str>,
    pub(super) place: Place,
    pub(super) on_store_failure: OnStoreFailure,
}

impl Rule {
    /// The rule's id. State belongs to it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The same, to be kept.
    pub(crate) const fn shared_id(&self) -> &Arc<str> {
        &self.id
    }

    /// The facts that its key is made of, besides the client's address and parts of the path.
    pub fn key_facts(&self) -> impl Iterator<Item = Fact<'_>> {
        self.key.iter().filter_map(|part| match part {
            KeyPart::Fact(fact) | KeyPart::Secret(fact) => Some(fact.as_fact()),
            KeyPart::Address { .. } | KeyPart::Segment(_) | KeyPart::Route => None,
        })
    }

    /// The facts that its conditions look at, besides the path and the client's address.
    pub fn condition_facts(&self) -> impl Iterator<Item = Fact<'_>> {
        self.conditions.values.iter().map(|(fact, _)| fact.as_fact())
    }

    /// The facts that state its costs.
    pub fn cost_facts(&self) -> impl Iterator<Item = Fact<'_>> {
        let sources = self.limits.all().flat_map(|limit| match &limit.cost {
            Cost::Said { by, .. } => &by[..],
            Cost::Fixed(_) | Cost::Hits | Cost::ByPath { .. } => &[],
        });
        sources.filter_map(|source| match source {
            CostSource::Fact(fact) => Some(fact.as_fact()),
            CostSource::Body(_) => None,
        })
    }

    /// Whether it has limits by tier.
    #[must_use]
    pub fn has_tiers(&self) -> bool {
        !self.limits.tiers.is_empty()
    }

    /// Whether it charges or looks for the client's address.
    #[must_use]
    pub fn needs_address(&self) -> bool {
        self.conditions.address.is_some() || self.key.iter().any(|part| matches!(part, KeyPart::Address { .. }))
    }

    /// The policy for a request that lacks a part of its key.
    #[must_use]
    pub const fn on_missing_key(&self) -> OnMissingKey {
        self.on_missing_key
    }

    /// The place of the rule in its file.
    #[must_use]
    pub const fn place(&self) -> &Place {
        &self.place
    }

    /// Whether it denies, only reports, or does nothing, as written. [`RuleSet::mode_of`](super::RuleSet::mode_of) says
    /// what is in force.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The policy for when the store cannot decide.
    #[must_use]
    pub const fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// For how long a request can wait for the store; `None` leaves it to the store.
    #[must_use]
    pub const fn store_deadline(&self) -> Option<Micros> {
        self.store_deadline
    }

    /// The priority of its requests when not all can be served.
    #[must_use]
    pub const fn priority(&self) -> Priority {
        self.priority
    }
}

/// Whether a rule denies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// It denies.
    #[default]
    Enforce,
    /// It counts and reports what it would have done, and never denies.
    Shadow,
    /// It does nothing.
    Off,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Enforce => "enforce",
            Mode::Shadow => "shadow",
            Mode::Off => "off",
        })
    }
}

/// The policy for when the store cannot decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnStoreFailure {
    /// Let requests through; for this long if bounded, and then deny.
    Allow {
        /// The time that the store may be unavailable before requests are denied.
        at_most: Option<Micros>,
    },
    /// Deny.
    Deny,
    /// Decide by this process alone, with a share of the limit.
    Local {
        /// The share, in percent.
        percent: u8,
    },
}

impl Default for OnStoreFailure {
    fn default() -> OnStoreFailure {
        OnStoreFailure::Allow { at_most: None }
    }
}

impl fmt::Display for OnStoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OnStoreFailure::Allow { at_most: None } => f.write_str("allow"),
            OnStoreFailure::Allow { at_most: Some(span) } => write!(f, "allow for {}", write_span(*span)),
            OnStoreFailure::Deny => f.write_str("deny"),
            OnStoreFailure::Local { percent: 100 } => f.write_str("local"),
            OnStoreFailure::Local { percent } => write!(f, "local at {percent}% of the limit"),
        }
    }
}

/// The conditions that a request must meet, all of them, for a rule to govern it.
#[derive(Clone, Debug, Default)]
pub(super) struct Conditions {
    pub(super) path: Option<Box<Paths>>,
    pub(super) address: Option<Box<Addresses>>,
    pub(super) values: Vec<(FactName, Pattern)>,
}

/// Any of these paths, or none of them.
#[derive(Clone, Debug)]
pub(super) struct Paths {
    pub(super) any: Vec<PathPattern>,
    pub(super) negated: bool,
}

/// Any of these networks, or none of them.
#[derive(Clone, Debug)]
pub(super) struct Addresses {
    pub(super) any: Vec<IpNet>,
    pub(super) negated: bool,
}

impl Addresses {
    pub(super) fn matches(&self, address: Option<IpAddr>) -> bool {
        let inside = address.is_some_and(|address| self.any.iter().any(|net| net.contains(&address)));
        inside != self.negated
    }
}

/// A part of the key that a rule charges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyPart {
    Fact(FactName),
    /// A fact whose value must not be seen.
    Secret(FactName),
    /// The client's address, or the network of this size that it lies in.
    Address {
        ipv4: u8,
        ipv6: u8,
    },
    /// A named segment of the path.
    Segment(String),
    /// The path pattern that matched.
    Route,
}

impl KeyPart {
    /// The client's address unless told otherwise: one IPv4 address, one IPv6 customer.
    pub(super) const ADDRESS: KeyPart = KeyPart::Address { ipv4: 32, ipv6: 64 };

    pub(super) fn of(fact: FactName) -> KeyPart {
        if fact.is_secret() { KeyPart::Secret(fact) } else { KeyPart::Fact(fact) }
    }

    pub(super) const fn is_secret(&self) -> bool {
        matches!(self, KeyPart::Secret(_))
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyPart::Fact(fact) | KeyPart::Secret(fact) => fact.fmt(f),
            KeyPart::Address { .. } => f.write_str("address"),
            KeyPart::Segment(name) => write!(f, "path:{name}"),
            KeyPart::Route => f.write_str("route"),
        }
    }
}

/// The policy for a request that lacks a part of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnMissingKey {
    /// Charge one bucket that all such requests share: nobody escapes a limit by leaving something out.
    #[default]
    Share,
    /// Do not apply the rule.
    Skip,
    /// Refuse the request.
    Refuse,
}

/// The policy for a request that has a part of the key more than once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnRepeatedKey {
    /// Refuse the request: whichever value is charged, an upstream may believe another.
    #[default]
    Refuse,
    /// Make one key of all values, in their order.
    Join,
}

/// The reason why a rule cannot charge a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyFault {
    /// The request lacks a part of its key.
    Missing,
    /// The request says a part of its key more than once.
    Repeated,
    /// The request costs as much as its body is long, and does not say how long that is.
    Unmeasured,
}

impl KeyFault {
    /// The word for it, as all listeners say it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            KeyFault::Missing => "missing_key",
            KeyFault::Repeated => "repeated_key",
            KeyFault::Unmeasured => "length_required",
        }
    }
}

/// The limits of a rule, by tier, key and priority.
#[derive(Clone, Debug, Default)]
pub(super) struct Limits {
    /// To those of whom nothing else is said. `None` if only tiers and overrides are limited.
    pub(super) default: Option<Arc<[RuleLimit]>>,
    /// By tier.
    pub(super) tiers: Vec<(String, Arc<[RuleLimit]>)>,
    /// By the value of the key.
    pub(super) overrides: Overrides,
    /// Variants of `default`, which share one state.
    pub(super) variants: Option<Box<Variants>>,
}

/// Variants of a rule's limit, over one state.
#[derive(Clone, Debug)]
pub(super) enum Variants {
    /// By the priority of the request, from low to critical.
    ByPriority([Arc<[RuleLimit]>; 4]),
    /// By the present rate.
    ByRate(RateLadder),
}

impl Variants {
    fn all(&self) -> &[Arc<[RuleLimit]>] {
        match self {
            Variants::ByPriority(limits) => limits,
            Variants::ByRate(ladder) => &ladder.limits,
        }
    }

    fn all_mut(&mut self) -> &mut [Arc<[RuleLimit]>] {
        match self {
            Variants::ByPriority(limits) => limits,
            Variants::ByRate(ladder) => &mut ladder.limits,
        }
    }
}

impl Limits {
    pub(super) fn all(&self) -> impl Iterator<Item = &RuleLimit> {
        let by_tier = self.tiers.iter().map(|(_, limits)| limits);
        let single = self.overrides.0.iter().flat_map(|all| all.values());
        let variants = self.variants.iter().flat_map(|variants| variants.all());
        self.default.iter().chain(by_tier).chain(single).chain(variants).flat_map(|limits| limits.iter())
    }

    /// Makes copies of limits that others have too, so that they can be changed.
    pub(super) fn make_own(&mut self) {
        let by_tier = self.tiers.iter_mut().map(|(_, limits)| limits);
        let single = self.overrides.0.iter_mut().flat_map(|all| all.values_mut());
        let variants = self.variants.iter_mut().flat_map(|variants| variants.all_mut());
        let all = self.default.iter_mut().chain(by_tier).chain(single).chain(variants);
        all.for_each(|limits| *limits = limits.iter().cloned().collect());
    }

    /// The same, while they are read and nobody else has them.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut RuleLimit> {
        let by_tier = self.tiers.iter_mut().map(|(_, limits)| limits);
        let single = self.overrides.0.iter_mut().flat_map(|all| all.values_mut());
        let variants = self.variants.iter_mut().flat_map(|variants| variants.all_mut());
        let all = self.default.iter_mut().chain(by_tier).chain(single).chain(variants);
        all.flat_map(|limits| Arc::get_mut(limits).unwrap_or_default())
    }

    /// The limits by priority, from low to critical, if they depend on it.
    pub(super) fn by_priority(&self) -> Option<&[Arc<[RuleLimit]>; 4]> {
        match self.variants.as_deref()? {
            Variants::ByPriority(limits) => Some(limits),
            Variants::ByRate(_) => None,
        }
    }

    /// The limits by rate, if it adapts.
    pub(super) fn ladder(&self) -> Option<&RateLadder> {
        match self.variants.as_deref()? {
            Variants::ByRate(ladder) => Some(ladder),
            Variants::ByPriority(_) => None,
        }
    }
}

/// Limits for single keys. `None` if there are none, as with most rules.
#[derive(Clone, Debug, Default)]
pub(super) struct Overrides(Option<Box<ByName>>);

type ByName = HashMap<String, Arc<[RuleLimit]>, RandomState>;

impl Overrides {
    /// Whether there was nothing for this key before.
    pub(super) fn insert(&mut self, parts: &[String], limits: Arc<[RuleLimit]>) -> bool {
        let all = self.0.get_or_insert_default();
        all.insert(override_name(parts.iter().map(String::as_str)), limits).is_none()
    }

    /// The [names](override_name) of the keys that have limits of their own.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|all| all.keys()).map(String::as_str)
    }

    /// The limits of the key of this [name](override_name).
    pub(super) fn get(&self, name: &str) -> Option<&Arc<[RuleLimit]>> {
        self.0.as_ref()?.get(name)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// One of a rule's limits.
#[derive(Clone, Debug)]
pub(crate) struct RuleLimit {
    /// The id that state belongs to: the rule's id, and which of its limits this is if it has several.
    pub(crate) id: RuleId,
    pub(super) cost: Cost,
    /// For how long the cost stays open to be settled.
    pub(super) reserve: Option<Micros>,
    pub(crate) limit: Limit,
    /// The source of the actual cost in the response.
    pub(super) settle: Option<Arc<Settle>>,
    /// The share that this process may decide by itself while the store is unavailable, if the rule's policy says that it does.
    pub(super) share: Option<Box<Limit>>,
    /// Whether and how nodes lease it; `None` leaves that to them.
    pub(super) leasing: Option<Leasing>,
    /// Whether and how far nodes decide it by their own copies.
    pub(super) write_behind: Option<WriteBehind>,
    /// The number of parts of which each node charges one. `None` if it is not split, or is such a part.
    pub(super) split: Option<Split>,
    /// The properties that clients may see.
    pub(super) disclosure: Disclosure,
}

impl RuleLimit {
    /// A limit of which each request costs one, for the rule with this id.
    pub(super) fn plain(rule: &str, limit: Limit) -> RuleLimit {
        RuleLimit {
            id: RuleId::new(rule),
            cost: Cost::Fixed(1),
            reserve: None,
            limit,
            settle: None,
            share: None,
            leasing: None,
            write_behind: None,
            split: None,
            disclosure: Disclosure::DEFAULT,
        }
    }

    /// Whether and how nodes lease it, for people. `None` if it never is.
    pub(super) fn leased(&self) -> Option<String> {
        if self.write_behind.is_some() {
            return None;
        }
        let leasing = self.leasing.unwrap_or_default();
        if leasing.is_off() {
            return Some("off".to_owned());
        }
        Terms::under(&self.limit, leasing).filter(|_| self.reserve.is_none())?;
        Some(match leasing {
            Leasing::AUTO => "auto".to_owned(),
            leasing => format!("at most {}%, every {}", leasing.percent(), write_span(leasing.every())),
        })
    }
}

/// The cost of a request.
#[derive(Clone, Debug)]
pub(super) enum Cost {
    Fixed(u64),
    /// A number in the request times a price; `otherwise` if it is missing or no number.
    Said {
        /// Of several, those that are there.
        by: Vec<CostSource>,
        times: u64,
        otherwise: u64,
        /// Whether a body whose length is not said is refused: it goes by the length, and nobody said what it costs
        /// `otherwise`.
        needs_length: bool,
    },
    /// The cost that the protocol states; one if it states none.
    Hits,
    /// By path, the first that matches; this much if none does.
    ByPath {
        paths: Vec<(PathPattern, u64)>,
        otherwise: u64,
    },
}

impl Cost {
    /// The source in the request, for people.
    pub(super) fn said_by(&self) -> Option<String> {
        match self {
            Cost::Said { by, times, .. } => {
                let by = by.iter().map(CostSource::to_string).collect::<Vec<_>>().join(" or ");
                Some(if *times == 1 { by } else { format!("{times} × {by}") })
            }
            Cost::Hits => Some("hits".to_owned()),
            Cost::Fixed(_) | Cost::ByPath { .. } => None,
        }
    }

    /// The fields of the request's body that say it.
    pub(super) fn fields(&self) -> impl Iterator<Item = &FieldPath> {
        let by = match self {
            Cost::Said { by, .. } => by.as_slice(),
            Cost::Fixed(_) | Cost::Hits | Cost::ByPath { .. } => &[],
        };
        by.iter().filter_map(|by| match by {
            CostSource::Body(path) => Some(path),
            CostSource::Fact(_) => None,
        })
    }

    /// The unit that a limit with this cost counts, as far as there is a word for it.
    pub(super) fn unit(&self) -> QuotaUnit {
        match self {
            Cost::Fixed(1) | Cost::Hits => QuotaUnit::Requests,
            Cost::Said { by, times: 1, .. } if by.iter().all(CostSource::is_length) => QuotaUnit::ContentBytes,
            Cost::Fixed(_) | Cost::Said { .. } | Cost::ByPath { .. } => QuotaUnit::Other,
        }
    }
}

/// The source of a request's cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CostSource {
    Fact(FactName),
    /// A field of its JSON body.
    Body(FieldPath),
}

impl CostSource {
    /// Whether it is the length of the request's body.
    pub(super) fn is_length(&self) -> bool {
        matches!(self, CostSource::Fact(FactName::Header(name)) if name == "content-length")
    }

    /// Whether anyone can send what they like there.
    pub(super) const fn is_unverified(&self) -> bool {
        match self {
            CostSource::Fact(fact) => fact.is_unverified(),
            CostSource::Body(_) => true,
        }
    }
}

impl fmt::Display for CostSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CostSource::Fact(fact) => fact.fmt(f),
            CostSource::Body(path) => write!(f, "body:{path}"),
        }
    }
}
