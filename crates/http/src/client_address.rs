//! The client address of a request, behind trusted proxies.

use std::net::IpAddr;
use std::str::FromStr;

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use crate::forwarded;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The header in which proxies forward the client's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ForwardingHeader {
    /// `X-Forwarded-For: 203.0.113.7, 10.0.0.2`
    #[default]
    XForwardedFor,
    /// `Forwarded: for=203.0.113.7, for="[2001:db8::1]:4711"` (RFC 7239)
    Forwarded,
}

/// Trusted proxies: client addresses are taken from their forwarding headers.
///
/// Any client can send a forwarding header, and each proxy appends the address of its own peer on the right. So the list is
/// read from the right, starting at the connection's peer, for as long as the addresses are trusted. The first address that
/// is not trusted is the client's. Addresses further left come from the client itself and are ignored.
///
/// | the list has | the client is |
/// |---|---|
/// | an untrusted address | the rightmost untrusted address |
/// | only trusted addresses | the leftmost address |
/// | an entry that is not an address (`unknown`, `_hidden`, garbage) | the trusted proxy that sent the entry |
///
/// IPv4-mapped IPv6 addresses count as IPv4, and ports and zones are ignored, so that every spelling of an address is the
/// same client.
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

/// Text that is not a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// The text is neither an address nor a network.
    #[error(
        "`{text}` is neither an address nor a network: write one such as `10.0.0.0/8`, `192.0.2.7` or `2001:db8::/32`"
    )]
    Unreadable {
        /// The text.
        text: String,
    },
    /// The text is an address inside a network.
    #[error("`{text}` has bits set outside its network: write `{network}`")]
    StrayBits {
        /// The text.
        text: String,
        /// The network that was probably meant.
        network: IpNet,
    },
}

impl TrustedProxies {
    /// Trusts no proxy: the client is the peer.
    #[must_use]
    pub const fn none() -> TrustedProxies {
        TrustedProxies { networks: Vec::new(), header: ForwardingHeader::XForwardedFor }
    }

    /// Trusts the proxies in these networks, which send this header.
    pub fn new(networks: impl IntoIterator<Item = IpNet>, header: ForwardingHeader) -> TrustedProxies {
        TrustedProxies { networks: networks.into_iter().map(unmapped).collect(), header }
    }

    /// Parses the networks, each an address or a CIDR block, and trusts the proxies in them.
    ///
    /// # Errors
    /// A network cannot be parsed, or has bits set outside its prefix.
    pub fn parse<T: AsRef<str>>(
        networks: impl IntoIterator<Item = T>,
        header: ForwardingHeader,
    ) -> Result<TrustedProxies, NetworkError> {
        let networks = networks.into_iter().map(|text| network(text.as_ref()));
        Ok(TrustedProxies::new(networks.collect::<Result<Vec<_>, _>>()?, header))
    }

    /// The header that is read.
    #[must_use]
    pub const fn header(&self) -> ForwardingHeader {
        self.header
    }

    /// Returns `true` if any address is trusted.
    #[must_use]
    pub const fn trusts_any(&self) -> bool {
        !self.networks.is_empty()
    }

    /// Returns `true` if this address is a trusted proxy.
    #[must_use]
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|network| network.contains(&address))
    }

    /// The address of the client behind `peer`. The peer is the other end of the connection, or the source address of the
    /// PROXY protocol where a listener uses that.
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

    /// The first untrusted address, walking from `peer` to the client. `addresses` are those that the proxies forward.
    fn nearest(&self, peer: IpAddr, addresses: impl Iterator<Item = Option<IpAddr>>) -> IpAddr {
        let mut nearest = peer;
        for address in addresses {
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
    let trimmed = text.trim();
    let network = IpNet::from_str(trimmed).or_else(|_| trimmed.parse::<IpAddr>().map(IpNet::from));
    let network = network.map_err(|_| unreadable())?;
    if network.trunc() != network {
        return Err(NetworkError::StrayBits { text: text.to_owned(), network: network.trunc() });
    }
    Ok(network)
}

/// Turns a network of IPv4-mapped IPv6 addresses into the IPv4 network, because peers are compared in IPv4 form.
fn unmapped(network: IpNet) -> IpNet {
    match (network.addr().to_canonical(), network.prefix_len()) {
        (IpAddr::V4(address), size @ 96..) if network.addr().is_ipv6() => {
            IpNet::new(address.into(), size - 96).unwrap_or(network)
        }
        _ => network,
    }
}
