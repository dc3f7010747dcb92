//! `--jwt`: verification of a token, and its report.

use std::io::{self, Write};
use std::sync::Arc;

use serde::Serialize;
use tidegate_core::{Clock, SystemClock};
use tidegate_rules::Request;

use crate::cli::{ERROR, FAINT, GOOD, plain};
use crate::identity::Identity;
use crate::identity::jwt::{self, TokenRefusal, Verifier};
use crate::serve;

/// Result of verifying a token.
pub(super) enum TokenVerdict {
    Valid(Arc<Identity>),
    Invalid(String),
    /// No keys are available to verify it.
    Unverified(String),
}

impl TokenVerdict {
    /// The response of a server that refuses invalid tokens; `None` if the token is valid.
    pub(super) const fn response(&self) -> Option<&'static str> {
        match self {
            TokenVerdict::Valid(_) => None,
            TokenVerdict::Invalid(_) => Some("401 and evaluates no rule"),
            TokenVerdict::Unverified(_) => Some("503 and evaluates no rule, for as long as it has no keys"),
        }
    }
}

/// Verifies a token as a server with these settings would. Fetches keys if necessary.
pub(super) fn verify(settings: jwt::Settings, token: &str) -> io::Result<TokenVerdict> {
    let verifier = Verifier::new(settings);
    // Keys from files are tried even if fetching fails, as on the server.
    let fetched = serve::runtime()?.block_on(verifier.fetch_once());
    let with_cause = |refusal: TokenRefusal| match &fetched {
        Err(reason) => format!("{refusal}, as keys cannot be fetched: {reason}"),
        Ok(()) => refusal.to_string(),
    };
    Ok(match verifier.verify(token.trim().as_bytes(), SystemClock::new().now()) {
        Ok(identity) => TokenVerdict::Valid(identity),
        Err(refusal @ TokenRefusal::NoKeys) => TokenVerdict::Unverified(with_cause(refusal)),
        Err(refusal @ TokenRefusal::UnknownKey) => TokenVerdict::Invalid(with_cause(refusal)),
        Err(refusal) => TokenVerdict::Invalid(refusal.to_string()),
    })
}

pub(super) fn identified(mut request: Request, identity: &Identity) -> Request {
    if let Some(user) = &identity.user {
        request = request.user(user);
    }
    if let Some(tier) = &identity.tier {
        request = request.tier(tier);
    }
    identity.claims.iter().fold(request, |request, (name, value)| request.claim(name, value))
}

pub(super) fn print_token(out: &mut impl Write, verified: &TokenVerdict) -> io::Result<()> {
    match verified {
        TokenVerdict::Invalid(reason) => {
            writeln!(out, "{FAINT}token    {FAINT:#}{ERROR}invalid{ERROR:#}: {}\n", plain(reason))
        }
        TokenVerdict::Unverified(reason) => {
            writeln!(out, "{FAINT}token    {FAINT:#}{ERROR}not verified{ERROR:#}: {}\n", plain(reason))
        }
        TokenVerdict::Valid(identity) => {
            writeln!(out, "{FAINT}token    {FAINT:#}{GOOD}valid{GOOD:#}")?;
            let line = |out: &mut dyn Write, name: &str, value: &str| {
                writeln!(out, "{FAINT}{name:<9}{FAINT:#}{}", plain(value))
            };
            line(out, "user", identity.user.as_deref().unwrap_or("none"))?;
            line(out, "tier", identity.tier.as_deref().unwrap_or("none"))?;
            for (name, value) in &identity.claims {
                line(out, "claim", &format!("{name} = {value}"))?;
            }
            writeln!(out)
        }
    }
}

#[derive(Serialize)]
pub(super) struct TokenReport<'t> {
    valid: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'t str>,
    user: Option<&'t str>,
    tier: Option<&'t str>,
    claims: Vec<(&'t str, &'t str)>,
}

impl TokenReport<'_> {
    pub(super) fn of(verified: &TokenVerdict) -> TokenReport<'_> {
        match verified {
            TokenVerdict::Invalid(reason) | TokenVerdict::Unverified(reason) => {
                TokenReport { valid: false, reason: Some(reason), user: None, tier: None, claims: Vec::new() }
            }
            TokenVerdict::Valid(identity) => TokenReport {
                valid: true,
                reason: None,
                user: identity.user.as_deref(),
                tier: identity.tier.as_deref(),
                claims: identity.claims.iter().map(|(name, value)| (&**name, &**value)).collect(),
            },
        }
    }
}
