//! Keys that verify tokens, and their file formats.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::identity::der::{BIT_STRING, Der, INTEGER, OBJECT_IDENTIFIER, SEQUENCE};

/// Type of a key. It determines the algorithms, so that no token can pass off an RSA public key as a shared secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyKind {
    Rsa,
    P256,
    P384,
    Ed25519,
    Secret,
}

impl KeyKind {
    const fn verifies(self, algorithm: Algorithm) -> bool {
        match self {
            KeyKind::Rsa => matches!(
                algorithm,
                Algorithm::RS256
                    | Algorithm::RS384
                    | Algorithm::RS512
                    | Algorithm::PS256
                    | Algorithm::PS384
                    | Algorithm::PS512
            ),
            KeyKind::P256 => matches!(algorithm, Algorithm::ES256),
            KeyKind::P384 => matches!(algorithm, Algorithm::ES384),
            KeyKind::Ed25519 => matches!(algorithm, Algorithm::EdDSA),
            KeyKind::Secret => matches!(algorithm, Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512),
        }
    }
}

/// A key that verifies tokens.
#[derive(Clone)]
pub(crate) struct VerificationKey {
    id: Option<String>,
    kind: KeyKind,
    /// The only allowed algorithm, if the key set names one.
    only: Option<Algorithm>,
    key: DecodingKey,
}

impl fmt::Debug for VerificationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerificationKey").field("id", &self.id).field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// Error in keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeyError {
    #[error("it is not a JSON Web Key Set: {0}")]
    NotJson(String),
    #[error("it contains no keys")]
    Empty,
    #[error("none of its keys can be used: {0}")]
    NoneUsable(String),
    #[error("it contains no public key (PEM, `BEGIN PUBLIC KEY`)")]
    NoPem,
    #[error("its public key is not RSA of 2048 bits or more, P-256, P-384 or Ed25519")]
    OtherPem,
    #[error("the secret has {0} bytes; the minimum is {SECRET_BYTES}")]
    ShortSecret(usize),
}

/// Minimum length of a secret for HS256 (RFC 7518, section 3.2).
const SECRET_BYTES: usize = 32;
/// Minimum length of an RSA modulus: 2048 bits.
const RSA_BYTES: usize = 256;

/// Length of an RSA key's modulus, without leading zeros.
fn modulus_bytes(key: &[u8]) -> Option<usize> {
    let modulus = Der::new(key).inside(SEQUENCE)?.value(INTEGER)?;
    Some(modulus.len() - modulus.iter().take_while(|byte| **byte == 0).count())
}

impl KeyError {
    /// Whether the text is a valid key set without usable keys.
    pub(super) const fn is_without_keys(&self) -> bool {
        matches!(self, KeyError::Empty | KeyError::NoneUsable(_))
    }
}

impl VerificationKey {
    /// Whether the key may verify a token that names this algorithm and this key id.
    pub(super) fn is_for(&self, algorithm: Algorithm, id: Option<&str>) -> bool {
        let is_named = match (id, &self.id) {
            (Some(wanted), Some(id)) => wanted == id,
            _ => true,
        };
        is_named && self.kind.verifies(algorithm) && self.only.is_none_or(|only| only == algorithm)
    }

    pub(super) fn is_called(&self, id: &str) -> bool {
        self.id.as_deref() == Some(id)
    }

    pub(super) const fn decoding_key(&self) -> &DecodingKey {
        &self.key
    }

    /// A shared secret, without a trailing line break.
    pub(crate) fn secret(text: &[u8]) -> Result<VerificationKey, KeyError> {
        let secret = text.strip_suffix(b"\n").unwrap_or(text);
        let secret = secret.strip_suffix(b"\r").unwrap_or(secret);
        if secret.len() < SECRET_BYTES {
            return Err(KeyError::ShortSecret(secret.len()));
        }
        Ok(VerificationKey { id: None, kind: KeyKind::Secret, only: None, key: DecodingKey::from_secret(secret) })
    }

    /// All public keys of a PEM file.
    pub(crate) fn from_pem(pem: &[u8]) -> Result<Vec<VerificationKey>, KeyError> {
        let found: Result<Vec<_>, _> = SubjectPublicKeyInfoDer::pem_slice_iter(pem).collect();
        let found = found.map_err(|_| KeyError::NoPem)?;
        if found.is_empty() {
            return Err(KeyError::NoPem);
        }
        found.iter().map(|info| VerificationKey::of_public_key_info(info).ok_or(KeyError::OtherPem)).collect()
    }

    /// Parses a `SubjectPublicKeyInfo`.
    fn of_public_key_info(info: &[u8]) -> Option<VerificationKey> {
        const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
        const ELLIPTIC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
        const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
        const P384: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x22];
        const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
        let mut outer = Der::new(info).inside(SEQUENCE)?;
        let mut algorithm = outer.inside(SEQUENCE)?;
        let identifier = algorithm.value(OBJECT_IDENTIFIER)?;
        let [0, key @ ..] = outer.value(BIT_STRING)? else { return None };
        let (kind, key) = match identifier {
            RSA if modulus_bytes(key)? >= RSA_BYTES => (KeyKind::Rsa, DecodingKey::from_rsa_der(key)),
            ELLIPTIC => match algorithm.value(OBJECT_IDENTIFIER)? {
                P256 => (KeyKind::P256, DecodingKey::from_ec_der(key)),
                P384 => (KeyKind::P384, DecodingKey::from_ec_der(key)),
                _ => return None,
            },
            ED25519 => (KeyKind::Ed25519, DecodingKey::from_ed_der(key)),
            _ => return None,
        };
        Some(VerificationKey { id: None, kind, only: None, key })
    }

    /// The keys of a JSON Web Key Set (RFC 7517) that can verify tokens. Other keys (for encryption, of an unknown
    /// kind, too short) are skipped. Shared secrets are accepted only from files: a secret in a fetched set is public.
    pub(crate) fn from_jwks(text: &[u8], are_secrets_allowed: bool) -> Result<Vec<VerificationKey>, KeyError> {
        #[derive(Deserialize)]
        struct KeySet<'s> {
            #[serde(borrow)]
            keys: Vec<&'s RawValue>,
        }
        let set: KeySet<'_> = serde_json::from_slice(text).map_err(|error| KeyError::NotJson(error.to_string()))?;
        if set.keys.is_empty() {
            return Err(KeyError::Empty);
        }
        let (mut keys, mut problems) = (Vec::new(), Vec::new());
        for text in set.keys {
            match serde_json::from_str::<Jwk>(text.get()) {
                Ok(jwk) => match VerificationKey::from_jwk(&jwk, are_secrets_allowed) {
                    Ok(key) => keys.push(key),
                    Err(problem) => problems.push(problem),
                },
                Err(_) => problems.push("a key that is malformed"),
            }
        }
        if keys.is_empty() {
            problems.dedup();
            return Err(KeyError::NoneUsable(problems.join(", ")));
        }
        Ok(keys)
    }

    fn from_jwk(jwk: &Jwk, are_secrets_allowed: bool) -> Result<VerificationKey, &'static str> {
        let common = &jwk.common;
        if common.public_key_use.as_ref().is_some_and(|usage| *usage != PublicKeyUse::Signature) {
            return Err("a key for encryption");
        }
        if common.key_operations.as_ref().is_some_and(|operations| !operations.contains(&KeyOperations::Verify)) {
            return Err("a key that is not for verifying");
        }
        let decoded = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|_| "a key that is not Base64 (URL-safe)");
        let (kind, key) = match &jwk.algorithm {
            AlgorithmParameters::RSA(rsa) => {
                let (n, e) = (decoded(&rsa.n)?, decoded(&rsa.e)?);
                let (n, e) = (without_zeros(&n), without_zeros(&e));
                if n.len() < RSA_BYTES {
                    return Err("an RSA key of fewer than 2048 bits");
                }
                (KeyKind::Rsa, DecodingKey::from_rsa_raw_components(n, e))
            }
            AlgorithmParameters::EllipticCurve(point) => {
                let (kind, bytes) = match point.curve {
                    EllipticCurve::P256 => (KeyKind::P256, 32),
                    EllipticCurve::P384 => (KeyKind::P384, 48),
                    _ => return Err("a key on another curve than P-256 and P-384"),
                };
                if decoded(&point.x)?.len() != bytes || decoded(&point.y)?.len() != bytes {
                    return Err("a point whose size does not match its curve");
                }
                let key =
                    DecodingKey::from_ec_components(&point.x, &point.y).map_err(|_| "a point that is malformed")?;
                (kind, key)
            }
            AlgorithmParameters::OctetKeyPair(pair) if pair.curve == EllipticCurve::Ed25519 => {
                (KeyKind::Ed25519, DecodingKey::from_ed_der(&decoded(&pair.x)?))
            }
            AlgorithmParameters::OctetKey(secret) if are_secrets_allowed => {
                let secret = decoded(&secret.value)?;
                if secret.len() < SECRET_BYTES {
                    return Err("a secret of fewer than 32 bytes");
                }
                (KeyKind::Secret, DecodingKey::from_secret(&secret))
            }
            AlgorithmParameters::OctetKey(_) => return Err("a shared secret in a public key set"),
            _ => return Err("a key of another kind"),
        };
        let only = match common.key_algorithm {
            Some(algorithm) => Some(Algorithm::try_from(algorithm).map_err(|_| "a key for another algorithm")?),
            None => None,
        };
        if only.is_some_and(|only| !kind.verifies(only)) {
            return Err("a key whose `alg` does not match its type");
        }
        Ok(VerificationKey { id: common.key_id.clone(), kind, only, key })
    }
}

/// Removes leading zeros, as `ring` requires.
fn without_zeros(number: &[u8]) -> &[u8] {
    &number[number.iter().take_while(|byte| **byte == 0).count()..]
}
