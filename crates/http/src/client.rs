//! Whom a request comes from.

use std::net::IpAddr;
use std::str::FromStr;

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use crate::forwarded;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The header in which proxies say whom a request comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ForwardingHeader {
    /// `X-Forwarded-For: 203.0.113.7, 10.0.0.2`
    #[default]
    XForwardedFor,
    /// `Forwarded: for=203.0.113.7, for="[2001:db8::1]:4711"` (RFC 7239)
    Forwarded,
}

/// The proxies whose word counts, and the header in which they give it.
///
/// Anybody can send a forwarding header, and each proxy adds the address that it sees to the right of what is there. So the
/// list is read from the right, beginning with the peer of the connection, for as long as those who speak are trusted. The
/// first address that is not is the client's. What stands further left is what the client says of itself.
///
/// | the list says | the client is |
/// |---|---|
/// | an address that is not trusted | that one |
/// | nothing but trusted addresses | the leftmost |
/// | no address where one is due (`unknown`, `_hidden`, garbage) | the trusted proxy that said so |
///
/// IPv4 addresses written as IPv6 are IPv4, and ports and zones do not count: one address is one client however it is
/// written.
///
/// ```
/// use http::HeaderMap;
/// use tidegate_http::{ForwardingHeader, TrustedProxies};
///
/// let proxies = TrustedProxies::parse(["10.0.0.0/8"], ForwardingHeader::XForwardedFor)?;
/// let mut headers = HeaderMap::new();
/// headers.insert("x-forwarded-for", "198.51.100.1, 203.0.113.7, 10.0.0.2".parse()?);
///
/// let client = |peer: [u8; 4]| proxies.client(peer.into(), &headers).to_string();
/// assert_eq!(client([10, 0, 0, 1]), "203.0.113.7");
/// assert_eq!(client([192, 0, 2, 9]), "192.0.2.9");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies {
    networks: Vec<IpNet>,
    header: ForwardingHeader,
}

/// Text that names no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// It cannot be read.
    #[error(
        "`{text}` is neither an address nor a network: write one such as `10.0.0.0/8`, `192.0.2.7` or `2001:db8::/32`"
    )]
    Unreadable {
        /// What was written.
        text: String,
    },
    /// It is an address inside a network.
    #[error("`{text}` has bits set outside its network: write `{network}`")]
    StrayBits {
        /// What was written.
        text: String,
        /// The network that was probably meant.
        network: IpNet,
    },
}

impl TrustedProxies {
    /// Trusts nobody: the client is the peer.
    #[must_use]
    pub const fn none() -> TrustedProxies {
        TrustedProxies { networks: Vec::new(), header: ForwardingHeader::XForwardedFor }
    }

    /// Trusts the proxies in these networks, and what they say in this header.
    pub fn new(networks: impl IntoIterator<Item = IpNet>, header: ForwardingHeader) -> TrustedProxies {
        TrustedProxies { networks: networks.into_iter().map(unmapped).collect(), header }
    }

    /// The same, of networks as people write them.
    ///
    /// # Errors
    /// If one of them cannot be read, or has bits set outside its network.
    pub fn parse<T: AsRef<str>>(
        networks: impl IntoIterator<Item = T>,
        header: ForwardingHeader,
    ) -> Result<TrustedProxies, NetworkError> {
        let networks = networks.into_iter().map(|text| network(text.as_ref()));
        Ok(TrustedProxies::new(networks.collect::<Result<Vec<_>, _>>()?, header))
    }

    /// Where they say it.
    #[must_use]
    pub const fn header(&self) -> ForwardingHeader {
        self.header
    }

    /// Whether any address is trusted.
    #[must_use]
    pub const fn trusts_any(&self) -> bool {
        !self.networks.is_empty()
    }

    /// Whether the word of this address counts.
    #[must_use]
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|network| network.contains(&address))
    }

    /// The address of the client behind `peer`, the other end of the connection (or, where a listener speaks the PROXY
    /// protocol, whom that names).
    #[must_use]
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let peer = peer.to_canonical();
        if !self.trusts(peer) {
            return peer;
        }
        match self.header {
            ForwardingHeader::XForwardedFor => {
                let lines = headers.get_all(X_FORWARDED_FOR).iter().rev();
                let items = lines.flat_map(|line| forwarded::items_from_right(line.as_bytes()));
                self.nearest(peer, items.map(forwarded::address))
            }
            ForwardingHeader::Forwarded => {
                let lines = headers.get_all(http::header::FORWARDED).iter().rev();
                let elements = lines.flat_map(|line| forwarded::elements(line.as_bytes()).into_iter().rev());
                self.nearest(peer, elements.map(forwarded::sender))
            }
        }
    }

    /// Walks away from `peer` for as long as those who speak are trusted.
    fn nearest(&self, peer: IpAddr, said: impl Iterator<Item = Option<IpAddr>>) -> IpAddr {
        let mut nearest = peer;
        for address in said {
            match address {
                Some(address) if self.trusts(address) => nearest = address,
                Some(address) => return address,
                None => return nearest,
            }
        }
        nearest
    }
}

fn network(text: &str) -> Result<IpNet, NetworkError> {
    let unreadable = || NetworkError::Unreadable { text: text.to_owned() };
    let written = text.trim();
    let network = IpNet::from_str(written).or_else(|_| written.parse::<IpAddr>().map(IpNet::from));
    let network = network.map_err(|_| unreadable())?;
    if network.trunc() != network {
        return Err(NetworkError::StrayBits { text: text.to_owned(), network: network.trunc() });
    }
    Ok(network)
}

/// A network of mapped IPv4 addresses is the IPv4 network that they are seen to come from.
fn unmapped(network: IpNet) -> IpNet {
    match (network.addr().to_canonical(), network.prefix_len()) {
        (IpAddr::V4(address), size @ 96..) if network.addr().is_ipv6() => {
            IpNet::new(address.into(), size - 96).unwrap_or(network)
        }
        _ => network,
    }
}
