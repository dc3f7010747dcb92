//! Identity of a client.
//!
//! The gateway and forward-auth take the user, the tier and claims of a request from these sources. The first source
//! with a user determines the user, and the first with a tier determines the tier.
//!
//! | | source | trusted because |
//! |---|---|---|
//! | 1 | a JSON Web Token (`jwt/`) | its signature is verified here |
//! | 2 | `auth.user_header` and `auth.tier_header` | a trusted proxy sets them |
//! | 3 | the client certificate (`certificate.rs`), gateway only | TLS has verified it |
//! | 4 | the name in `Authorization: Basic` (`basic.rs`), off by default | not verified here |

mod basic;
mod certificate;
pub(crate) mod der;
pub mod jwt;

use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use tidegate_core::Timestamp;
use tidegate_http::{Claims, HttpFacts};

pub(crate) use self::basic::basic_user;
pub use self::certificate::CertificateName;
use self::jwt::{TokenRefusal, Verifier};

/// Whether a request has several `Authorization` lines. HTTP allows only one (RFC 9110, section 11.6.2), and an
/// upstream may use another one than is used here.
pub(crate) fn has_several_credentials(headers: &HeaderMap) -> bool {
    headers.get_all(AUTHORIZATION).iter().nth(1).is_some()
}

/// Identity of a user, from a trusted source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub user: Option<Box<str>>,
    /// The tier.
    pub tier: Option<Box<str>>,
    /// Further claims of the token.
    pub claims: Claims,
}

impl Identity {
    /// Adds the identity to the facts of a request, and replaces values from weaker sources.
    pub(crate) fn identify<'a>(&'a self, mut facts: HttpFacts<'a>) -> HttpFacts<'a> {
        if let Some(user) = &self.user {
            facts = facts.user(&**user);
        }
        if let Some(tier) = &self.tier {
            facts = facts.tier(&**tier);
        }
        facts.claims(&self.claims)
    }
}

/// Token verification of requests, shared by listeners.
#[derive(Clone)]
pub struct TokenIdentity(Arc<Verifier>);

impl TokenIdentity {
    /// Verifies tokens with `verifier`.
    #[must_use]
    pub const fn new(verifier: Arc<Verifier>) -> TokenIdentity {
        TokenIdentity(verifier)
    }

    /// Identity from the token of a request; `None` if there is no token, or if an invalid one is ignored.
    ///
    /// # Errors
    /// If the request must be refused.
    #[inline]
    pub(crate) fn identify(&self, headers: &HeaderMap, now: Timestamp) -> Result<Option<Arc<Identity>>, TokenRefusal> {
        self.0.identify(headers, now)
    }
}
