//! Connecting to an upstream.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;

use super::address::{Address, Scheme};
use super::upstream_io::UpstreamIo;
use crate::certificate_authorities::CertificateAuthorities;
use crate::keepalive;

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpstreamProtocol {
    Http1,
    Http2,
}

/// A new connection, and its protocol.
pub(super) async fn dial(
    address: &Address,
    trust: &CertificateAuthorities,
    keepalive: Duration,
) -> io::Result<(UpstreamIo, UpstreamProtocol)> {
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    // Requests are written whole: there is nothing to wait for.
    let _ = stream.set_nodelay(true);
    keepalive::set(&stream, keepalive);
    match (address.scheme, &address.server_name) {
        (Scheme::Https, Some(name)) => {
            let stream = trust.connector().connect(name.clone(), stream).await?;
            let protocol = match stream.get_ref().1.alpn_protocol() {
                Some(b"h2") => UpstreamProtocol::Http2,
                _ => UpstreamProtocol::Http1,
            };
            Ok((UpstreamIo::Tls(Box::new(stream)), protocol))
        }
        (Scheme::H2c, _) => Ok((UpstreamIo::Plain(stream), UpstreamProtocol::Http2)),
        (Scheme::Http | Scheme::Https, _) => Ok((UpstreamIo::Plain(stream), UpstreamProtocol::Http1)),
    }
}
