//! Rights of windows that are running while a share moves.
//!
//! A region that gives a share of a quota for a month may have spent some of it in this month, under some keys. The limit has *P* tokens
//! of the window in that region before the transfer, and *P′* after it. The tokens between are the *slice* that moves. A key that
//! has spent *s* in the region has spent min(*s*, *P*) − *P′* of the slice, if that is positive; the rest is unspent. So each such
//! key is charged for the spent part of the slice where the share has arrived, and after that the slice counts there in the same window.
//!
//! *Proof.* All of the share that moves counts in the window, so the slice belongs to the region that gives it. From the instant at which all
//! nodes have confirmed the smaller part, that region admits a key only while *s* < *P′*, so the part of the slice that its keys have spent no
//! longer changes, and all that a key spends of the slice in either region is at most *P* − *P′*. Each token of the window belongs to one region
//! at a time, or to a slice between two of them. Both regions are in that one window from the beginning of the transfer to the last charge, each
//! by its own clock; otherwise the rights do not count, and the share counts from the next window on. ∎
//!
//! A key that is charged twice, because a driver was interrupted, has less than it could have, and never more.

use crate::limit::{Algorithm, Limit};
use crate::time::Timestamp;

/// The most slices of one transfer. Rights of further limits do not move.
pub const MOST_SLICES: usize = 32;

/// A limit of fixed windows whose rights of the running window can move. Limits of one id share states, and have the same windows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SharedWindow {
    /// The id that states belong to.
    pub id: String,
    /// The whole limit.
    pub limit: Limit,
}

/// The tokens of a window that move with a share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WindowSlice {
    /// The id that states belong to.
    pub id: String,
    /// The whole limit.
    pub limit: Limit,
    /// The tokens that the region had before the transfer.
    pub before: u64,
    /// The tokens that it has after it.
    pub after: u64,
}

impl WindowSlice {
    /// The part of the slice that is spent under a key by which `spent` tokens of the window were spent in the region that gives it.
    #[must_use]
    pub fn spent_of(&self, spent: u64) -> u64 {
        spent.min(self.before).saturating_sub(self.after)
    }

    /// The rights that this slice becomes. The instants are those of [`ArrivedRights`].
    #[must_use]
    pub fn rights(&self, first: Timestamp, last: Timestamp) -> ArrivedRights {
        ArrivedRights { id: self.id.clone(), limit: self.limit, first, last }
    }
}

/// A slice that has arrived: keys were charged for what was spent of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArrivedRights {
    /// The id that states belong to.
    pub id: String,
    /// The whole limit.
    pub limit: Limit,
    /// The earliest of the instants at which the transfer was begun and states were read and charged, by the clocks of both regions'
    /// stores.
    pub first: Timestamp,
    /// The latest of them.
    pub last: Timestamp,
}

impl ArrivedRights {
    /// Whether these are rights of this limit, of a window that lasted from the beginning of the transfer to the last charge.
    #[must_use]
    pub fn are_of(&self, id: &str, limit: &Limit) -> bool {
        self.id == id && self.limit == *limit && self.are_of_one_window()
    }

    /// Whether the transfer, the readings and the charges were in one window. Otherwise these rights never count.
    #[must_use]
    pub fn are_of_one_window(&self) -> bool {
        match self.limit.algorithm() {
            Algorithm::FixedWindow(limit) => limit.windows().around(self.first) == limit.windows().around(self.last),
            _ => false,
        }
    }
}

/// The end of a limit's window, if it has fixed windows.
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
