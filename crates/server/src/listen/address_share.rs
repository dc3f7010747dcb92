//! Limit on the connections that one address may hold.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of connections that one address may always hold, even if that is more than a quarter of the maximum.
const FEW: usize = 64;

/// Default maximum for one address: a quarter of the maximum, but at least 64, and at most half of it.
pub(super) fn usual_share(most_connections: usize) -> usize {
    (most_connections / 4).max(FEW).min(most_connections / 2).max(1)
}

/// The network that counts as one client: an IPv4 address or an IPv6 /64, the usual allocation to a subscriber.
#[must_use]
pub(crate) fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

/// Open connections of a listener, by client. Clients without connections have no entry.
#[derive(Debug, Default)]
pub(super) struct AddressShares {
    open: Mutex<HashMap<IpAddr, usize>>,
    refused: AtomicU64,
}

/// A connection of a client, counted until dropped.
#[derive(Debug)]
pub(super) struct Counted {
    shares: Arc<AddressShares>,
    network: IpAddr,
}

/// The client holds its maximum of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{address} has {open} connections open already")]
pub(super) struct ShareExceeded {
    pub(super) address: IpAddr,
    pub(super) open: usize,
}

impl AddressShares {
    /// Counts a connection of `address`, unless it holds `most` already.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr, most: usize) -> Result<Counted, ShareExceeded> {
        let network = client_network(address);
        let mut all = self.lock();
        let open = all.get(&network).copied().unwrap_or(0);
        if open >= most {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(ShareExceeded { address, open });
        }
        all.insert(network, open + 1);
        Ok(Counted { shares: Arc::clone(self), network })
    }

    /// Number of refused connections.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        // A panic cannot leave inconsistent state behind, so poisoning is ignored.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut all = self.shares.lock();
        if let Some(open) = all.get_mut(&self.network) {
            *open -= 1;
            if *open == 0 {
                all.remove(&self.network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_has_its_share_and_others_have_theirs() {
        let shares = Arc::new(AddressShares::default());
        let enter = |address: &str| shares.enter(ip(address), 2);
        let (one, _two) = (enter("203.0.113.7").unwrap(), enter("::ffff:203.0.113.7").unwrap());
        assert_eq!(enter("203.0.113.7").unwrap_err(), ShareExceeded { address: ip("203.0.113.7"), open: 2 });
        let _other = enter("203.0.113.8").unwrap();
        drop(one);
        let _again = enter("203.0.113.7").unwrap();
        assert_eq!(shares.refused(), 1);
    }

    #[test]
    fn a_subscriber_of_ipv6_is_one_client() {
        let shares = Arc::new(AddressShares::default());
        let _one = shares.enter(ip("2001:db8:0:1::7"), 1).unwrap();
        assert!(shares.enter(ip("2001:db8:0:1:ffff::8"), 1).is_err());
        assert!(shares.enter(ip("2001:db8:0:2::7"), 1).is_ok());
    }

    #[test]
    fn nothing_is_remembered_of_clients_that_are_gone() {
        let shares = Arc::new(AddressShares::default());
        let all: Vec<_> = (0..1_000_u32).map(|n| shares.enter(IpAddr::V4(n.into()), 1).unwrap()).collect();
        assert_eq!(shares.lock().len(), 1_000);
        drop(all);
        assert!(shares.lock().is_empty());
    }

    #[test]
    fn the_usual_share_is_a_quarter_within_reason() {
        assert_eq!([10_000, 1_000, 200, 100, 16, 3, 1].map(usual_share), [2_500, 250, 64, 50, 8, 1, 1]);
        assert_eq!(usual_share(usize::MAX), usize::MAX / 4);
    }
}
