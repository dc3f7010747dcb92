//! The share of one region.

use super::{ArrivedRights, Share, TransferId};
use crate::limit::Limit;
use crate::time::Timestamp;

/// Maximum number of separate arrivals. Beyond it, two earlier arrivals are merged into one that counts from the later.
const MOST_ARRIVALS: usize = 32;

/// The share that a region owns, with the parts of it that have arrived from other regions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RegionShare {
    /// The share, including all arrivals.
    pub share: Share,
    /// The share below which the region never sinks.
    pub floor: Share,
    /// The shares that have arrived from other regions, latest last.
    pub arrivals: Vec<ArrivedShare>,
}

/// A share that has arrived from another region.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArrivedShare {
    /// The share.
    pub amount: Share,
    /// The instant of its arrival, by the clock of the region's store.
    pub at: Timestamp,
    /// The transfer that moved it; `None` if it was inherited, or if several arrivals were merged.
    pub brought_by: Option<TransferId>,
    /// The rights in running windows that moved with it.
    pub rights: Vec<ArrivedRights>,
}

impl ArrivedShare {
    /// Whether the arrival counts at `now` for a limit with this id.
    fn counts(&self, id: &str, limit: &Limit, now: Timestamp) -> bool {
        let is_settled = || limit.settles_at(self.at).is_some_and(|settled| settled <= now);
        self.rights.iter().any(|rights| rights.are_of(id, limit)) || is_settled()
    }
}

impl RegionShare {
    /// Creates a share with a floor. The floor is at most the share.
    #[must_use]
    pub fn new(share: Share, floor: Share) -> RegionShare {
        RegionShare { share, floor: floor.min(share), arrivals: Vec::new() }
    }

    /// The share of a limit that counts at `now`. Excludes arrivals that have neither [settled](Limit::settles_at) nor
    /// moved rights in the running window. `id` is that of the limit's states.
    #[must_use]
    pub fn settled(&self, id: &str, limit: &Limit, now: Timestamp) -> Share {
        let settling = self.arrivals.iter().filter(|arrival| !arrival.counts(id, limit, now));
        let settling = settling.fold(Share::NONE, |sum, arrival| sum + arrival.amount);
        self.share - settling
    }

    /// Returns `true` if all of the share counts for a limit at `at`, if nothing moves until then.
    #[must_use]
    pub fn is_settled(&self, id: &str, limit: &Limit, at: Timestamp) -> bool {
        self.settled(id, limit, at) == self.share
    }

    /// Adds a share that arrives now. Rights in windows that are over make no difference any more, and are dropped.
    pub(super) fn arrive(&mut self, amount: Share, brought_by: Option<TransferId>, now: Timestamp) {
        for ArrivedShare { at, rights, .. } in &mut self.arrivals {
            rights.retain(|rights| rights.limit.settles_at(*at).is_none_or(|settled| settled > now));
        }
        self.share = self.share + amount;
        self.arrivals.push(ArrivedShare { amount, at: now, brought_by, rights: Vec::new() });
        if self.arrivals.len() > MOST_ARRIVALS {
            let first = self.arrivals.remove(0);
            let ArrivedShare { amount, at, .. } = self.arrivals[0];
            self.arrivals[0] = ArrivedShare { amount: amount + first.amount, at, brought_by: None, rights: Vec::new() };
        }
    }

    /// Adds the rights that a transfer has moved. Returns `false` if they were added before, or if the share is gone.
    pub(super) fn bring_rights(&mut self, brought_by: &TransferId, rights: Vec<ArrivedRights>) -> bool {
        let brought = |arrival: &&mut ArrivedShare| arrival.brought_by.as_ref() == Some(brought_by);
        let Some(arrival) = self.arrivals.iter_mut().find(brought).filter(|arrival| arrival.rights.is_empty()) else {
            return false;
        };
        arrival.rights = rights;
        !arrival.rights.is_empty()
    }

    /// Removes a share, latest arrivals first: they may not count yet, and the share that counts stays above the floor.
    pub(super) fn leave(&mut self, amount: Share) {
        self.share = self.share - amount;
        let mut left = amount;
        while let Some(last) = self.arrivals.last_mut().filter(|_| !left.is_none()) {
            let taken = last.amount.min(left);
            (last.amount, left) = (last.amount - taken, left - taken);
            if last.amount.is_none() {
                self.arrivals.pop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Micros;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    #[test]
    fn an_arrival_counts_once_it_has_settled() {
        let mut region = RegionShare::new(Share::percent(40), Share::percent(5));
        region.arrive(Share::percent(20), None, NOW);
        let settled = |limit: &str, secs| region.settled("", &limit.parse().unwrap(), NOW + Micros::from_secs(secs));
        for (limit, secs) in
            [("10/s burst 20", 7), ("log 5/min", 65), ("sliding 5/min parts 6", 75), ("fixed 5/min", 20)]
        {
            let before = Micros::new(secs * 1_000_000 - 1);
            assert_eq!(region.settled("", &limit.parse().unwrap(), NOW + before), Share::percent(40), "{limit}");
            assert_eq!(settled(limit, secs), Share::percent(60), "{limit}");
        }
        assert_eq!(settled("concurrent 10 ttl 30s", 1_000_000), Share::percent(40));
    }

    #[test]
    fn the_latest_arrival_leaves_first() {
        let mut region = RegionShare::new(Share::percent(40), Share::percent(5));
        region.arrive(Share::percent(10), None, NOW);
        region.arrive(Share::percent(10), None, NOW + Micros::from_secs(60));
        region.leave(Share::percent(15));
        assert_eq!(region.share, Share::percent(45));
        assert_eq!((region.arrivals.len(), region.arrivals[0].amount), (1, Share::percent(5)));
        region.leave(Share::percent(30));
        assert_eq!((region.share, region.arrivals.len()), (Share::percent(15), 0));
    }

    #[test]
    fn many_arrivals_become_one_that_counts_later() {
        let mut region = RegionShare::new(Share::NONE, Share::NONE);
        for second in 0..100 {
            region.arrive(Share::POINT, None, NOW + Micros::from_secs(second));
        }
        assert_eq!((region.share, region.arrivals.len()), (Share::WHOLE, MOST_ARRIVALS));
        assert_eq!(region.arrivals[0].amount, Share::percent(69));
        assert_eq!(region.arrivals[0].at, NOW + Micros::from_secs(68));
    }
}
