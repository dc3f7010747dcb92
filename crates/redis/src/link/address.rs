//! Where a server listens.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// On a port of a host.
    Tcp {
        /// Its name or number.
        host: Arc<str>,
        /// The port.
        port: u16,
    },
    /// On a socket in the file system.
    Unix(Arc<Path>),
}

impl Address {
    pub(crate) fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.into(), port }
    }

    pub(super) fn unix(path: PathBuf) -> Address {
        Address::Unix(path.into())
    }

    /// An address as servers write it, `host:port`. A host of six has no brackets there.
    pub(crate) fn parse_announced(text: &str) -> Option<Address> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok()?;
        (!host.is_empty()).then(|| Address::tcp(host, port))
    }

    /// The host, if it is one that other addresses can be told of.
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
