//! The address of the connection's peer.

use std::net::{IpAddr, SocketAddr};

use http::Extensions;

/// The peer address of a request's connection. The server inserts it into the request's extensions.
///
/// A plain [`SocketAddr`] works too, as do axum's `ConnectInfo<SocketAddr>` (with the feature `axum`) and
/// tonic's `TcpConnectInfo` (with the feature `tonic`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

pub(crate) fn of(extensions: &Extensions) -> Option<IpAddr> {
    let peer = extensions.get::<Peer>().map(|peer| peer.0);
    peer.or_else(|| extensions.get::<SocketAddr>().map(SocketAddr::ip))
        .or_else(|| of_axum(extensions))
        .or_else(|| of_tonic(extensions))
}

#[cfg(feature = "axum")]
fn of_axum(extensions: &Extensions) -> Option<IpAddr> {
    use axum::extract::ConnectInfo;

    extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip())
}

#[cfg(not(feature = "axum"))]
const fn of_axum(_: &Extensions) -> Option<IpAddr> {
    None
}

#[cfg(feature = "tonic")]
fn of_tonic(extensions: &Extensions) -> Option<IpAddr> {
    use tonic::transport::server::TcpConnectInfo;

    extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr).map(|address| address.ip())
}

#[cfg(not(feature = "tonic"))]
const fn of_tonic(_: &Extensions) -> Option<IpAddr> {
    None
}
