//! JSON Web Tokens: verified by keys from files or from a URL, once, and then known by their hash until they expire.
//!
//! `token.rs` finds the token and reads what a verified one says, `keys.rs` reads keys, `provider.rs` verifies signatures,
//! `cache.rs` remembers; `source.rs` keeps keys current and `fetch.rs` gets them.
//!
//! A key is bound to the algorithms of its kind, and a token chooses among those that are allowed: it can have neither `none` nor
//! an RSA key that is taken for a shared secret.

mod cache;
mod fetch;
mod keys;
mod provider;
mod source;
mod token;

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::HeaderMap;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Validation, decode, decode_header};
use serde_json::{Map, Value};
use tidegate_core::Timestamp;
use tokio::sync::Notify;

use self::cache::{CacheSize, TokenCache, TokenHash};
pub(crate) use self::fetch::{Url, UrlError};
use self::keys::VerificationKey;
use self::source::KeySetOutage;
pub use self::source::{FetchSettings, KeysHealth};
pub(crate) use self::source::{KeyFile, KeyFileError};
use self::token::FoundToken;
pub use self::token::{ClaimNames, TokenLocation};
use super::Identity;

/// Treatment of a request with an invalid token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnInvalid {
    /// It is refused, with 401.
    Refuse,
    /// It is treated as one without a token.
    Anonymous,
}

/// Settings of token verification.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Location of the token in a request.
    pub place: TokenLocation,
    /// Claims that identify the user.
    pub names: ClaimNames,
    /// The algorithms that a token may name.
    pub algorithms: Vec<Algorithm>,
    /// The issuers of which a token must name one; any if empty.
    pub issuers: Vec<String>,
    /// The audiences of which a token must name one; any if empty.
    pub audiences: Vec<String>,
    /// Tolerated clock difference.
    pub leeway: Duration,
    /// Treatment of requests with an invalid token.
    pub on_invalid: OnInvalid,
    /// Whether a request without a token is refused.
    pub is_required: bool,
    /// The longest token, in bytes.
    pub token_bytes: usize,
    /// The most tokens that are remembered.
    pub cache_entries: usize,
    /// The most bytes that they take.
    pub cache_bytes: usize,
    /// Files with keys, as they were read.
    pub(crate) files: Vec<KeyFile>,
    /// A URL that serves keys.
    pub fetch: Option<FetchSettings>,
}

/// Reason for which a request is refused, or a token is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    /// There is none, and one is required.
    #[error("a token is required")]
    Missing,
    /// There is more than one.
    #[error("there is more than one token")]
    Several,
    /// It is longer than may be.
    #[error("the token is too long")]
    TooLong,
    /// It is no token.
    #[error("the token is malformed")]
    Malformed,
    /// Its algorithm is not among those that are allowed, or not one of its key.
    #[error("the token's algorithm is not accepted")]
    Algorithm,
    /// It has a critical header parameter (`crit`) that is not understood.
    #[error("the token has critical parameters that are not understood")]
    Critical,
    /// None of the keys is the one that it names.
    #[error("the token's key is not known")]
    UnknownKey,
    /// There are no keys, so the token cannot be verified.
    #[error("there are no keys to verify tokens with")]
    NoKeys,
    /// The signature is not that of the key.
    #[error("the token's signature is wrong")]
    Signature,
    /// It has expired.
    #[error("the token has expired")]
    Expired,
    /// It has no time of expiry.
    #[error("the token does not say when it expires")]
    NeverExpires,
    /// It is not valid yet, or was issued in the future.
    #[error("the token is not valid yet")]
    NotYet,
    /// Its issuer is not accepted.
    #[error("the token is from another issuer")]
    Issuer,
    /// Its audience is not accepted.
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

    /// Its name in metrics.
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

/// Verifies tokens.
pub struct Verifier {
    settings: Settings,
    validation: Validation,
    ring: ArcSwap<KeyRing>,
    /// Files and fetched keys that make up the ring.
    sources: Mutex<source::Sources>,
    /// Notified when a token names an unknown key.
    unknown_key: Notify,
    counts: VerifierCounters,
    /// While files with keys cannot be used.
    file_outage: KeySetOutage,
    /// While keys cannot be fetched.
    fetch_outage: KeySetOutage,
}

/// Keys in force, with the tokens that they have verified.
struct KeyRing {
    keys: Vec<VerificationKey>,
    cache: TokenCache,
}

#[derive(Default)]
struct VerifierCounters {
    cached: AtomicU64,
    verified: AtomicU64,
    refused: [AtomicU64; TokenRefusal::ALL.len()],
    fetched: AtomicU64,
    fetch_failed: AtomicU64,
}

/// Counts of a verifier.
#[derive(Clone, Debug)]
pub(crate) struct VerifierCounts {
    pub(crate) cached: u64,
    pub(crate) verified: u64,
    pub(crate) refused: Vec<(&'static str, u64)>,
    pub(crate) fetched: u64,
    pub(crate) fetch_failed: u64,
    pub(crate) keys: usize,
    pub(crate) cache: CacheSize,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Maximum number of keys to try for a token without a key id.
const MOST_ATTEMPTS: usize = 16;

impl Verifier {
    /// Verifier with these settings. Uses the keys of files until others are [fetched](Verifier::keep_current).
    #[must_use]
    pub fn new(settings: Settings) -> Verifier {
        provider::install();
        // The algorithm is set for each token, and times are checked by the clock that is passed in.
        let mut validation = Validation::new(Algorithm::default());
        (validation.validate_exp, validation.validate_nbf) = (false, false);
        let mut required = HashSet::new();
        validation.validate_aud = !settings.audiences.is_empty();
        if !settings.audiences.is_empty() {
            validation.set_audience(&settings.audiences);
            required.insert("aud".to_owned());
        }
        if !settings.issuers.is_empty() {
            validation.set_issuer(&settings.issuers);
            required.insert("iss".to_owned());
        }
        validation.required_spec_claims = required;
        let sources = source::Sources::new(settings.files.clone());
        let ring = KeyRing::new(sources.keys(), &settings);
        Verifier {
            validation,
            ring: ArcSwap::from_pointee(ring),
            sources: Mutex::new(sources),
            unknown_key: Notify::new(),
            counts: VerifierCounters::default(),
            file_outage: KeySetOutage::default(),
            fetch_outage: KeySetOutage::default(),
            settings,
        }
    }

    /// Identity from the token of a request; `None` if there is no token, or if an invalid one is ignored.
    ///
    /// # Errors
    /// If the request is to be refused.
    #[inline]
    pub fn identify(&self, headers: &HeaderMap, now: Timestamp) -> Result<Option<Arc<Identity>>, TokenRefusal> {
        let refusal = match self.settings.place.find(headers) {
            FoundToken::None if self.settings.is_required => self.refused(TokenRefusal::Missing),
            FoundToken::None => return Ok(None),
            // Also where invalid tokens count as none: an upstream may serve the user of a valid one among them.
            FoundToken::Several => return Err(self.refused(TokenRefusal::Several)),
            FoundToken::One(token) => match self.verify(&token, now) {
                Ok(identity) => return Ok(Some(identity)),
                Err(refusal) => refusal,
            },
        };
        match self.settings.on_invalid {
            OnInvalid::Refuse => Err(refusal),
            OnInvalid::Anonymous => Ok(None),
        }
    }

    /// Identity from a token.
    ///
    /// # Errors
    /// If it is not valid.
    #[inline]
    pub fn verify(&self, token: &[u8], now: Timestamp) -> Result<Arc<Identity>, TokenRefusal> {
        let (ring, now) = (self.ring.load(), now.as_micros() / 1_000_000);
        if token.len() > self.settings.token_bytes {
            return Err(self.refused(TokenRefusal::TooLong));
        }
        let hash = TokenHash::of(token);
        if let Some(identity) = ring.cache.get(&hash, now) {
            self.counts.cached.fetch_add(1, Ordering::Relaxed);
            return Ok(identity);
        }
        self.verify_anew(&ring, token, hash, now)
    }

    #[cold]
    fn verify_anew(
        &self,
        ring: &KeyRing,
        token: &[u8],
        hash: TokenHash,
        now: u64,
    ) -> Result<Arc<Identity>, TokenRefusal> {
        let claims = self.claims(ring, token).map_err(|refusal| self.refused(refusal))?;
        let ends = self.check_times(&claims, now).map_err(|refusal| self.refused(refusal))?;
        let identity = self.settings.names.identity(&claims).ok_or_else(|| self.refused(TokenRefusal::Malformed))?;
        let identity = Arc::new(identity);
        self.counts.verified.fetch_add(1, Ordering::Relaxed);
        ring.cache.insert(hash, &identity, ends);
        Ok(identity)
    }

    /// Verifies signature, issuer and audience. Returns the claims.
    fn claims(&self, ring: &KeyRing, token: &[u8]) -> Result<Map<String, Value>, TokenRefusal> {
        let header = decode_header(token).map_err(|error| match error.kind() {
            // `none`, and other unknown algorithms.
            ErrorKind::Json(problem) if problem.to_string().contains("unknown variant") => TokenRefusal::Algorithm,
            _ => TokenRefusal::Malformed,
        })?;
        if header.crit.is_some() {
            return Err(TokenRefusal::Critical);
        }
        if !self.settings.algorithms.contains(&header.alg) {
            return Err(TokenRefusal::Algorithm);
        }
        if ring.keys.is_empty() {
            self.unknown_key.notify_one();
            return Err(TokenRefusal::NoKeys);
        }
        let mut validation = self.validation.clone();
        validation.algorithms = vec![header.alg];
        let keys = ring.keys.iter().filter(|key| key.is_for(header.alg, header.kid.as_deref()));
        let mut refusal = TokenRefusal::UnknownKey;
        for key in keys.take(MOST_ATTEMPTS) {
            let error = match decode::<Map<String, Value>>(token, key.decoding_key(), &validation) {
                Ok(token) => return Ok(token.claims),
                Err(error) => error,
            };
            refusal = match error.kind() {
                // Another key may be the one.
                ErrorKind::InvalidSignature => TokenRefusal::Signature,
                ErrorKind::InvalidIssuer => return Err(TokenRefusal::Issuer),
                ErrorKind::InvalidAudience => return Err(TokenRefusal::Audience),
                ErrorKind::MissingRequiredClaim(claim) if claim == "iss" => return Err(TokenRefusal::Issuer),
                ErrorKind::MissingRequiredClaim(_) => return Err(TokenRefusal::Audience),
                ErrorKind::InvalidAlgorithm => return Err(TokenRefusal::Algorithm),
                _ => return Err(TokenRefusal::Malformed),
            };
        }
        // Keys without a name were tried, and the one that the token names may be new.
        let is_known = header.kid.as_deref().is_some_and(|id| ring.keys.iter().any(|key| key.is_called(id)));
        if refusal == TokenRefusal::UnknownKey || (header.kid.is_some() && !is_known) {
            self.unknown_key.notify_one();
        }
        Err(refusal)
    }

    /// Checks that a token is valid at the second `now`. Returns the end of its validity.
    fn check_times(&self, claims: &Map<String, Value>, now: u64) -> Result<u64, TokenRefusal> {
        let leeway = self.settings.leeway.as_secs();
        let ends = match claims.get("exp") {
            None | Some(Value::Null) => return Err(TokenRefusal::NeverExpires),
            Some(value) => seconds(value).ok_or(TokenRefusal::Malformed)?.saturating_add(leeway),
        };
        if now >= ends {
            return Err(TokenRefusal::Expired);
        }
        for name in ["nbf", "iat"] {
            match claims.get(name) {
                None | Some(Value::Null) => {}
                Some(value) => {
                    if seconds(value).ok_or(TokenRefusal::Malformed)? > now.saturating_add(leeway) {
                        return Err(TokenRefusal::NotYet);
                    }
                }
            }
        }
        Ok(ends)
    }

    fn refused(&self, refusal: TokenRefusal) -> TokenRefusal {
        self.counts.refused[refusal as usize].fetch_add(1, Ordering::Relaxed);
        refusal
    }

    /// Uses these keys from now on. Tokens that others have verified are verified again.
    fn put_in_force(&self, sources: &source::Sources) {
        self.ring.store(Arc::new(KeyRing::new(sources.keys(), &self.settings)));
    }

    fn sources(&self) -> std::sync::MutexGuard<'_, source::Sources> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called now and then: forgets tokens that have expired.
    pub fn sweep(&self, now: Timestamp) {
        self.ring.load().cache.sweep(now.as_micros() / 1_000_000);
    }

    pub(crate) fn counted(&self) -> VerifierCounts {
        let (counts, ring) = (&self.counts, self.ring.load());
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        VerifierCounts {
            cached: get(&counts.cached),
            verified: get(&counts.verified),
            refused: TokenRefusal::ALL
                .iter()
                .map(|refusal| (refusal.name(), get(&counts.refused[*refusal as usize])))
                .collect(),
            fetched: get(&counts.fetched),
            fetch_failed: get(&counts.fetch_failed),
            keys: ring.keys.len(),
            cache: ring.cache.size(),
        }
    }
}

impl KeyRing {
    fn new(keys: Vec<VerificationKey>, settings: &Settings) -> KeyRing {
        KeyRing { keys, cache: TokenCache::new(settings.cache_entries, settings.cache_bytes) }
    }
}

/// Seconds since 1970, without their fraction. A token before that, or one that is not a number, makes no sense.
fn seconds(value: &Value) -> Option<u64> {
    if let Some(whole) = value.as_u64() {
        return Some(whole);
    }
    let number = value.as_f64().filter(|number| (0.0..1e15).contains(number))?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is within these bounds")]
    Some(number as u64)
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
