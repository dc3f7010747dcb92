//! A rule's choice whether and how a limit is leased.

use crate::time::Micros;

/// Whether and how the nodes of a fleet lease a limit.
///
/// Stored in two bytes, because every charge contains one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Leasing {
    /// The most that one node may hold, in percent of the limit. 0 disables leases.
    percent: u8,
    /// The longest time between two renewals, in milliseconds.
    millis: u8,
}

impl Leasing {
    /// Keys with enough traffic are leased, on terms that suit the limit.
    pub const AUTO: Leasing = Leasing { percent: Leasing::MOST_PERCENT, millis: Leasing::LONGEST_MILLIS };
    /// Every request is decided by the store.
    pub const OFF: Leasing = Leasing { percent: 0, ..Leasing::AUTO };
    /// The largest share of a limit that a node can hold, in percent.
    pub const MOST_PERCENT: u8 = 50;
    /// The shortest time between two renewals, in milliseconds.
    pub const SHORTEST_MILLIS: u8 = 20;
    /// The longest time between two renewals, in milliseconds.
    pub const LONGEST_MILLIS: u8 = 200;

    /// Leases with which a node holds at most `percent` of the limit, and renews it at least every `millis` milliseconds.
    /// `None` if a value is out of bounds.
    ///
    /// ```
    /// use tidegate_core::lease::Leasing;
    ///
    /// assert_eq!(Leasing::within(50, 200), Some(Leasing::AUTO));
    /// assert_eq!(Leasing::within(51, 200), None);
    /// ```
    #[must_use]
    pub const fn within(percent: u8, millis: u8) -> Option<Leasing> {
        let is_possible = percent >= 1
            && percent <= Leasing::MOST_PERCENT
            && millis >= Leasing::SHORTEST_MILLIS
            && millis <= Leasing::LONGEST_MILLIS;
        if is_possible { Some(Leasing { percent, millis }) } else { None }
    }

    /// Returns `true` if the limit is never leased.
    #[must_use]
    pub const fn is_off(self) -> bool {
        self.percent == 0
    }

    /// The most that one node may hold, in percent of the limit.
    #[must_use]
    pub const fn percent(self) -> u8 {
        self.percent
    }

    /// The longest time between two renewals.
    #[must_use]
    pub const fn every(self) -> Micros {
        Micros::from_millis(self.millis as u64)
    }
}

impl Default for Leasing {
    fn default() -> Leasing {
        Leasing::AUTO
    }
}
