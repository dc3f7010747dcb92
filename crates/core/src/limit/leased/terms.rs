//! The terms on which a limit is leased.

use super::leasing::Leasing;
use crate::limit::{Algorithm, Limit, Windows};
use crate::time::Micros;

/// The longest time between two renewals of a key that a node uses.
const LONGEST_INTERVAL: Micros = Micros::from_millis(200);
/// The shortest time between two renewals. Limits that would need a shorter one are not leased: a single node could not use
/// them fully.
const SHORTEST_INTERVAL: Micros = Micros::from_millis(20);
/// Minimum number of intervals in which a limit recovers.
const INTERVALS: u64 = 5;
/// Capacities from this value on do not fit into a store's record of leases.
const LARGEST_CAPACITY: u64 = 1 << 38;
/// Windows from this length on lease less at once, because the tokens of a crashed node count as spent until the window
/// ends.
const LONG_WINDOW: Micros = Micros::from_secs(3_600);

const SECOND: Micros = Micros::from_secs(1);

/// If leases of a key would be smaller than this, the store decides each request.
pub(crate) const LEAST_LEASE: u64 = 8;

/// Limits that admit less in an interval are leased only if a large part of the limit can be used at once.
const LEAST_PER_INTERVAL: u64 = 8;
const LEAST_OUTSTANDING: u64 = 1_000;

/// The terms on which a limit is leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    interval: Micros,
    most_outstanding: u64,
    per_interval: u64,
    recovers: u64,
}

impl Terms {
    /// The terms of a limit. `None` if it cannot be leased: its algorithm depends on the instant of each request, or it is
    /// too small to gain anything, or too large to be counted.
    ///
    /// ```
    /// use tidegate_core::Limit;
    /// use tidegate_core::lease::Terms;
    ///
    /// assert!(Terms::of(&Limit::per_second(1000)).is_some());
    /// assert!(Terms::of(&Limit::per_second(1000).burst(10)).is_none());
    /// assert!(Terms::of(&"log 1000/s".parse()?).is_none());
    /// # Ok::<(), tidegate_core::NotationError>(())
    /// ```
    #[must_use]
    pub fn of(limit: &Limit) -> Option<Terms> {
        let capacity = limit.capacity();
        let window = limit.window().filter(|_| limit.is_leasable() && capacity < LARGEST_CAPACITY)?;
        // The time for which a lease is useful.
        let useful = match limit.algorithm() {
            Algorithm::SlidingWindow(limit) => Micros::new(window.get() / u64::from(limit.parts())),
            Algorithm::FixedWindow(limit) => match limit.windows() {
                Windows::Every(length) => length,
                Windows::Calendar(_) => window,
            },
            _ => window,
        };
        let fraction = Micros::new(useful.get() / INTERVALS);
        let is_window = limit.bucket().is_none();
        let most_outstanding = if is_window && window > LONG_WINDOW { capacity / 64 } else { capacity / 2 };
        if fraction < SHORTEST_INTERVAL || most_outstanding == 0 {
            return None;
        }
        let interval = fraction.min(LONGEST_INTERVAL);
        let share = u128::from(capacity) * u128::from(interval.get()) / u128::from(window.get());
        let per_interval = u64::try_from(share).unwrap_or(u64::MAX);
        // In a sliding window, the spending of the previous window counts less and less.
        let recovers = if matches!(limit.algorithm(), Algorithm::FixedWindow(_)) { 0 } else { per_interval };
        Some(Terms { interval, most_outstanding, per_interval, recovers })
    }

    /// The terms for a node under the rule's choice. `None` if the limit cannot be leased, if the rule disables leases, or
    /// if the limit is so small that leases gain nothing: the store decides its few requests exactly.
    ///
    /// ```
    /// use tidegate_core::lease::{Leasing, Terms};
    ///
    /// let is_leased = |limit: &str| limit.parse().is_ok_and(|limit| Terms::under(&limit, Leasing::AUTO).is_some());
    /// assert!(is_leased("100/s") && is_leased("fixed 1000000/day"));
    /// assert!(!is_leased("100/min") && !is_leased("fixed 1000/h"));
    /// ```
    #[must_use]
    pub fn under(limit: &Limit, leasing: Leasing) -> Option<Terms> {
        let is_worthwhile =
            |terms: &Terms| terms.per_interval >= LEAST_PER_INTERVAL || terms.most_outstanding >= LEAST_OUTSTANDING;
        let terms = Terms::of(limit).filter(|terms| !leasing.is_off() && is_worthwhile(terms))?;
        let share = u128::from(limit.capacity()) * u128::from(leasing.percent()) / 100;
        let most_outstanding = terms.most_outstanding.min(u64::try_from(share).unwrap_or(u64::MAX));
        Some(Terms { interval: terms.interval.min(leasing.every()), most_outstanding, ..terms })
    }

    /// The time between two renewals of a node that uses a key continuously.
    #[must_use]
    pub const fn interval(&self) -> Micros {
        self.interval
    }

    /// The demand for a key at a node, in tokens per second, from which the key is leased.
    ///
    /// ```
    /// use tidegate_core::Limit;
    /// use tidegate_core::lease::Terms;
    ///
    /// assert_eq!(Terms::of(&Limit::per_second(1000)).map(|terms| terms.busy_from()), Some(40));
    /// ```
    #[must_use]
    pub const fn busy_from(&self) -> u64 {
        (LEAST_LEASE * SECOND.get()).div_ceil(self.interval.get())
    }

    /// Maximum number of outstanding tokens of a key.
    #[must_use]
    pub const fn most_outstanding(&self) -> u64 {
        self.most_outstanding
    }

    /// The number of tokens that the limit admits per interval in the long run.
    #[must_use]
    pub const fn per_interval(&self) -> u64 {
        self.per_interval
    }

    /// The number of tokens that recover in an interval; zero within a fixed window.
    #[must_use]
    pub const fn recovers(&self) -> u64 {
        self.recovers
    }

    /// Terms under which the whole capacity can be outstanding.
    #[cfg(all(test, not(tidegate_loom)))]
    pub(crate) const fn for_search(capacity: u64) -> Terms {
        Terms { interval: SHORTEST_INTERVAL, most_outstanding: capacity, per_interval: 0, recovers: 0 }
    }
}
