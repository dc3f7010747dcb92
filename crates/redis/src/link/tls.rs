//! TLS: certificate authorities and the client's certificate.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::settings_error::SettingsError;

/// Certificates, in PEM format.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// The accepted certificate authorities. `None` for the public ones, as in browsers.
    pub authorities: Option<Vec<u8>>,
    /// The client's certificate and its private key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("authorities", &self.authorities.is_some())
            .field("identity", &self.identity.is_some())
            .finish()
    }
}

impl Tls {
    pub(super) fn client_config(&self) -> Result<ClientConfig, SettingsError> {
        let wrong = |what| move |error: String| SettingsError::Certificate { what, reason: error };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong("choice of TLS versions")(error.to_string()))?
            .with_root_certificates(self.roots()?);
        let Some((certificate, key)) = &self.identity else { return Ok(builder.with_no_client_auth()) };
        let chain = certificates(certificate).map_err(wrong("client's certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| wrong("client's key")(error.to_string()))?;
        builder.with_client_auth_cert(chain, key).map_err(|error| wrong("client's certificate")(error.to_string()))
    }

    fn roots(&self) -> Result<RootCertStore, SettingsError> {
        let mut roots = RootCertStore::empty();
        let Some(authorities) = &self.authorities else {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
            return Ok(roots);
        };
        let wrong = |reason| SettingsError::Certificate { what: "authorities' certificate", reason };
        for certificate in certificates(authorities).map_err(wrong)? {
            roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
        }
        Ok(roots)
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(certificates) if certificates.is_empty() => Err("it contains none".to_owned()),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_than_certificates_are_refused() {
        let refused = |tls: Tls| tls.client_config().unwrap_err().to_string();
        let error = refused(Tls { authorities: Some(b"no".to_vec()), identity: None });
        assert_eq!(error, "the authorities' certificate cannot be used: it contains none");
        let error = refused(Tls { authorities: None, identity: Some((b"no".to_vec(), b"no".to_vec())) });
        assert_eq!(error, "the client's certificate cannot be used: it contains none");
    }

    #[test]
    fn a_key_is_never_shown() {
        let tls = Tls { authorities: None, identity: Some((b"certificate".to_vec(), b"key".to_vec())) };
        assert_eq!(format!("{tls:?}"), "Tls { authorities: false, identity: true }");
    }
}
