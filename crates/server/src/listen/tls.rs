//! TLS certificates of a listener, and authorities for client certificates.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::certificate_expiry::not_after;

/// Certificate files, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain, beginning with the server's certificate.
    pub certificate: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
    /// Authorities for client certificates, which clients must then present; `None` if they need none.
    pub client_authorities: Option<PathBuf>,
}

/// Unusable certificates.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("`{}` cannot be read: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: io::Error,
    },
    /// A file has invalid contents.
    #[error("`{}` cannot be used: {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
}

impl TlsError {
    /// The affected file.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            TlsError::Unreadable { path, .. } | TlsError::Unusable { path, .. } => path,
        }
    }
}

/// Certificates in use, which can be replaced while connections are open.
pub struct ListenerTls {
    files: TlsFiles,
    protocols: &'static [&'static [u8]],
    config: ArcSwap<ServerConfig>,
    /// Expiry of the certificate, in seconds since the Unix epoch; 0 if unknown.
    expiry: AtomicU64,
    last: Mutex<LastRead>,
}

/// Result of the last time that the files were read.
struct LastRead {
    contents: FileContents,
    /// Reason if the files could not be read.
    unreadable: Option<String>,
}

/// Result of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reloaded {
    /// The contents are unchanged.
    Unchanged,
    /// The files are readable again, with unchanged contents.
    ReadableAgain,
    /// New certificates are in use.
    Replaced,
}

type FileContents = [Vec<u8>; 3];

const PLAIN_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 50\r\n\
Connection: close\r\n\r\nThis port speaks HTTPS only: write https:// here.\n";

impl fmt::Debug for ListenerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerTls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl ListenerTls {
    /// Reads the files. `protocols` are offered to clients by ALPN.
    ///
    /// # Errors
    /// If the files cannot be read or used.
    pub fn load(files: TlsFiles, protocols: &'static [&'static [u8]]) -> Result<ListenerTls, TlsError> {
        let contents = read(&files)?;
        let config = ArcSwap::new(Arc::new(config(&files, &contents, protocols)?));
        let expiry = AtomicU64::new(expiry_of(&contents));
        let last = Mutex::new(LastRead { contents, unreadable: None });
        Ok(ListenerTls { files, protocols, config, expiry, last })
    }

    /// Reads the files again, and uses changed contents for new connections.
    ///
    /// # Errors
    /// If the files cannot be read or used. The previous certificates stay in use then. The same error is returned
    /// once, until the error or the contents change.
    pub fn reload(&self) -> Result<Reloaded, TlsError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let contents = match read(&self.files) {
            Ok(contents) => contents,
            Err(error) => {
                let reason = Some(error.to_string());
                let is_known = last.unreadable == reason;
                last.unreadable = reason;
                return if is_known { Ok(Reloaded::Unchanged) } else { Err(error) };
            }
        };
        let was_unreadable = last.unreadable.take().is_some();
        if contents == last.contents {
            return Ok(if was_unreadable { Reloaded::ReadableAgain } else { Reloaded::Unchanged });
        }
        let config = config(&self.files, &contents, self.protocols);
        let expiry = expiry_of(&contents);
        // Recorded even if invalid, so that the error is logged once.
        last.contents = contents;
        self.config.store(Arc::new(config?));
        self.expiry.store(expiry, Ordering::Relaxed);
        Ok(Reloaded::Replaced)
    }

    /// Expiry of the certificate, in seconds since the Unix epoch.
    #[must_use]
    pub fn expiry(&self) -> Option<u64> {
        Some(self.expiry.load(Ordering::Relaxed)).filter(|expiry| *expiry > 0)
    }

    /// Performs the handshake. A client that sends HTTP without TLS gets a response that points this out.
    pub(super) async fn accept(&self, mut stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let mut first = [0];
        stream.peek(&mut first).await?;
        // A handshake starts with the byte 22, and an HTTP request with its method.
        if !self.protocols.is_empty() && first[0].is_ascii_uppercase() {
            stream.write_all(PLAIN_HTTP).await?;
            stream.shutdown().await?;
            // Closing with unread input would reset the connection, and discard the response.
            let _ = stream.read(&mut [0; 16_384]).await?;
            return Err(io::Error::new(io::ErrorKind::InvalidData, "HTTP without TLS"));
        }
        TlsAcceptor::from(self.config.load_full()).accept(stream).await
    }
}

/// Expiry of the first certificate in a file; 0 if unknown.
fn expiry_of([certificate, ..]: &FileContents) -> u64 {
    let first = CertificateDer::pem_slice_iter(certificate).next();
    first.and_then(Result::ok).and_then(|certificate| not_after(&certificate)).unwrap_or(0)
}

fn read(files: &TlsFiles) -> Result<FileContents, TlsError> {
    let read =
        |path: &Path| std::fs::read(path).map_err(|reason| TlsError::Unreadable { path: path.to_owned(), reason });
    let authorities = files.client_authorities.as_deref().map(read).transpose()?;
    Ok([read(&files.certificate)?, read(&files.key)?, authorities.unwrap_or_default()])
}

fn config(
    files: &TlsFiles,
    [certificate, key, authorities]: &FileContents,
    protocols: &[&[u8]],
) -> Result<ServerConfig, TlsError> {
    let wrong = |path: &Path, reason: String| TlsError::Unusable { path: path.to_owned(), reason };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&files.certificate, error.to_string()))?;
    let builder = match &files.client_authorities {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(authorities).map_err(|reason| wrong(path, reason))? {
                roots.add(certificate).map_err(|error| wrong(path, error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| wrong(path, error.to_string()))?)
        }
    };
    let chain = certificates(certificate).map_err(|reason| wrong(&files.certificate, reason))?;
    let private = PrivateKeyDer::from_pem_slice(key).map_err(|error| wrong(&files.key, no_key(&error.to_string())))?;
    let config = builder.with_single_cert(chain, private);
    let mut config = config.map_err(|error| wrong(&files.key, error.to_string()))?;
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(config)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(certificates) if certificates.is_empty() => Err("it contains no certificate".to_owned()),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(error.to_string()),
    }
}

fn no_key(reason: &str) -> String {
    format!("it contains no private key ({reason})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_missing_is_told_of_once() {
        let folder = tempfile::TempDir::new().unwrap();
        let (certificate, key) = (folder.path().join("server.pem"), folder.path().join("key.pem"));
        let write = |name: &str| {
            let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
            std::fs::write(&certificate, made.cert.pem()).unwrap();
            std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        };
        write("a.example");
        let files = TlsFiles { certificate: certificate.clone(), key: key.clone(), client_authorities: None };
        let tls = ListenerTls::load(files, &[]).unwrap();
        assert_eq!(tls.reload().unwrap(), Reloaded::Unchanged);
        let kept = std::fs::read(&certificate).unwrap();
        std::fs::remove_file(&certificate).unwrap();
        assert!(matches!(tls.reload(), Err(TlsError::Unreadable { .. })));
        assert_eq!(tls.reload().unwrap(), Reloaded::Unchanged, "it was told");
        // Another error is reported.
        std::fs::write(&certificate, &kept).unwrap();
        std::fs::remove_file(&key).unwrap();
        assert!(matches!(tls.reload(), Err(TlsError::Unreadable { path, .. }) if path == key));
        assert_eq!(tls.reload().unwrap(), Reloaded::Unchanged);
        write("b.example");
        assert_eq!((tls.reload().unwrap(), tls.reload().unwrap()), (Reloaded::Replaced, Reloaded::Unchanged));
        let kept = std::fs::read(&key).unwrap();
        std::fs::remove_file(&key).unwrap();
        assert!(tls.reload().is_err());
        std::fs::write(&key, kept).unwrap();
        assert_eq!((tls.reload().unwrap(), tls.reload().unwrap()), (Reloaded::ReadableAgain, Reloaded::Unchanged));
        std::fs::write(&key, "no key").unwrap();
        assert!(tls.reload().is_err());
        assert_eq!(tls.reload().unwrap(), Reloaded::Unchanged);
    }
}
