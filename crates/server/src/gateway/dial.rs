//! Connecting to an upstream.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::address::{Address, Scheme};
use super::upstream_io::UpstreamIo;
use crate::keepalive;

/// The authorities for the certificates of upstreams.
#[derive(Clone)]
pub struct Trust(Arc<ClientConfig>);

impl Trust {
    /// Those that browsers trust.
    #[must_use]
    pub fn web() -> Trust {
        let mut roots = RootCertStore::empty();
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        Trust::in_roots(roots)
    }

    /// Those with these certificates, as PEM.
    ///
    /// # Errors
    /// If there is none among them, or one makes no sense.
    pub fn of(pem: &[u8]) -> Result<Trust, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| error.to_string())?;
            roots.add(certificate).map_err(|error| error.to_string())?;
        }
        if roots.is_empty() {
            return Err("there is no certificate in it".to_owned());
        }
        Ok(Trust::in_roots(roots))
    }

    /// Connects as these say, to a server that is to speak HTTP/1.1.
    pub(crate) fn http1_connector(&self) -> TlsConnector {
        let mut config = ClientConfig::clone(&self.0);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        TlsConnector::from(Arc::new(config))
    }

    fn in_roots(roots: RootCertStore) -> Trust {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = match builder.with_safe_default_protocol_versions() {
            Ok(builder) => builder,
            Err(error) => unreachable!("ring speaks the default versions of TLS: {error}"),
        };
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Trust(Arc::new(config))
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").finish_non_exhaustive()
    }
}

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// A new connection, and its protocol.
pub(super) async fn dial(address: &Address, trust: &Trust, keepalive: Duration) -> io::Result<(UpstreamIo, Protocol)> {
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    // Requests are written whole: there is nothing to wait for.
    let _ = stream.set_nodelay(true);
    keepalive::set(&stream, keepalive);
    match (address.scheme, &address.server_name) {
        (Scheme::Https, Some(name)) => {
            let stream = TlsConnector::from(Arc::clone(&trust.0)).connect(name.clone(), stream).await?;
            let protocol = match stream.get_ref().1.alpn_protocol() {
                Some(b"h2") => Protocol::Http2,
                _ => Protocol::Http1,
            };
            Ok((UpstreamIo::Tls(Box::new(stream)), protocol))
        }
        (Scheme::H2c, _) => Ok((UpstreamIo::Plain(stream), Protocol::Http2)),
        (Scheme::Http | Scheme::Https, _) => Ok((UpstreamIo::Plain(stream), Protocol::Http1)),
    }
}
