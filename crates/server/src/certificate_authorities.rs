//! Certificate authorities trusted to sign certificates of servers.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

/// Certificate authorities that are trusted to sign certificates of servers.
#[derive(Clone)]
pub struct CertificateAuthorities(Arc<ClientConfig>);

impl CertificateAuthorities {
    /// The authorities that browsers trust.
    #[must_use]
    pub fn web() -> CertificateAuthorities {
        let mut roots = RootCertStore::empty();
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        CertificateAuthorities::in_roots(roots)
    }

    /// The authorities with these certificates, as PEM.
    ///
    /// # Errors
    /// If there is no certificate, or one is invalid.
    pub fn of(pem: &[u8]) -> Result<CertificateAuthorities, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| error.to_string())?;
            roots.add(certificate).map_err(|error| error.to_string())?;
        }
        if roots.is_empty() {
            return Err("it contains no certificate".to_owned());
        }
        Ok(CertificateAuthorities::in_roots(roots))
    }

    /// Connects to servers that may speak HTTP/2.
    pub(crate) fn connector(&self) -> TlsConnector {
        TlsConnector::from(Arc::clone(&self.0))
    }

    /// Connects to servers that speak HTTP/1.1.
    pub(crate) fn http1_connector(&self) -> TlsConnector {
        let mut config = ClientConfig::clone(&self.0);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        TlsConnector::from(Arc::new(config))
    }

    fn in_roots(roots: RootCertStore) -> CertificateAuthorities {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = match builder.with_safe_default_protocol_versions() {
            Ok(builder) => builder,
            Err(error) => unreachable!("ring speaks the default versions of TLS: {error}"),
        };
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        CertificateAuthorities(Arc::new(config))
    }
}

impl fmt::Debug for CertificateAuthorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateAuthorities").finish_non_exhaustive()
    }
}
