//! Certificates, and a server that requires them.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use crate::free_port;
use crate::redis::{Flavour, Server};

/// A certificate and its key, in PEM format.
#[derive(Debug)]
pub struct TlsIdentity {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

/// A certificate authority.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// A new authority.
    ///
    /// # Panics
    /// Panics if no random numbers are available for a key.
    #[must_use]
    pub fn generate() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("a certificate without names");
        params.distinguished_name.push(DnType::CommonName, "somebody who signs");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Authority { issuer: CertifiedIssuer::self_signed(params, key).expect("a certificate of its own") }
    }

    /// The authority's own certificate, in PEM format.
    #[must_use]
    pub fn certificate(&self) -> String {
        self.issuer.pem()
    }

    /// A signed certificate for these names.
    ///
    /// # Panics
    /// Panics if a name is invalid.
    #[must_use]
    pub fn identity(&self, names: &[&str]) -> TlsIdentity {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(names).expect("a certificate with names");
        let certificate = params.signed_by(&key, &self.issuer).expect("a signature");
        TlsIdentity { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

/// A server with a TLS port and, for the test itself, a plain one.
pub struct TlsServer {
    /// The server, with its plain port.
    pub server: Server,
    /// The authority that signed the certificates.
    pub authority: Authority,
    /// A client certificate that the server accepts.
    pub client: TlsIdentity,
    port: u16,
    _certificates: tempfile::TempDir,
}

impl TlsServer {
    /// Starts a server whose clients must present a certificate of the same authority.
    pub fn start() -> TlsServer {
        TlsServer::start_with("")
    }

    /// Like [`start`](Self::start), with additional lines in the server's configuration.
    ///
    /// # Panics
    /// Panics if the server does not start.
    pub fn start_with(config: &str) -> TlsServer {
        let authority = Authority::generate();
        let identity = authority.identity(&["localhost", "127.0.0.1"]);
        let client = authority.identity(&["a client"]);
        let certificates = tempfile::tempdir().expect("a folder for certificates");
        let write = |name: &str, pem: &str| {
            let path = certificates.path().join(name);
            std::fs::write(&path, pem).expect("a certificate on disk");
            path.to_str().expect("a path that is text").to_owned()
        };
        let port = free_port();
        let config = format!(
            "tls-port {port}\ntls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}\ntls-auth-clients yes\n{config}",
            write("server.pem", &identity.certificate),
            write("server.key", &identity.key),
            write("authority.pem", &authority.certificate()),
        );
        let server = Server::start_as(Flavour::Redis, &config);
        TlsServer { server, authority, client, port, _certificates: certificates }
    }

    /// `rediss://localhost:port`.
    pub fn url(&self) -> String {
        format!("rediss://localhost:{}", self.port)
    }
}
