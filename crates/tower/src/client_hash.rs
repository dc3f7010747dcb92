//! A hash of the client of a request.

use std::net::IpAddr;

use http::Extensions;
use tidegate_rules::Matched;

use crate::peer;

/// A hash of the client: of the key of the first enforced rule with a key, or of the client's address if no rule has
/// one. [`RateLimitLayer::hash_clients`](crate::RateLimitLayer::hash_clients) stores it in the extensions of requests.
///
/// Equal clients have equal hashes on every server. The hash is not secret, and does not hide the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientHash(pub u64);

impl ClientHash {
    pub(crate) fn of_matched(matched: &Matched<'_, '_>, address: Option<IpAddr>) -> Option<ClientHash> {
        let of_key = matched.first_key().map(|key| ClientHash::of_parts(key.parts()));
        of_key.or_else(|| address.map(ClientHash::of_address))
    }

    /// The hash in the extensions, or that of the peer's address. A request without either counts as a separate client.
    #[must_use]
    pub fn of_request(extensions: &Extensions) -> ClientHash {
        match extensions.get::<ClientHash>() {
            Some(client) => *client,
            None => peer::of(extensions).map_or_else(|| ClientHash(fastrand::u64(..)), ClientHash::of_address),
        }
    }

    fn of_address(address: IpAddr) -> ClientHash {
        match address {
            IpAddr::V4(address) => ClientHash::of_parts([&address.octets()[..]]),
            IpAddr::V6(address) => ClientHash::of_parts([&address.octets()[..]]),
        }
    }

    /// FNV-1a with 64 bits, over each part and its length, so that `("ab")` and `("a", "b")` differ. Load shedding mixes the
    /// bits of the hash before it uses them.
    fn of_parts<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> ClientHash {
        const START: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        let step = |hash: u64, number: u64| (hash ^ number).wrapping_mul(PRIME);
        let of_part = |hash: u64, part: &[u8]| {
            part.iter().fold(step(hash, part.len() as u64), |hash, &byte| step(hash, u64::from(byte)))
        };
        ClientHash(parts.into_iter().fold(START, of_part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_the_same_in_every_version() {
        assert_eq!(ClientHash::of_address([192, 0, 2, 7].into()), ClientHash(0xadfa_fe6f_d835_e7e4));
        assert_eq!(ClientHash::of_parts([&b"alice"[..]]), ClientHash(0xc53e_26a3_d12d_11a8));
        assert_ne!(ClientHash::of_parts([&b"ab"[..]]), ClientHash::of_parts([&b"a"[..], &b"b"[..]]));
    }
}
