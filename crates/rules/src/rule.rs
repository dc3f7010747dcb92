//! Rules.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::adaptive_rate::AdaptiveRate;
use super::cost::{Cost, CostSource};
use super::fact_name::FactName;
use super::pattern::Pattern;
use super::regions::RegionChoice;
use super::route::PathPattern;
use super::rule_limits::Limits;
use crate::facts::Fact;
use crate::yaml::Place;
use tidegate_core::Micros;
use tidegate_core::notation::write_span;
use tidegate_core::priority::Priority;

/// A rule: the requests that it governs, its key and its limits.
// The fields that every request reads are first and adjacent: between two requests, a gateway replaces the contents of the
// first-level cache, so each of their cache lines is fetched again.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Rule {
    pub(super) stops: bool,
    pub(super) on_missing_key: OnMissingKey,
    pub(super) on_repeated_key: OnRepeatedKey,
    pub(super) priority: Option<Priority>,
    pub(super) mode: Mode,
    pub(super) limits: Limits,
    pub(super) conditions: Conditions,
    pub(super) key: SmallVec<[KeyPart; 1]>,
    pub(super) store_deadline: Option<Micros>,
    pub(super) replaces: Vec<Arc<str>>,
    pub(super) id: Arc<str>,
    pub(super) place: Place,
    pub(super) on_store_failure: OnStoreFailure,
    pub(super) regions: RegionChoice,
}

impl Rule {
    /// The rule's id. State belongs to it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The id, as a shared reference.
    pub(crate) const fn shared_id(&self) -> &Arc<str> {
        &self.id
    }

    /// The facts in its key, besides the client's address and parts of the path.
    pub fn key_facts(&self) -> impl Iterator<Item = Fact<'_>> {
        self.key.iter().filter_map(|part| match part {
            KeyPart::Fact(fact) | KeyPart::Secret(fact) => Some(fact.as_fact()),
            KeyPart::Address { .. } | KeyPart::Segment(_) | KeyPart::Route => None,
        })
    }

    /// The facts in its conditions, besides the path and the client's address.
    pub fn condition_facts(&self) -> impl Iterator<Item = Fact<'_>> {
        self.conditions.values.iter().map(|(fact, _)| fact.as_fact())
    }

    /// The facts from which its costs are read.
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

    /// Returns `true` if it has limits by tier.
    #[must_use]
    pub fn has_tiers(&self) -> bool {
        !self.limits.tiers.is_empty()
    }

    /// Returns `true` if it uses the client's address.
    #[must_use]
    pub fn needs_address(&self) -> bool {
        self.conditions.address.is_some() || self.key.iter().any(|part| matches!(part, KeyPart::Address { .. }))
    }

    /// The treatment of a request that lacks a part of the key.
    #[must_use]
    pub const fn on_missing_key(&self) -> OnMissingKey {
        self.on_missing_key
    }

    /// The place of the rule in its file.
    #[must_use]
    pub const fn place(&self) -> &Place {
        &self.place
    }

    /// The mode in the file. [`RuleSet::mode_of`](super::RuleSet::mode_of) returns the mode in force.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The policy for requests that the store cannot decide.
    #[must_use]
    pub const fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// The time that a request can wait for the store; `None` for the store's default.
    #[must_use]
    pub const fn store_deadline(&self) -> Option<Micros> {
        self.store_deadline
    }

    /// The priority of its requests when not all requests can be served. `None` if the rule sets none.
    #[must_use]
    pub const fn priority(&self) -> Option<Priority> {
        self.priority
    }

    /// The rule's adaptive rate, if it has one.
    #[must_use]
    pub fn adaptive_rate(&self) -> Option<&Arc<AdaptiveRate>> {
        self.limits.ladder().map(|ladder| &ladder.rate)
    }
}

/// The action of a rule on a request that is over its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// It denies.
    #[default]
    Enforce,
    /// It counts and reports what it would have done, but never denies.
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

/// The policy for requests that the store cannot decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnStoreFailure {
    /// Let requests pass. If a time is given, deny once it has passed.
    Allow {
        /// The time for which requests pass while the store is unavailable.
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

/// The conditions for a rule to govern a request, all of which must hold.
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
    /// A fact with a secret value.
    Secret(FactName),
    /// The client's address, or the network of this size that contains it.
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
    /// The default: one IPv4 address, or the IPv6 network of one customer.
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

/// The treatment of a request that lacks a part of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnMissingKey {
    /// Charge one key that all such requests share, so that omitting a value does not avoid a limit.
    #[default]
    Share,
    /// Do not apply the rule.
    Skip,
    /// Refuse the request.
    Refuse,
}

/// The treatment of a request with several values for a part of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnRepeatedKey {
    /// Refuse the request, because an upstream may use another value than the one that is charged.
    #[default]
    Refuse,
    /// Make one key of all values, in order.
    Join,
}

/// Why a rule cannot charge a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyFault {
    /// The request lacks a part of its key.
    Missing,
    /// The request has several values for a part of its key.
    Repeated,
    /// The cost is the length of the request's body, which is not stated.
    Unmeasured,
}

impl KeyFault {
    /// The name of the fault, which is the same in every protocol.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            KeyFault::Missing => "missing_key",
            KeyFault::Repeated => "repeated_key",
            KeyFault::Unmeasured => "length_required",
        }
    }
}
