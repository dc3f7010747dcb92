//! The entries of a descriptor as facts, for Tidegate's own rules.

use std::net::IpAddr;

use super::Entries;
use crate::facts::syntax::RequestTarget;
use crate::facts::{Fact, Facts, RawRequest, Values, read};

/// The facts of a request in the entries of a descriptor, for Tidegate's own rules.
///
/// The key of an entry is the name of the fact in rules files: `method`, `path`, `host`, `user`, `tier`, `api_key`,
/// `header:X-Tenant`, `query:page`, `cookie:sid`, `claim:sub`. `remote_address` is the client's address, as in Envoy. Every
/// entry is also the fact `descriptor:<key>`. A path may include its query.
///
/// ```
/// use tidegate_rules::envoy::EntryFacts;
/// use tidegate_rules::{Fact, Facts};
///
/// let entries = [("path", "/search?page=2"), ("header:X-Tenant", "acme"), ("remote_address", "203.0.113.7")];
/// let facts = EntryFacts::new(&entries);
/// assert_eq!(facts.get(Fact::Path).as_deref(), Some("/search"));
/// assert_eq!(facts.get(Fact::Query("page")).as_deref(), Some("2"));
/// assert_eq!(facts.get(Fact::Header("x-tenant")).as_deref(), Some("acme"));
/// assert!(facts.address().is_some());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct EntryFacts<'e> {
    entries: Entries<'e>,
    hits: u64,
}

impl<'e> EntryFacts<'e> {
    /// The facts in these entries, of a request with cost 1.
    #[must_use]
    pub const fn new(entries: Entries<'e>) -> EntryFacts<'e> {
        EntryFacts { entries, hits: 1 }
    }

    /// Sets the cost of the request, for rules that read the cost from the request.
    #[must_use]
    pub const fn hits(self, hits: u64) -> EntryFacts<'e> {
        EntryFacts { hits, ..self }
    }

    fn entries(&self, key: &str) -> impl Iterator<Item = &'e str> {
        self.entries.iter().filter(move |(known, _)| *known == key).map(|(_, value)| *value)
    }

    fn entry(&self, key: &str) -> Option<&'e str> {
        self.entries(key).next()
    }

    /// The entries whose key is `kind`, a colon and the name of the fact.
    fn called(&self, kind: &str, fact: Fact<'_>) -> Values<'e> {
        let name = |key: &'e str| key.strip_prefix(kind)?.strip_prefix(':').map(str::trim);
        let found = self.entries.iter().filter(|(key, _)| name(key).is_some_and(|name| fact.is_called(name)));
        found.map(|(_, value)| *value).collect()
    }
}

impl RawRequest for EntryFacts<'_> {
    fn method(&self) -> Option<&str> {
        self.entry("method")
    }

    fn target(&self) -> RequestTarget<'_> {
        self.entry("path").map(RequestTarget::parse).unwrap_or_default()
    }

    fn lines(&self, name: &str) -> Values<'_> {
        self.called("header", Fact::Header(name))
    }

    fn stated(&self, fact: Fact<'_>) -> Values<'_> {
        match fact {
            Fact::Host => self.entries("host").collect(),
            Fact::ApiKey => self.entries("api_key").collect(),
            Fact::User => self.entries("user").collect(),
            Fact::Tier => self.entries("tier").collect(),
            Fact::Query(_) => self.called("query", fact),
            Fact::Cookie(_) => self.called("cookie", fact),
            Fact::Claim(_) => self.called("claim", fact),
            Fact::Descriptor(name) => self.entries(name).collect(),
            Fact::Method | Fact::Path | Fact::Header(_) => Values::None,
        }
    }
}

impl Facts for EntryFacts<'_> {
    fn values(&self, fact: Fact<'_>) -> Values<'_> {
        read(self, fact)
    }

    fn address(&self) -> Option<IpAddr> {
        self.entry("remote_address")?.parse().ok()
    }

    fn hits(&self) -> Option<u64> {
        Some(self.hits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_fact_has_its_entry() {
        let entries = [
            ("method", "POST"),
            ("path", "/a?b=c&d"),
            ("host", "example.com:8443"),
            ("api_key", "k"),
            ("user", "alice"),
            ("tier", "gold"),
            ("header:X-Tenant", "acme"),
            ("query:e", "f"),
            ("cookie:sid", "s"),
            ("claim:sub", "u"),
            ("anything", "else"),
            ("remote_address", "2001:db8::1"),
        ];
        let facts = EntryFacts::new(&entries).hits(3);
        for (fact, value) in [
            (Fact::Method, Some("POST")),
            (Fact::Path, Some("/a")),
            (Fact::Host, Some("example.com")),
            (Fact::ApiKey, Some("k")),
            (Fact::User, Some("alice")),
            (Fact::Tier, Some("gold")),
            (Fact::Header("x-tenant"), Some("acme")),
            (Fact::Header("x-other"), None),
            (Fact::Query("b"), Some("c")),
            (Fact::Query("d"), Some("")),
            (Fact::Query("e"), Some("f")),
            (Fact::Query("g"), None),
            (Fact::Cookie("sid"), Some("s")),
            (Fact::Claim("sub"), Some("u")),
            (Fact::Descriptor("anything"), Some("else")),
            (Fact::Descriptor("user"), Some("alice")),
            (Fact::Descriptor("nothing"), None),
        ] {
            assert_eq!(facts.get(fact).as_deref(), value, "{fact:?}");
        }
        assert_eq!((facts.address(), Facts::hits(&facts)), ("2001:db8::1".parse().ok(), Some(3)));
    }
}
