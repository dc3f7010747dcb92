//! The names of facts in rules.

use std::fmt;

use crate::facts::Fact;
use crate::secret_name::is_secret_name;

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
    /// Parses the name of a fact, such as `user` or `header:X-Tenant`.
    pub(super) fn parse(text: &str) -> Option<FactName> {
        let (kind, name) = text.split_once(':').map_or((text, ""), |(kind, name)| (kind, name.trim()));
        let named = |make: fn(String) -> FactName| (!name.is_empty()).then(|| make(name.to_owned()));
        match kind {
            "header" => named(|name| FactName::Header(name.to_ascii_lowercase())),
            "query" => named(FactName::Query),
            "cookie" => named(FactName::Cookie),
            "claim" => named(FactName::Claim),
            "descriptor" => named(FactName::Descriptor),
            _ if !name.is_empty() => None,
            "method" => Some(FactName::Method),
            "host" => Some(FactName::Host),
            "api_key" => Some(FactName::ApiKey),
            "user" => Some(FactName::User),
            "tier" => Some(FactName::Tier),
            _ => None,
        }
    }

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

    /// Whether the value may be sufficient to impersonate a client. In doubt, `true`.
    pub(super) fn is_secret(&self) -> bool {
        match self {
            FactName::ApiKey | FactName::Cookie(_) => true,
            FactName::Header(name) | FactName::Query(name) | FactName::Descriptor(name) => is_secret_name(name),
            FactName::Method | FactName::Host | FactName::User | FactName::Tier | FactName::Claim(_) => false,
        }
    }

    /// Whether it is the host, by either of its names.
    pub(super) fn is_host(&self) -> bool {
        match self {
            FactName::Host => true,
            FactName::Header(name) => name == "host",
            _ => false,
        }
    }

    /// Whether it is one of several facts of its kind, and has a name.
    pub(super) const fn is_named(&self) -> bool {
        match self {
            FactName::Header(_)
            | FactName::Query(_)
            | FactName::Cookie(_)
            | FactName::Claim(_)
            | FactName::Descriptor(_) => true,
            FactName::Method | FactName::Host | FactName::ApiKey | FactName::User | FactName::Tier => false,
        }
    }

    /// Whether clients can choose the value freely.
    pub(super) const fn is_unverified(&self) -> bool {
        matches!(self, FactName::Header(_) | FactName::Query(_) | FactName::Cookie(_))
    }
}

impl fmt::Display for FactName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
