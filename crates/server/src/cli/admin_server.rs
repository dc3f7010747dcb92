//! A running server, by its admin listener.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HOST};
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::authority::bare_host;
use crate::certificate_authorities::CertificateAuthorities;

const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Timeout for an answer.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// Maximum size of an answer or an event in bytes.
pub(super) const MOST_BYTES: usize = 4 * 1024 * 1024;

/// The source of the token, and the ways to pass it.
pub(super) const TOKEN_HELP: &str = "give it with `--token TOKEN` or in the variable TIDEGATE_ADMIN_TOKEN; it is the server's \
     setting `admin.token`, or the one that it printed when it started";

/// A server, for commands that can do without one.
#[derive(clap::Args)]
#[command(next_help_heading = "A running server")]
pub(super) struct AdminArgs {
    /// URL of a server's admin listener, such as http://127.0.0.1:9600: shows the present rates of rules with `adapt`.
    #[arg(long, value_name = "URL")]
    pub(super) admin: Option<Uri>,

    /// Admin token: `admin.token`, or the one that the server printed at startup.
    #[arg(long, value_name = "TOKEN", env = "TIDEGATE_ADMIN_TOKEN", hide_env_values = true)]
    pub(super) token: Option<String>,

    /// CA certificates for the server, as PEM. Default: the certificate authorities that browsers trust.
    #[arg(long, value_name = "FILE")]
    pub(super) ca: Option<PathBuf>,
}

/// Address, token and TLS settings of a server.
#[derive(Clone)]
pub(super) struct AdminServer {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    authority: HeaderValue,
    authorization: HeaderValue,
}

/// Displays the host and the port.
impl fmt::Display for AdminServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Invalid URL, token or CA certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdminServerError {
    #[error("`{0}` is not the URL of a server: write one such as http://127.0.0.1:9600")]
    Url(Uri),
    #[error("the token contains characters that are not allowed in a header")]
    Token,
    #[error("{0} cannot be used: {1}")]
    Ca(String, String),
}

/// The server gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdminError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Http(#[from] hyper::Error),
    #[error("it timed out")]
    TooSlow(#[from] tokio::time::error::Elapsed),
    #[error("the token is not that of the server: {TOKEN_HELP}")]
    Token,
    #[error("the server answers {0}: is this its admin listener?")]
    Status(StatusCode),
    #[error("the data of the server cannot be read: are both of the same version?")]
    Nonsense,
    #[error("the server closed the connection")]
    Closed,
}

/// The body of an answer. Its connection is closed when it is dropped.
pub(super) struct AdminAnswer {
    pub(super) body: Incoming,
    _connection: JoinSet<Result<(), hyper::Error>>,
}

impl AdminServer {
    pub(super) fn new(url: &Uri, token: &str, ca: Option<&Path>) -> Result<AdminServer, AdminServerError> {
        let bad = || AdminServerError::Url(url.clone());
        let encrypted = match url.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(bad()),
        };
        let authority = url.authority().ok_or_else(bad)?;
        let host = bare_host(authority).to_owned();
        let mut authorization =
            HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| AdminServerError::Token)?;
        authorization.set_sensitive(true);
        let tls = if encrypted {
            let name = ServerName::try_from(host.clone()).map_err(|_| bad())?;
            Some((connector(ca)?, name))
        } else {
            None
        };
        Ok(AdminServer {
            port: authority.port_u16().unwrap_or(if encrypted { 443 } else { 80 }),
            authority: HeaderValue::from_str(authority.as_str()).map_err(|_| bad())?,
            host,
            tls,
            authorization,
        })
    }

    /// Sends a GET request. Succeeds if the answer is 200.
    pub(super) async fn get(&self, path: &'static str, accept: &'static str) -> Result<AdminAnswer, AdminError> {
        let connecting = TcpStream::connect((self.host.as_str(), self.port));
        let stream = timeout(CONNECT_TIME, connecting).await??;
        let request = self.request(path, accept);
        match &self.tls {
            None => send(stream, request).await,
            Some((connector, name)) => {
                send(timeout(CONNECT_TIME, connector.connect(name.clone(), stream)).await??, request).await
            }
        }
    }

    /// The whole answer to a GET request for JSON.
    pub(super) async fn get_json<T: serde::de::DeserializeOwned>(&self, path: &'static str) -> Result<T, AdminError> {
        let answer = self.get(path, "application/json").await?;
        let whole = timeout(ANSWER_TIME, Limited::new(answer.body, MOST_BYTES).collect()).await?;
        let bytes = whole.map_err(|_| AdminError::Nonsense)?.to_bytes();
        serde_json::from_slice(&bytes).map_err(|_| AdminError::Nonsense)
    }

    fn request(&self, path: &'static str, accept: &'static str) -> Request<Empty<Bytes>> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = Uri::from_static(path);
        let headers = request.headers_mut();
        headers.insert(HOST, self.authority.clone());
        headers.insert(AUTHORIZATION, self.authorization.clone());
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        request
    }
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Empty<Bytes>>,
) -> Result<AdminAnswer, AdminError> {
    let (mut sender, connection) = timeout(CONNECT_TIME, handshake(TokioIo::new(stream))).await??;
    let mut running = JoinSet::new();
    running.spawn(connection);
    let response = timeout(ANSWER_TIME, sender.send_request(request)).await??;
    match response.status() {
        StatusCode::OK => Ok(AdminAnswer { body: response.into_body(), _connection: running }),
        StatusCode::UNAUTHORIZED => Err(AdminError::Token),
        status => Err(AdminError::Status(status)),
    }
}

fn connector(ca: Option<&Path>) -> Result<TlsConnector, AdminServerError> {
    let authorities = match ca {
        None => CertificateAuthorities::web(),
        Some(path) => {
            let wrong = |why: String| AdminServerError::Ca(path.display().to_string(), why);
            let pem = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
            CertificateAuthorities::of(&pem).map_err(wrong)?
        }
    };
    Ok(authorities.http1_connector())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_urls_of_servers_are_taken() {
        let target = |url: &str| AdminServer::new(&url.parse().unwrap(), "0123456789abcdef", None);
        assert!(matches!(target("ftp://a"), Err(AdminServerError::Url(_))));
        assert!(matches!(target("/v1"), Err(AdminServerError::Url(_))));
        let six = target("http://[::1]:9600").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((six.host.as_str(), six.port), ("::1", 9_600));
        assert_eq!(target("https://a").unwrap_or_else(|error| panic!("{error}")).port, 443);
    }

    #[test]
    fn a_file_without_certificates_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let refused = AdminServer::new(&"https://a".parse().unwrap(), "0123456789abcdef", Some(file.path()));
        assert!(matches!(refused, Err(AdminServerError::Ca(_, why)) if why == "it contains no certificate"));
    }
}
