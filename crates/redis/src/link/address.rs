//! Addresses of servers.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A TCP port.
    Tcp {
        /// The host name or IP address.
        host: Arc<str>,
        /// The port.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(Arc<Path>),
}

impl Address {
    pub(crate) fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.into(), port }
    }

    pub(super) fn unix(path: PathBuf) -> Address {
        Address::Unix(path.into())
    }

    /// Parses an address in the format of servers, `host:port`. IPv6 addresses have no brackets in it.
    pub(crate) fn parse_announced(text: &str) -> Option<Address> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok()?;
        (!host.is_empty()).then(|| Address::tcp(host, port))
    }

    /// The host of a TCP address.
    pub(crate) fn host(&self) -> Option<&str> {
        match self {
            Address::Tcp { host, .. } => Some(host),
            Address::Unix(_) => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}
