//! A rule's choice of write-behind.

use crate::limit::{Algorithm, Limit};
use crate::time::Micros;

/// Bound on the cost that a fleet admits without the store's knowledge, and the interval between reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WriteBehind {
    /// Maximum that the fleet admits beyond the limit, in percent of it.
    percent: u8,
    /// The time between two reports, in milliseconds.
    millis: u16,
}

impl WriteBehind {
    /// The largest excess that a rule can allow, in percent of the limit.
    pub const MOST_PERCENT: u8 = 50;
    /// The shortest time between two reports, in milliseconds.
    pub const SHORTEST_MILLIS: u16 = 10;
    /// The longest time between two reports, in milliseconds.
    pub const LONGEST_MILLIS: u16 = 10_000;
    /// The default time between two reports.
    pub const DEFAULT_MILLIS: u16 = 100;

    /// Write-behind with at most `percent` of the limit beyond it, reported every `millis` milliseconds. `None` if either
    /// is out of bounds.
    #[must_use]
    pub const fn within(percent: u8, millis: u16) -> Option<WriteBehind> {
        let is_possible = percent >= 1
            && percent <= WriteBehind::MOST_PERCENT
            && millis >= WriteBehind::SHORTEST_MILLIS
            && millis <= WriteBehind::LONGEST_MILLIS;
        if is_possible { Some(WriteBehind { percent, millis }) } else { None }
    }

    /// Returns `true` if a limit can be decided by copies: token bucket, GCRA, meter and fixed window. For other
    /// limits, the state at a later instant does not follow from an answer of the store.
    ///
    /// ```
    /// use tidegate_core::write_behind::WriteBehind;
    ///
    /// assert!(WriteBehind::supports(&"100/s".parse()?) && WriteBehind::supports(&"fixed 1000/h".parse()?));
    /// assert!(!WriteBehind::supports(&"sliding 300/min".parse()?));
    /// # Ok::<(), tidegate_core::NotationError>(())
    /// ```
    #[must_use]
    pub const fn supports(limit: &Limit) -> bool {
        match limit.algorithm() {
            Algorithm::TokenBucket(_) | Algorithm::Gcra(_) | Algorithm::Meter(_) | Algorithm::FixedWindow(_) => true,
            Algorithm::Shaper(_)
            | Algorithm::SlidingWindow(_)
            | Algorithm::SlidingLog(_)
            | Algorithm::Concurrency(_) => false,
        }
    }

    /// Maximum that a fleet of any size admits beyond the limit.
    ///
    /// ```
    /// use tidegate_core::Limit;
    /// use tidegate_core::write_behind::WriteBehind;
    ///
    /// let five = WriteBehind::within(5, 100).ok_or("out of bounds")?;
    /// let limit = Limit::per_second(1000);
    /// assert_eq!(five.most_beyond(&limit), 50);
    /// assert_eq!(five.most_unreported(&limit, 4), 12);
    /// # Ok::<(), &str>(())
    /// ```
    #[must_use]
    pub const fn most_beyond(self, limit: &Limit) -> u64 {
        // A capacity is below 2^53.
        limit.capacity() * self.percent as u64 / 100
    }

    /// Maximum that each of this many nodes may have admitted and not reported, per key. 0 if the number of nodes is 0
    /// (unknown).
    #[must_use]
    pub const fn most_unreported(self, limit: &Limit, nodes: u32) -> u64 {
        if nodes == 0 { 0 } else { self.most_beyond(limit) / nodes as u64 }
    }

    /// Maximum that the fleet admits beyond the limit, in percent of it.
    #[must_use]
    pub const fn percent(self) -> u8 {
        self.percent
    }

    /// The time between two reports.
    #[must_use]
    pub const fn every(self) -> Micros {
        Micros::from_millis(self.millis as u64)
    }
}
