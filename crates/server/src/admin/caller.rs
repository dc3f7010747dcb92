//! The sender of an administrative request, for the log.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;

use axum::extract::FromRequestParts;
use http::request::Parts;

use crate::listen::PeerAddress;

/// Sender of a request that changes something, for the log. All operators share one token, so the address identifies
/// them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AdminCaller(Option<SocketAddr>);

impl<S: Send + Sync> FromRequestParts<S> for AdminCaller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<AdminCaller, Infallible> {
        Ok(AdminCaller(parts.extensions.get::<PeerAddress>().map(|peer| peer.address)))
    }
}

impl fmt::Display for AdminCaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => write!(f, "admin.token from {address}"),
            None => f.write_str("admin.token"),
        }
    }
}
