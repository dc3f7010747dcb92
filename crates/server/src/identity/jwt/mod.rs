//! JSON Web Tokens, verified with keys from files or from a URL. Verified tokens are cached by hash until they expire.
//!
//! `token.rs` finds the token and reads the claims of a verified one, `keys.rs` reads keys, `provider.rs` verifies
//! signatures, `cache.rs` stores identities, `source.rs` keeps keys up to date, and `fetch.rs` fetches them.
//!
//! A key is bound to the algorithms of its kind, and tokens may only name allowed algorithms. So a token can neither
//! use `none` nor pass off an RSA public key as a shared secret.

mod cache;
mod fetch;
mod keys;
mod provider;
mod refusal;
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
pub use self::refusal::TokenRefusal;
use self::source::KeySetOutage;
pub use self::source::{FetchSettings, KeysHealth};
pub(crate) use self::source::{KeyFile, KeyFileError};
use self::token::FoundToken;
pub use self::token::{ClaimNames, TokenLocation};
use super::Identity;

/// Treatment of a request with an invalid token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnInvalid {
    /// The request is refused with 401.
    Refuse,
    /// The request is treated as one without a token.
    Anonymous,
}

/// Settings of token verification.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Location of the token in a request.
    pub place: TokenLocation,
    /// Claims that identify the user.
    pub names: ClaimNames,
    /// Algorithms that a token may name.
    pub algorithms: Vec<Algorithm>,
    /// Accepted issuers; any if empty.
    pub issuers: Vec<String>,
    /// Accepted audiences; any if empty.
    pub audiences: Vec<String>,
    /// Tolerated clock difference.
    pub leeway: Duration,
    /// Treatment of requests with an invalid token.
    pub on_invalid: OnInvalid,
    /// Whether a request without a token is refused.
    pub is_required: bool,
    /// Maximum length of a token, in bytes.
    pub token_bytes: usize,
    /// Maximum number of cached tokens.
    pub cache_entries: usize,
    /// Maximum size of the cache, in bytes.
    pub cache_bytes: usize,
    /// Key files, with their contents.
    pub(crate) files: Vec<KeyFile>,
    /// URL to fetch keys from.
    pub fetch: Option<FetchSettings>,
}

/// Verifies tokens.
pub struct Verifier {
    settings: Settings,
    validation: Validation,
    ring: ArcSwap<KeyRing>,
    /// Files and fetched keys that the ring is built from.
    sources: Mutex<source::Sources>,
    /// Notified when a token names an unknown key.
    unknown_key: Notify,
    counts: VerifierCounters,
    /// Outage of the key files, while they are unusable.
    file_outage: KeySetOutage,
    /// Outage of fetching, while keys cannot be fetched.
    fetch_outage: KeySetOutage,
}

/// Keys in force, with the cache of tokens that they have verified.
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

/// Counters of a verifier.
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
    /// Verifier with these settings. Uses the keys from files until others are [fetched](Verifier::keep_current).
    #[must_use]
    pub fn new(settings: Settings) -> Verifier {
        provider::install();
        // The algorithm is set for each token. Times are checked separately, against the clock that is passed in.
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
    /// If the request must be refused.
    #[inline]
    pub fn identify(&self, headers: &HeaderMap, now: Timestamp) -> Result<Option<Arc<Identity>>, TokenRefusal> {
        let refusal = match self.settings.place.find(headers) {
            FoundToken::None if self.settings.is_required => self.refused(TokenRefusal::Missing),
            FoundToken::None => return Ok(None),
            // Refused even if invalid tokens are ignored, because an upstream may use a valid one among them.
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
    /// If the token is not valid.
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
            // `none`, and other unsupported algorithms.
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
                // The library takes a list of issuers if one of them is wanted.
                Ok(token) if !matches!(token.claims.get("iss"), None | Some(Value::String(_))) => {
                    return Err(TokenRefusal::Issuer);
                }
                Ok(token) => return Ok(token.claims),
                Err(error) => error,
            };
            refusal = match error.kind() {
                // Another key may match.
                ErrorKind::InvalidSignature => TokenRefusal::Signature,
                ErrorKind::InvalidIssuer => return Err(TokenRefusal::Issuer),
                ErrorKind::InvalidAudience => return Err(TokenRefusal::Audience),
                ErrorKind::MissingRequiredClaim(claim) if claim == "iss" => return Err(TokenRefusal::Issuer),
                ErrorKind::MissingRequiredClaim(_) => return Err(TokenRefusal::Audience),
                ErrorKind::InvalidAlgorithm => return Err(TokenRefusal::Algorithm),
                _ => return Err(TokenRefusal::Malformed),
            };
        }
        // The named key may be new, even if keys without an id were tried.
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

    /// Puts these keys in force. Tokens verified with the previous keys are verified again.
    fn put_in_force(&self, sources: &source::Sources) {
        self.ring.store(Arc::new(KeyRing::new(sources.keys(), &self.settings)));
    }

    fn sources(&self) -> std::sync::MutexGuard<'_, source::Sources> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes expired tokens from the cache. Call it periodically.
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

/// Seconds since the Unix epoch, without fractions. `None` for earlier times, and for values other than numbers.
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
