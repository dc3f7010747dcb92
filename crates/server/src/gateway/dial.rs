//! Connects to upstreams.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;

use super::address::{UpstreamAddress, UpstreamScheme};
use super::upstream_io::UpstreamIo;
use crate::certificate_authorities::CertificateAuthorities;
use crate::keepalive;

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpstreamProtocol {
    Http1,
    Http2,
}

/// Opens a connection, and returns it with its protocol.
pub(super) async fn dial(
    address: &UpstreamAddress,
    trust: &CertificateAuthorities,
    keepalive: Duration,
) -> io::Result<(UpstreamIo, UpstreamProtocol)> {
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    // Requests are written in one piece, so waiting for more data (Nagle's algorithm) gains nothing.
    let _ = stream.set_nodelay(true);
    keepalive::set(&stream, keepalive);
    match (address.scheme, &address.server_name) {
        (UpstreamScheme::Https, Some(name)) => {
            let stream = trust.connector().connect(name.clone(), stream).await?;
            let protocol = match stream.get_ref().1.alpn_protocol() {
                Some(b"h2") => UpstreamProtocol::Http2,
                _ => UpstreamProtocol::Http1,
            };
            Ok((UpstreamIo::Tls(Box::new(stream)), protocol))
        }
        (UpstreamScheme::H2c, _) => Ok((UpstreamIo::Plain(stream), UpstreamProtocol::Http2)),
        (UpstreamScheme::Http | UpstreamScheme::Https, _) => Ok((UpstreamIo::Plain(stream), UpstreamProtocol::Http1)),
    }
}
