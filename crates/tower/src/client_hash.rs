//! A hash of the client of a request.

use std::hash::{DefaultHasher, Hash, Hasher};
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
        matched.first_key().map(ClientHash::of).or_else(|| address.map(ClientHash::of))
    }

    /// The hash in the extensions, or that of the peer's address. A request without either counts as a separate client.
    #[must_use]
    pub fn of_request(extensions: &Extensions) -> ClientHash {
        match extensions.get::<ClientHash>() {
            Some(client) => *client,
            None => peer::of(extensions).map_or_else(|| ClientHash(fastrand::u64(..)), ClientHash::of),
        }
    }

    fn of(client: impl Hash) -> ClientHash {
        let mut hasher = DefaultHasher::new();
        client.hash(&mut hasher);
        ClientHash(hasher.finish())
    }
}
