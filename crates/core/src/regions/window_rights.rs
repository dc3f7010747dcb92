//! Rights in windows that are running while a share moves.
//!
//! A region that gives a share of a monthly quota may have spent some of it this month, under some keys. The limit has *P*
//! tokens of the window in that region before the transfer, and *P′* after it. The tokens between are the *slice* that
//! moves. If a key has spent *s* in the region, it has spent min(*s*, *P*) − *P′* of the slice, or nothing if that is
//! negative. So each such key is charged in the receiving region for the spent part of the slice. After that, the slice
//! counts there in the same window.
//!
//! *Proof.* All of the share that moves counts in the window, so the slice belongs to the giving region. From the instant
//! at which all nodes have confirmed the smaller part, that region admits a key only while *s* < *P′*. So the part of the
//! slice that its keys have spent no longer changes, and a key spends at most *P* − *P′* of the slice in both regions
//! together. Each token of the window belongs to one region at a time, or to a slice between two of them. Both regions are
//! in that one window from the beginning of the transfer to the last charge, each by its own clock; otherwise the rights do
//! not count, and the share counts from the next window on. ∎
//!
//! A charged key is marked in the receiving region, in the same step, so that a driver that repeats the work of an interrupted one charges
//! it once. What the key has spent of the slice has not changed since the first charge, which was made in a window in which the rights
//! count; otherwise the key must be neither charged nor marked.

use crate::limit::{Algorithm, Limit};
use crate::time::Timestamp;

/// Maximum number of slices of one transfer. Rights in further limits do not move.
pub const MOST_SLICES: usize = 32;

/// A limit with fixed windows whose rights in the running window can move. Limits with one id share states, and have the
/// same windows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SharedWindow {
    /// The id of the limit's states.
    pub id: String,
    /// The whole limit.
    pub limit: Limit,
}

/// The tokens of a window that move with a share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WindowSlice {
    /// The id of the limit's states.
    pub id: String,
    /// The whole limit.
    pub limit: Limit,
    /// The tokens that the region had before the transfer.
    pub before: u64,
    /// The tokens that the region has after the transfer.
    pub after: u64,
}

impl WindowSlice {
    /// The spent part of the slice for a key with `spent` tokens of the window spent in the giving region.
    #[must_use]
    pub fn spent_of(&self, spent: u64) -> u64 {
        spent.min(self.before).saturating_sub(self.after)
    }

    /// The rights that this slice becomes. For the instants, see [`ArrivedRights`].
    #[must_use]
    pub fn rights(&self, first: Timestamp, last: Timestamp) -> ArrivedRights {
        ArrivedRights { id: self.id.clone(), limit: self.limit, first, last }
    }
}

/// A slice that has arrived: keys were charged for the spent part of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArrivedRights {
    /// The id of the limit's states.
    pub id: String,
    /// The whole limit.
    pub limit: Limit,
    /// The earliest of the instants at which the transfer was begun and states were read and charged, by the clocks of both
    /// regions' stores.
    pub first: Timestamp,
    /// The latest of those instants.
    pub last: Timestamp,
}

impl ArrivedRights {
    /// Returns `true` if these are rights in this limit and in a window that lasted from the beginning of the transfer
    /// to the last charge.
    #[must_use]
    pub fn are_of(&self, id: &str, limit: &Limit) -> bool {
        self.id == id && self.limit == *limit && self.are_of_one_window()
    }

    /// Returns `true` if the transfer, the readings and the charges were in one window. Otherwise these rights never count.
    #[must_use]
    pub fn are_of_one_window(&self) -> bool {
        match self.limit.algorithm() {
            Algorithm::FixedWindow(limit) => limit.windows().around(self.first) == limit.windows().around(self.last),
            _ => false,
        }
    }
}

/// The end of a limit's present window; `None` if the limit does not have fixed windows.
#[must_use]
pub fn window_end(limit: &Limit, now: Timestamp) -> Option<Timestamp> {
    match limit.algorithm() {
        Algorithm::FixedWindow(limit) => Some(limit.windows().around(now).1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_charged_for_what_it_has_spent_of_the_slice() {
        let limit: Limit = "fixed 1000/day".parse().unwrap();
        let slice = WindowSlice { id: "quota".to_owned(), limit, before: 600, after: 400 };
        for (spent, charged) in [(0, 0), (400, 0), (401, 1), (600, 200), (900, 200)] {
            assert_eq!(slice.spent_of(spent), charged, "{spent}");
        }
    }

    #[test]
    fn rights_are_those_of_one_limit_in_one_window() {
        let at = Timestamp::from_secs;
        let limit = |text: &str| text.parse::<Limit>().unwrap();
        let rights = |last| ArrivedRights {
            id: "quota".to_owned(),
            limit: limit("fixed 9/min"),
            first: at(600),
            last: at(last),
        };
        assert!(rights(659).are_of("quota", &limit("fixed 9/min")));
        assert!(!rights(660).are_of("quota", &limit("fixed 9/min")));
        assert!(!rights(659).are_of("other", &limit("fixed 9/min")));
        assert!(!rights(659).are_of("quota", &limit("fixed 10/min")));
        assert_eq!(window_end(&limit("fixed 9/min"), at(601)), Some(at(660)));
        assert_eq!(window_end(&limit("9/min"), at(601)), None);
    }
}
