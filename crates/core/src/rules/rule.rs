//! What a rule says.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::diagnostic::Place;
use super::pattern::Pattern;
use super::route::PathPattern;
use crate::facts::Fact;
use crate::key::RuleId;
use crate::limit::Limit;
use crate::time::Micros;

/// A rule: which requests it governs, whom it charges, and what it allows.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(super) id: Arc<str>,
    pub(super) place: Place,
    pub(super) conditions: Conditions,
    pub(super) key: Vec<KeyPart>,
    pub(super) on_missing_key: OnMissingKey,
    pub(super) limits: Limits,
    pub(super) mode: Mode,
    pub(super) on_store_failure: OnStoreFailure,
    pub(super) priority: Priority,
    pub(super) replaces: Vec<Arc<str>>,
    pub(super) stops: bool,
}

impl Rule {
    /// The rule's id. State belongs to it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Where the rule is written.
    #[must_use]
    pub const fn place(&self) -> &Place {
        &self.place
    }

    /// Whether it denies, only reports, or does nothing.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// What to do when the store cannot decide.
    #[must_use]
    pub const fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// How much the requests that it governs matter when not all can be served.
    #[must_use]
    pub const fn priority(&self) -> Priority {
        self.priority
    }
}

/// Whether a rule denies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It denies.
    #[default]
    Enforce,
    /// It counts and reports what it would have done, and never denies.
    Shadow,
    /// It does nothing.
    Off,
}

/// What to do when the store cannot decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnStoreFailure {
    /// Let requests through; for this long if bounded, and then deny.
    Allow {
        /// How long the store may be away before requests are denied.
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

/// How much a request matters when not all can be served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Served last.
    Low,
    /// As most.
    #[default]
    Normal,
    /// Served before most.
    High,
    /// Served as long as anything is.
    Critical,
}

/// What a request must be for a rule to govern it: all of these.
#[derive(Clone, Debug, Default)]
pub(super) struct Conditions {
    pub(super) path: Option<Paths>,
    pub(super) address: Option<Addresses>,
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

/// The name of a fact.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum FactName {
    Method,
    Host,
    ApiKey,
    User,
    Tier,
    Header(String),
    Query(String),
    Cookie(String),
    Claim(String),
    Descriptor(String),
}

impl FactName {
    pub(super) fn as_fact(&self) -> Fact<'_> {
        match self {
            FactName::Method => Fact::Method,
            FactName::Host => Fact::Host,
            FactName::ApiKey => Fact::ApiKey,
            FactName::User => Fact::User,
            FactName::Tier => Fact::Tier,
            FactName::Header(name) => Fact::Header(name),
            FactName::Query(name) => Fact::Query(name),
            FactName::Cookie(name) => Fact::Cookie(name),
            FactName::Claim(name) => Fact::Claim(name),
            FactName::Descriptor(name) => Fact::Descriptor(name),
        }
    }

    /// Whether whoever sees the value can pass for somebody else.
    pub(super) fn is_secret(&self) -> bool {
        match self {
            FactName::ApiKey | FactName::Cookie(_) => true,
            FactName::Header(name) => {
                ["authorization", "proxy-authorization", "cookie", "x-api-key"].contains(&name.as_str())
            }
            FactName::Method
            | FactName::Host
            | FactName::User
            | FactName::Tier
            | FactName::Query(_)
            | FactName::Claim(_)
            | FactName::Descriptor(_) => false,
        }
    }

    /// Whether anyone can send what they like there.
    pub(super) const fn is_unverified(&self) -> bool {
        matches!(self, FactName::Header(_) | FactName::Query(_) | FactName::Cookie(_))
    }
}

impl std::fmt::Display for FactName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FactName::Method => f.write_str("method"),
            FactName::Host => f.write_str("host"),
            FactName::ApiKey => f.write_str("api_key"),
            FactName::User => f.write_str("user"),
            FactName::Tier => f.write_str("tier"),
            FactName::Header(name) => write!(f, "header:{name}"),
            FactName::Query(name) => write!(f, "query:{name}"),
            FactName::Cookie(name) => write!(f, "cookie:{name}"),
            FactName::Claim(name) => write!(f, "claim:{name}"),
            FactName::Descriptor(name) => write!(f, "descriptor:{name}"),
        }
    }
}

/// A part of the key that a rule charges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyPart {
    Fact(FactName),
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

/// What to do with a request that lacks a part of the key.
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

/// What a rule allows, and to whom.
#[derive(Clone, Debug, Default)]
pub(super) struct Limits {
    /// To those of whom nothing else is said. `None` if only tiers and overrides are limited.
    pub(super) default: Option<Vec<RuleLimit>>,
    /// By tier.
    pub(super) tiers: Vec<(String, Vec<RuleLimit>)>,
    /// By the value of the key.
    pub(super) overrides: std::collections::BTreeMap<String, Vec<RuleLimit>>,
}

/// One of a rule's limits.
#[derive(Clone, Debug)]
pub(super) struct RuleLimit {
    /// What state belongs to: the rule's id, and which of its limits this is if it has several.
    pub(super) id: RuleId,
    pub(super) limit: Limit,
    pub(super) cost: Cost,
    /// For how long the cost stays open to be settled.
    pub(super) reserve: Option<Micros>,
}

/// What a request costs.
#[derive(Clone, Debug)]
pub(super) enum Cost {
    Fixed(u64),
    /// What a fact says; this much if it is missing or no number.
    Said {
        by: FactName,
        otherwise: u64,
    },
    /// What the protocol says; one if it does not.
    Hits,
    /// By path, the first that matches; this much if none does.
    ByPath {
        paths: Vec<(PathPattern, u64)>,
        otherwise: u64,
    },
}
