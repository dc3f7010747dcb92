//! Fetches a key set over HTTP.

use std::fmt;
use std::future::Future;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HOST, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::keys::KeyError;
use crate::authority::bare_host;
use crate::certificate_authorities::CertificateAuthorities;
use crate::whole_body::{BodyError, WholeBody};

/// URL of a key set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    host: String,
    port: u16,
    authority: HeaderValue,
    path: PathAndQuery,
    /// Required name in the certificate; `None` without TLS.
    server_name: Option<ServerName<'static>>,
}

/// Invalid URL of a key set: the problem, and a suggestion.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub(crate) struct UrlError {
    pub(crate) problem: String,
    pub(crate) help: &'static str,
}

/// Error of a fetch.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("the server cannot be reached: {0}")]
    Unreachable(std::io::Error),
    #[error("the connection failed: {0}")]
    Broken(hyper::Error),
    #[error("the server answered {0}")]
    Status(StatusCode),
    #[error("the key set did not arrive: {0}")]
    Body(BodyError),
    #[error("the server did not answer in time")]
    TooSlow,
    #[error("the key set cannot be used: {0}")]
    Unusable(KeyError),
}

/// Timeout of the body reader. The caller bounds the whole fetch.
const BODY_TIMEOUT: Duration = Duration::from_secs(3_600);

impl Url {
    /// Whether an attacker on the network path could replace the keys.
    pub(crate) fn is_forgeable(&self) -> bool {
        let is_loopback = self.host == "localhost"
            || self.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        self.server_name.is_none() && !is_loopback
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.server_name.is_some() { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority.to_str().unwrap_or_default(), self.path)
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Url, UrlError> {
        const HELP: &str = "write one such as `https://login.example.com/.well-known/jwks.json`";
        let wrong = |problem: &str| UrlError { problem: format!("`{text}` {problem}"), help: HELP };
        let uri: Uri = text.parse().map_err(|_| wrong("is not a URL"))?;
        let port = match uri.scheme_str() {
            Some("https") => 443,
            Some("http") => 80,
            _ => return Err(wrong("begins with neither `https://` nor `http://`")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("has no host"))?;
        if authority.as_str().contains('@') {
            let problem = "there is a user name in the URL".to_owned();
            return Err(UrlError { problem, help: "key sets are public: remove everything up to the `@`" });
        }
        let host = bare_host(authority).to_owned();
        let server_name = match uri.scheme_str() {
            Some("https") => Some(ServerName::try_from(host.clone()).map_err(|_| wrong("has an invalid host"))?),
            _ => None,
        };
        Ok(Url {
            port: authority.port_u16().unwrap_or(port),
            authority: HeaderValue::try_from(authority.as_str()).map_err(|_| wrong("has an invalid host"))?,
            path: uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")),
            host,
            server_name,
        })
    }
}

/// Fetches a URL, up to a maximum size. Redirects are not followed.
pub(super) async fn fetch(url: &Url, trust: &CertificateAuthorities, most_bytes: usize) -> Result<Vec<u8>, FetchError> {
    let stream = TcpStream::connect((url.host.as_str(), url.port)).await.map_err(FetchError::Unreachable)?;
    match &url.server_name {
        None => get(stream, url, most_bytes).await,
        Some(name) => {
            let stream =
                trust.http1_connector().connect(name.clone(), stream).await.map_err(FetchError::Unreachable)?;
            get(stream, url, most_bytes).await
        }
    }
}

async fn get(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    url: &Url,
    most_bytes: usize,
) -> Result<Vec<u8>, FetchError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(FetchError::Broken)?;
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.uri_mut() = url.path.clone().into();
    let headers = request.headers_mut();
    headers.insert(HOST, url.authority.clone());
    headers.insert(USER_AGENT, HeaderValue::from_static("tidegate"));
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    let answer = async {
        let response = sender.send_request(request).await.map_err(FetchError::Broken)?;
        if response.status() != StatusCode::OK {
            return Err(FetchError::Status(response.status()));
        }
        let body = WholeBody::new(response.into_body(), most_bytes, BODY_TIMEOUT).await.map_err(FetchError::Body)?;
        Ok(body.to_vec())
    };
    beside(connection, answer).await
}

/// Drives a connection while its response is awaited.
async fn beside<T>(connection: impl Future<Output = Result<(), hyper::Error>>, answer: impl Future<Output = T>) -> T {
    let (mut answer, mut connection) = (std::pin::pin!(answer), std::pin::pin!(connection));
    tokio::select! {
        biased;
        answered = &mut answer => answered,
        // Data received before the connection ended is still read.
        _ = &mut connection => answer.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_written_as_it_was_meant() {
        for text in ["https://login.example.com/.well-known/jwks.json", "http://127.0.0.1:8081/keys?v=1"] {
            assert_eq!(text.parse::<Url>().unwrap().to_string(), text);
        }
        assert_eq!("https://a.example".parse::<Url>().unwrap().to_string(), "https://a.example/");
        for text in ["login.example.com", "ftp://a/", "https://", "https://u:p@a/", "https://a b/", ""] {
            let error = text.parse::<Url>().unwrap_err();
            assert!(!error.problem.contains("u:p"), "{error:?}");
        }
    }

    #[test]
    fn only_keys_over_tls_or_from_this_machine_cannot_be_forged() {
        let is_forgeable = |text: &str| text.parse::<Url>().unwrap().is_forgeable();
        assert!(is_forgeable("http://login.example.com/"));
        assert!(!is_forgeable("https://login.example.com/") && !is_forgeable("http://[::1]:80/"));
        assert!(!is_forgeable("http://127.0.0.1/") && !is_forgeable("http://localhost:3000/"));
    }
}
