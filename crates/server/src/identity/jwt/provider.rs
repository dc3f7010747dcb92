//! Verifies signatures of tokens with `ring`, which the server already uses for TLS.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::hmac;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512,
    RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};

static RING: CryptoProvider = CryptoProvider {
    signer_factory: no_signer,
    verifier_factory: verifier,
    // Key generation and thumbprints are not used here.
    key_utils: KeyUtils::new_unimplemented(),
};

/// Installs `ring` as this process's verifier of signatures. Must be called before the first verification.
pub(super) fn install() {
    // Fails if it is installed already, which is fine.
    let _ = RING.install_default();
}

fn no_signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    Err(ErrorKind::UnsupportedAlgorithm.into())
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if algorithm.family() != key.family() {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    Ok(Box::new(RingVerifier { algorithm: *algorithm, key: key.clone() }))
}

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), signature::Error> {
        let verified = match self.algorithm {
            Algorithm::HS256 => self.hmac(hmac::HMAC_SHA256, message, signature),
            Algorithm::HS384 => self.hmac(hmac::HMAC_SHA384, message, signature),
            Algorithm::HS512 => self.hmac(hmac::HMAC_SHA512, message, signature),
            Algorithm::RS256 => self.rsa(&RSA_PKCS1_2048_8192_SHA256, message, signature),
            Algorithm::RS384 => self.rsa(&RSA_PKCS1_2048_8192_SHA384, message, signature),
            Algorithm::RS512 => self.rsa(&RSA_PKCS1_2048_8192_SHA512, message, signature),
            Algorithm::PS256 => self.rsa(&RSA_PSS_2048_8192_SHA256, message, signature),
            Algorithm::PS384 => self.rsa(&RSA_PSS_2048_8192_SHA384, message, signature),
            Algorithm::PS512 => self.rsa(&RSA_PSS_2048_8192_SHA512, message, signature),
            Algorithm::ES256 => self.point(&ECDSA_P256_SHA256_FIXED, message, signature),
            Algorithm::ES384 => self.point(&ECDSA_P384_SHA384_FIXED, message, signature),
            Algorithm::EdDSA => self.point(&ED25519, message, signature),
            _ => None,
        };
        verified.ok_or_else(signature::Error::new)
    }
}

impl RingVerifier {
    fn hmac(&self, algorithm: hmac::Algorithm, message: &[u8], signature: &[u8]) -> Option<()> {
        let DecodingKeyKind::SecretOrDer(secret) = self.key.kind() else { return None };
        hmac::verify(&hmac::Key::new(algorithm, secret), message, signature).ok()
    }

    fn rsa(&self, parameters: &'static RsaParameters, message: &[u8], signature: &[u8]) -> Option<()> {
        match self.key.kind() {
            DecodingKeyKind::SecretOrDer(der) => {
                UnparsedPublicKey::new(parameters, der).verify(message, signature).ok()
            }
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature).ok()
            }
        }
    }

    fn point(&self, algorithm: &'static dyn VerificationAlgorithm, message: &[u8], signature: &[u8]) -> Option<()> {
        let DecodingKeyKind::SecretOrDer(point) = self.key.kind() else { return None };
        UnparsedPublicKey::new(algorithm, point).verify(message, signature).ok()
    }
}
