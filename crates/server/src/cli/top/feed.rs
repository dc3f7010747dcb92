//! Feed of live data from the server.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HOST};
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc::Sender;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use super::model::FeedEvent;
use crate::metrics::View;

/// Timeout for the next event. The server sends one every second.
const SILENCE: Duration = Duration::from_secs(5);
const CONNECT_TIME: Duration = Duration::from_secs(5);
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Maximum size of a view in bytes.
const MOST_BYTES: usize = 4 * 1024 * 1024;

/// Help on the source of the token, and how to pass it.
pub(super) const TOKEN_HELP: &str = "give it with `--token TOKEN` or in the variable TIDEGATE_ADMIN_TOKEN; it is the server's \
     setting `admin.token`, or the one that it printed when it started";

/// Address, token and TLS settings of the server.
#[derive(Clone)]
pub(super) struct FeedTarget {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    authority: HeaderValue,
    authorization: HeaderValue,
}

/// Invalid URL, token or CA certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum TargetError {
    #[error("`{0}` is not the URL of a server: write one such as http://127.0.0.1:9600")]
    Url(Uri),
    #[error("the token contains characters that are not allowed in a header")]
    Token,
    #[error("{0} cannot be used: {1}")]
    Ca(String, String),
}

/// The feed failed.
#[derive(Debug, thiserror::Error)]
enum FeedError {
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

impl FeedTarget {
    pub(super) fn new(url: &Uri, token: &str, ca: Option<&Path>) -> Result<FeedTarget, TargetError> {
        let bad = || TargetError::Url(url.clone());
        let encrypted = match url.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(bad()),
        };
        let authority = url.authority().ok_or_else(bad)?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let mut authorization = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| TargetError::Token)?;
        authorization.set_sensitive(true);
        let tls = if encrypted {
            let name = ServerName::try_from(host.clone()).map_err(|_| bad())?;
            Some((connector(ca)?, name))
        } else {
            None
        };
        Ok(FeedTarget {
            port: authority.port_u16().unwrap_or(if encrypted { 443 } else { 80 }),
            authority: HeaderValue::from_str(authority.as_str()).map_err(|_| bad())?,
            host,
            tls,
            authorization,
        })
    }

    fn request(&self) -> Request<Empty<Bytes>> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = Uri::from_static("/v1/stream?most=100");
        let headers = request.headers_mut();
        headers.insert(HOST, self.authority.clone());
        headers.insert(AUTHORIZATION, self.authorization.clone());
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        request
    }
}

fn connector(ca: Option<&Path>) -> Result<TlsConnector, TargetError> {
    let mut roots = RootCertStore::empty();
    let wrong = |path: &Path, why: String| TargetError::Ca(path.display().to_string(), why);
    match ca {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(path) => {
            let certificates = CertificateDer::pem_file_iter(path).map_err(|error| wrong(path, error.to_string()))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| wrong(path, error.to_string()))?;
                roots.add(certificate).map_err(|error| wrong(path, error.to_string()))?;
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| TargetError::Ca("TLS".to_owned(), error.to_string()))?;
    Ok(TlsConnector::from(Arc::new(config.with_root_certificates(roots).with_no_client_auth())))
}

/// Follows a server until the receiver is dropped.
pub(super) struct Feed {
    target: FeedTarget,
}

impl Feed {
    pub(super) const fn new(target: FeedTarget) -> Feed {
        Feed { target }
    }

    /// Sends each view, and each loss of the connection, then reconnects.
    pub(super) async fn follow(self, news: Sender<FeedEvent>) {
        while !news.is_closed() {
            if let Err(error) = self.listen(&news).await
                && news
                    .send(FeedEvent::Lost(format!("{}:{}: {error}", self.target.host, self.target.port)))
                    .await
                    .is_err()
            {
                return;
            }
            sleep(TRY_AGAIN_AFTER).await;
        }
    }

    async fn listen(&self, news: &Sender<FeedEvent>) -> Result<(), FeedError> {
        let connecting = TcpStream::connect((self.target.host.as_str(), self.target.port));
        let stream = timeout(CONNECT_TIME, connecting).await??;
        match &self.target.tls {
            None => self.read(stream, news).await,
            Some((connector, name)) => {
                let stream = timeout(CONNECT_TIME, connector.connect(name.clone(), stream)).await??;
                self.read(stream, news).await
            }
        }
    }

    async fn read(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        news: &Sender<FeedEvent>,
    ) -> Result<(), FeedError> {
        let (mut sender, connection) = timeout(CONNECT_TIME, handshake(TokioIo::new(stream))).await??;
        let driving = tokio::spawn(connection);
        let response = timeout(SILENCE, sender.send_request(self.target.request())).await;
        let result = match response {
            Ok(Ok(response)) => views(response, news).await,
            Ok(Err(error)) => Err(error.into()),
            Err(error) => Err(error.into()),
        };
        driving.abort();
        result
    }
}

async fn views(response: Response<Incoming>, news: &Sender<FeedEvent>) -> Result<(), FeedError> {
    match response.status() {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED => return Err(FeedError::Token),
        status => return Err(FeedError::Status(status)),
    }
    let mut body = response.into_body();
    let mut events = Events::default();
    loop {
        let Some(frame) = timeout(SILENCE, body.frame()).await? else { return Err(FeedError::Closed) };
        let Ok(data) = frame?.into_data() else { continue };
        events.push(&data)?;
        while let Some(view) = events.next() {
            if news.send(FeedEvent::View(Box::new(view?))).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// Splits the received bytes into server-sent events.
#[derive(Debug, Default)]
struct Events(Vec<u8>);

impl Events {
    fn push(&mut self, data: &[u8]) -> Result<(), FeedError> {
        if self.0.len() + data.len() > MOST_BYTES {
            return Err(FeedError::Nonsense);
        }
        self.0.extend_from_slice(data);
        Ok(())
    }

    /// The view in the next complete event. Events without data are skipped.
    fn next(&mut self) -> Option<Result<View, FeedError>> {
        loop {
            let end = self.0.windows(2).position(|pair| pair == b"\n\n")?;
            let event: Vec<u8> = self.0.drain(..end + 2).collect();
            let mut lines = event.split(|byte| *byte == b'\n');
            if let Some(data) = lines.find_map(|line| line.strip_prefix(b"data:")) {
                return Some(serde_json::from_slice(data).map_err(|_| FeedError::Nonsense));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_any_pieces() {
        let view = View { generation: 7, ..View::default() };
        let text = format!(": hello\n\nevent: view\ndata: {}\n\n", serde_json::to_string(&view).unwrap());
        for piece in [1, 2, 7, text.len()] {
            let (mut events, mut seen) = (Events::default(), Vec::new());
            for _ in 0..3 {
                for data in text.as_bytes().chunks(piece) {
                    events.push(data).unwrap();
                    while let Some(view) = events.next() {
                        seen.push(view.unwrap().generation);
                    }
                }
            }
            assert_eq!(seen, [7, 7, 7]);
        }
    }

    #[test]
    fn endless_lines_and_other_documents_end_the_feed() {
        let mut events = Events::default();
        assert!(events.push(&vec![b'x'; MOST_BYTES]).is_ok());
        assert!(events.push(b"x").is_err());
        let mut events = Events::default();
        events.push(b"data: [1]\n\n").unwrap();
        assert!(matches!(events.next(), Some(Err(FeedError::Nonsense))));
    }

    #[test]
    fn only_urls_of_servers_are_taken() {
        let target = |url: &str| FeedTarget::new(&url.parse().unwrap(), "0123456789abcdef", None);
        assert!(matches!(target("ftp://a"), Err(TargetError::Url(_))));
        assert!(matches!(target("/v1"), Err(TargetError::Url(_))));
        let six = target("http://[::1]:9600").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((six.host.as_str(), six.port), ("::1", 9_600));
        assert_eq!(target("https://a").unwrap_or_else(|error| panic!("{error}")).port, 443);
    }
}
