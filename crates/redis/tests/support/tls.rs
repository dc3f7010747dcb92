//! Certificates, and servers that want them.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use super::ports;
use super::server::{Flavour, Server};

/// A certificate and its key, as PEM.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// Somebody who signs certificates.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("a certificate without names");
        params.distinguished_name.push(DnType::CommonName, "somebody who signs");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Authority { issuer: CertifiedIssuer::self_signed(params, key).expect("a certificate of its own") }
    }

    pub(crate) fn certificate(&self) -> String {
        self.issuer.pem()
    }

    pub(crate) fn identity(&self, names: &[&str]) -> Identity {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(names).expect("a certificate with names");
        let certificate = params.signed_by(&key, &self.issuer).expect("a signature");
        Identity { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

/// A server that speaks TLS on one port and, for the test's own use, plainly on another.
pub(crate) struct TlsServer {
    pub(crate) server: Server,
    pub(crate) authority: Authority,
    pub(crate) client: Identity,
    port: u16,
    _certificates: tempfile::TempDir,
}

impl TlsServer {
    /// A server whose clients must show a certificate of the same authority.
    pub(crate) fn start() -> TlsServer {
        TlsServer::start_with("")
    }

    pub(crate) fn start_with(config: &str) -> TlsServer {
        let authority = Authority::new();
        let identity = authority.identity(&["localhost", "127.0.0.1"]);
        let client = authority.identity(&["a client"]);
        let certificates = tempfile::tempdir().expect("a folder for certificates");
        let write = |name: &str, pem: &str| {
            let path = certificates.path().join(name);
            std::fs::write(&path, pem).expect("a certificate on disk");
            path.to_str().expect("a path that is text").to_owned()
        };
        let port = ports::free();
        let config = format!(
            "tls-port {port}\ntls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}\ntls-auth-clients yes\n{config}",
            write("server.pem", &identity.certificate),
            write("server.key", &identity.key),
            write("authority.pem", &authority.certificate()),
        );
        let server = Server::start_as(Flavour::Redis, &config);
        TlsServer { server, authority, client, port, _certificates: certificates }
    }

    pub(crate) fn url(&self) -> String {
        format!("rediss://localhost:{}", self.port)
    }
}
