//! Identifies the client of a request, from its connection's address and certificate, headers of trusted proxies, and
//! credentials.

use std::net::IpAddr;
use std::sync::Arc;

use http::Request;
use http::request::Parts;
use tidegate_core::{Clock, SystemClock};
use tidegate_http::{HttpFacts, TrustedProxies};
use tidegate_tower::{ApiKeyHeader, Identify};

use super::Settings;
use super::downstream::Downstream;
use super::failure::Failure;
use crate::api::AuthHeaders;
use crate::identity::{CertificateName, Identity, TokenIdentity, basic_user};
use crate::listen::Stream;

/// Trusted sources of identity.
pub(super) struct IdentitySources {
    proxies: TrustedProxies,
    /// Headers in which trusted proxies identify a client.
    headers: AuthHeaders,
    api_key: Option<ApiKeyHeader>,
    is_basic: bool,
    client_certificate: Option<CertificateName>,
}

impl IdentitySources {
    pub(super) fn of(settings: &Settings) -> IdentitySources {
        IdentitySources {
            proxies: settings.proxies.clone(),
            headers: settings.auth_headers.clone(),
            api_key: settings.api_key_header.clone().map(ApiKeyHeader),
            is_basic: settings.basic,
            client_certificate: settings.client_certificate,
        }
    }

    /// Trusted proxies.
    pub(super) const fn proxies(&self) -> &TrustedProxies {
        &self.proxies
    }

    /// Whether this is the address of a trusted proxy.
    pub(super) fn trusts(&self, address: IpAddr) -> bool {
        self.proxies.trusts(address)
    }

    /// Whether users are taken from basic authentication.
    pub(super) const fn is_basic(&self) -> bool {
        self.is_basic
    }

    /// The user named in the connection's certificate.
    pub(super) fn certificate_user(&self, stream: &Stream) -> Option<CertificateUser> {
        let user = self.client_certificate?.user(stream.client_certificate()?)?;
        Some(CertificateUser(user.into()))
    }
}

/// The user named in the connection's certificate, stored in the request's extensions.
#[derive(Clone)]
pub(super) struct CertificateUser(Arc<str>);

/// Verifies the tokens of requests.
pub(super) struct TokenVerifier {
    tokens: TokenIdentity,
    clock: SystemClock,
}

impl TokenVerifier {
    pub(super) fn new(tokens: TokenIdentity) -> TokenVerifier {
        TokenVerifier { tokens, clock: SystemClock::new() }
    }

    /// Verifies a request's token and stores its identity in the request's extensions, or returns why the request is
    /// refused.
    pub(super) fn verify<B>(&self, request: &mut Request<B>) -> Result<(), Failure> {
        let identity = self.tokens.identify(request.headers(), self.clock.now());
        if let Some(identity) = identity.map_err(Failure::Token)? {
            request.extensions_mut().insert(identity);
        }
        Ok(())
    }
}

/// Identifies the requests of one connection.
pub(super) struct ProxyIdentity {
    downstream: Arc<Downstream>,
}

impl ProxyIdentity {
    pub(super) fn new(downstream: &Arc<Downstream>) -> ProxyIdentity {
        ProxyIdentity { downstream: Arc::clone(downstream) }
    }
}

impl Identify for ProxyIdentity {
    fn identify<'a>(&self, head: &'a Parts, facts: HttpFacts<'a>) -> HttpFacts<'a> {
        let (downstream, sources) = (&self.downstream, &self.downstream.settings.sources);
        let mut facts = facts.address(if downstream.is_trusted {
            sources.proxies.client(downstream.address, &head.headers)
        } else {
            downstream.address
        });
        if let Some(api_key) = &sources.api_key {
            facts = api_key.identify(head, facts);
        }
        // Later sources take precedence over earlier ones.
        if sources.is_basic
            && let Some(user) = basic_user(&head.headers)
        {
            facts = facts.user(user);
        }
        if let Some(user) = head.extensions.get::<CertificateUser>() {
            facts = facts.user(&*user.0);
        }
        if downstream.is_trusted {
            facts = sources.headers.identify(&head.headers, facts);
        }
        match head.extensions.get::<Arc<Identity>>() {
            Some(identity) => identity.identify(facts),
            None => facts,
        }
    }
}
