//! Settings of the rate-limit service.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_http::HeaderStyle;
use tidegate_rules::DomainTerms;

use crate::cross_site::AllowedHosts;

/// Settings of the rate-limit service.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Domain whose descriptors are evaluated by Tidegate's own rules, with entries as facts; `None` for no such
    /// domain. An Envoy file with a domain of the same name takes precedence.
    pub own_domain: Option<String>,
    /// Terms of domains that [`Settings::domains`] does not name.
    pub terms: DomainTerms,
    /// Terms of single domains.
    pub domains: BTreeMap<String, DomainTerms>,
    /// Headers that Envoy adds to responses.
    pub headers: HeaderStyle,
    /// When responses contain dynamic metadata.
    pub metadata: MetadataStyle,
    /// Maximum number of descriptors in a request.
    pub most_descriptors: usize,
    /// Maximum size of a message or a body.
    pub most_bytes: usize,
    /// Maximum size of a request's headers.
    pub most_header_bytes: u32,
    /// Maximum number of requests in flight on a connection.
    pub most_in_flight: u32,
    /// Timeout for receiving a request, and for detecting the HTTP version of a connection.
    pub arrival: Duration,
    /// Accepted host names of JSON requests. Not checked for gRPC, which web pages cannot send.
    pub hosts: AllowedHosts,
    /// Idle time after which a PING is sent.
    pub silence: Duration,
    /// Time without requests after which an HTTP/2 connection is closed gracefully. Requests then in flight have the
    /// same time again to end.
    pub idle: Duration,
    /// Maximum age of an HTTP/2 connection, within 10 %; `None` for no maximum.
    pub age: Option<Duration>,
    /// Time that requests in flight have to end once a connection has reached its maximum age.
    pub age_grace: Duration,
    /// Whether health reports the listener as serving only while the store is available.
    pub store_required: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            own_domain: Some("tidegate".to_owned()),
            terms: DomainTerms::default(),
            domains: BTreeMap::new(),
            // Envoy can add `X-RateLimit` headers itself, from the status of each descriptor.
            headers: HeaderStyle { on_allowed: false, x_ratelimit: None, ..HeaderStyle::default() },
            metadata: MetadataStyle::default(),
            most_descriptors: 128,
            most_bytes: 256 * 1024,
            most_header_bytes: 16 * 1024,
            most_in_flight: 1024,
            arrival: Duration::from_secs(10),
            silence: Duration::from_secs(30),
            idle: Duration::from_secs(60 * 60),
            age: None,
            age_grace: Duration::from_secs(10),
            store_required: false,
            hosts: AllowedHosts::any(),
        }
    }
}

impl Settings {
    /// Terms of a domain.
    pub(super) fn terms(&self, domain: &str) -> &DomainTerms {
        if self.domains.is_empty() { &self.terms } else { self.domains.get(domain).unwrap_or(&self.terms) }
    }

    /// Whether the domain is evaluated by Tidegate's own rules.
    pub(super) fn is_own(&self, domain: &str) -> bool {
        self.own_domain.as_deref() == Some(domain)
    }
}

/// When responses contain dynamic metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MetadataStyle {
    /// Never.
    Never,
    /// If a descriptor has `metadata`, or is in quota mode.
    #[default]
    WhereNeeded,
    /// Always, like envoyproxy/ratelimit with `RESPONSE_DYNAMIC_METADATA`.
    Always,
}
