//! Rules.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::cost::{Cost, CostSource};
use super::fact_name::FactName;
use super::pattern::Pattern;
use super::regions::RegionChoice;
use super::route::PathPattern;
use super::rule_limits::Limits;
use crate::facts::Fact;
use crate::yaml::Place;
use tidegate_core::notation::write_span;
use tidegate_core::{Micros, Priority};

/// A rule: the requests that it governs, its key and its limits.
// What every request looks at comes first and close together: between two requests a gateway does so much else that nothing of
// it is left in the nearest cache, and each line of it is fetched again.
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

    /// The priority of its requests when not all can be served. `None` if the rule sets none.
    #[must_use]
    pub const fn priority(&self) -> Option<Priority> {
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
