//! The settings of the rate-limit service.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_http::HeaderStyle;
use tidegate_rules::DomainTerms;

use crate::cross_site::AllowedHosts;

/// The settings of the rate-limit service.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The domain whose descriptors are held against our own rules, with entries as facts; `None` if there is none.
    /// Should one of Envoy's files have a domain of that name, the file counts.
    pub own_domain: Option<String>,
    /// The terms of domains that [`Settings::domains`] does not name.
    pub terms: DomainTerms,
    /// The terms of single domains.
    pub domains: BTreeMap<String, DomainTerms>,
    /// The headers that Envoy is to add to responses.
    pub headers: HeaderStyle,
    /// The condition for dynamic metadata in answers.
    pub metadata: MetadataStyle,
    /// The most descriptors in one request.
    pub most_descriptors: usize,
    /// The most bytes of one message, or of one body.
    pub most_bytes: usize,
    /// The most bytes of one request's headers.
    pub most_header_bytes: u32,
    /// The most requests in flight on one connection.
    pub most_in_flight: u32,
    /// The time for a request to come, from its first byte to its last, and for a connection to show its version of HTTP.
    pub arrival: Duration,
    /// The hosts that requests in JSON may be for. gRPC no web page can speak.
    pub hosts: AllowedHosts,
    /// The time of silence after which a client is sent a PING.
    pub silence: Duration,
    /// An HTTP/2 connection on which no request has come for so long is told to end. What is still in flight then has as long
    /// again.
    pub idle: Duration,
    /// The greatest age of an HTTP/2 connection, give or take a tenth; `None` for no bound.
    pub age: Option<Duration>,
    /// The time for requests in flight to end once a connection has that age.
    pub age_grace: Duration,
    /// Whether health reports that the listener serves only while the store answers.
    pub store_required: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            own_domain: Some("tidegate".to_owned()),
            terms: DomainTerms::default(),
            domains: BTreeMap::new(),
            // Envoy can add `X-RateLimit` headers by itself, from what each answer says of every descriptor.
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
    /// The terms of a domain.
    pub(super) fn terms(&self, domain: &str) -> &DomainTerms {
        if self.domains.is_empty() { &self.terms } else { self.domains.get(domain).unwrap_or(&self.terms) }
    }

    /// Whether the domain is the one that our own rules are asked through.
    pub(super) fn is_own(&self, domain: &str) -> bool {
        self.own_domain.as_deref() == Some(domain)
    }
}

/// The condition for dynamic metadata in answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MetadataStyle {
    /// Never.
    Never,
    /// If a descriptor has `metadata`, or is in quota mode.
    #[default]
    WhereNeeded,
    /// Always, as envoyproxy/ratelimit with `RESPONSE_DYNAMIC_METADATA`.
    Always,
}
