//! The identity of a client.
//!
//! The gateway and forward-auth learn the user, the tier and claims of a request from these sources. The first that names a
//! user wins; the tier is that of the first that names one.
//!
//! | | source | believed because |
//! |---|---|---|
//! | 1 | a JSON Web Token (`jwt/`) | its signature is verified here |
//! | 2 | `auth.user_header` and `auth.tier_header` | a trusted proxy sets them |
//! | 3 | the client certificate (`certificate.rs`), gateway only | TLS has verified it |
//! | 4 | the name in `Authorization: Basic` (`basic.rs`), off by default | nobody verifies it |

mod basic;
mod certificate;
pub(crate) mod der;
pub mod jwt;
mod known;

use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use tidegate_core::Timestamp;
use tidegate_http::{Claims, HttpFacts};

pub(crate) use self::basic::basic_user;
pub use self::certificate::CertificateName;
use self::jwt::{Refusal, Verifier};
pub(crate) use self::known::KnownFacts;

/// Whether a request has more than one line of `Authorization`, of which HTTP knows one (RFC 9110, 11.6.2): whichever is looked
/// at here, an upstream may believe another.
pub(crate) fn has_several_credentials(headers: &HeaderMap) -> bool {
    headers.get_all(AUTHORIZATION).iter().nth(1).is_some()
}

/// What is known of a user by a source that can be believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub user: Option<Box<str>>,
    /// The tier.
    pub tier: Option<Box<str>>,
    /// What else the token says.
    pub claims: Claims,
}

impl Identity {
    /// Adds what is known to the facts of a request, and replaces what weaker sources said.
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

/// How a request's token is handled: where it stands, by which keys it is verified, and what becomes of an invalid one.
#[derive(Clone)]
pub struct Tokens(Arc<Verifier>);

impl Tokens {
    /// Verifies tokens by `verifier`.
    #[must_use]
    pub const fn new(verifier: Arc<Verifier>) -> Tokens {
        Tokens(verifier)
    }

    /// Whom the token of a request names; `None` if it has none, or if an invalid one counts as none.
    ///
    /// # Errors
    /// If the request is to be refused.
    #[inline]
    pub(crate) fn identify(&self, headers: &HeaderMap, now: Timestamp) -> Result<Option<Arc<Identity>>, Refusal> {
        self.0.identify(headers, now)
    }
}
