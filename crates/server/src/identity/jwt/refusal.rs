//! Refusals of tokens.

/// Reason for which a request is refused, or a token is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    /// The request has no token, and one is required.
    #[error("a token is required")]
    Missing,
    /// The request has several tokens.
    #[error("there is more than one token")]
    Several,
    /// The token is too long.
    #[error("the token is too long")]
    TooLong,
    /// The token is malformed.
    #[error("the token is malformed")]
    Malformed,
    /// The algorithm is not allowed, or does not match the key.
    #[error("the token's algorithm is not accepted")]
    Algorithm,
    /// The token has a critical header parameter (`crit`) that is not supported.
    #[error("the token has critical parameters that are not understood")]
    Critical,
    /// No key has the id that the token names.
    #[error("the token's key is not known")]
    UnknownKey,
    /// There are no keys, so the token cannot be verified.
    #[error("there are no keys to verify tokens with")]
    NoKeys,
    /// The signature does not match the key.
    #[error("the token's signature is wrong")]
    Signature,
    /// The token has expired.
    #[error("the token has expired")]
    Expired,
    /// It has no time of expiry.
    #[error("the token has no expiry (`exp`)")]
    NeverExpires,
    /// The token is not valid yet, or was issued in the future.
    #[error("the token is not valid yet")]
    NotYet,
    /// The issuer is not accepted.
    #[error("the token is from another issuer")]
    Issuer,
    /// The audience is not accepted.
    #[error("the token is for another audience")]
    Audience,
}

impl TokenRefusal {
    /// All of them.
    pub const ALL: [TokenRefusal; 14] = [
        TokenRefusal::Missing,
        TokenRefusal::Several,
        TokenRefusal::TooLong,
        TokenRefusal::Malformed,
        TokenRefusal::Algorithm,
        TokenRefusal::Critical,
        TokenRefusal::UnknownKey,
        TokenRefusal::NoKeys,
        TokenRefusal::Signature,
        TokenRefusal::Expired,
        TokenRefusal::NeverExpires,
        TokenRefusal::NotYet,
        TokenRefusal::Issuer,
        TokenRefusal::Audience,
    ];

    /// Name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            TokenRefusal::Missing => "missing",
            TokenRefusal::Several => "several",
            TokenRefusal::TooLong => "too_long",
            TokenRefusal::Malformed => "malformed",
            TokenRefusal::Algorithm => "algorithm",
            TokenRefusal::Critical => "critical",
            TokenRefusal::UnknownKey => "unknown_key",
            TokenRefusal::NoKeys => "no_keys",
            TokenRefusal::Signature => "signature",
            TokenRefusal::Expired => "expired",
            TokenRefusal::NeverExpires => "never_expires",
            TokenRefusal::NotYet => "not_yet",
            TokenRefusal::Issuer => "issuer",
            TokenRefusal::Audience => "audience",
        }
    }

    /// Value of `WWW-Authenticate` (RFC 6750); `None` if the client is not at fault.
    #[must_use]
    pub const fn challenge(self) -> Option<&'static str> {
        Some(match self {
            TokenRefusal::NoKeys => return None,
            TokenRefusal::Missing => "Bearer",
            TokenRefusal::Several => {
                r#"Bearer error="invalid_request", error_description="there is more than one token""#
            }
            TokenRefusal::Expired => r#"Bearer error="invalid_token", error_description="the token has expired""#,
            TokenRefusal::NotYet => r#"Bearer error="invalid_token", error_description="the token is not valid yet""#,
            _ => r#"Bearer error="invalid_token""#,
        })
    }

    /// Text of the response body. It does not reveal accepted keys, issuers or algorithms.
    #[must_use]
    pub const fn detail(self) -> &'static str {
        match self {
            TokenRefusal::Missing => "The request needs a token: `Authorization: Bearer TOKEN`.",
            TokenRefusal::Several => "The request has more than one token: send one.",
            TokenRefusal::Expired => "The token has expired: get a new one.",
            TokenRefusal::NotYet => "The token is not valid yet.",
            TokenRefusal::NoKeys => "Tokens cannot be verified at present: try again.",
            _ => "The token is not valid.",
        }
    }
}
