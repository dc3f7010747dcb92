//! Counts of recent events, in slots of time.

use std::collections::BTreeMap;

use tokio::time::Instant;

/// Counts in slots of equal length, numbered from the first instant. Slots older than the window are dropped. A slot may be
/// in the future, for planned events.
#[derive(Debug)]
pub(crate) struct RecentCounts<T> {
    slot_seconds: u64,
    /// The number of slots in the window, including the present one.
    window: u64,
    start: Option<Instant>,
    present: u64,
    used: BTreeMap<u64, T>,
}

impl<T: Default> RecentCounts<T> {
    /// Empty counts, with a window of this many slots.
    pub(crate) const fn new(slot_seconds: u64, window: u64) -> RecentCounts<T> {
        RecentCounts { slot_seconds, window, start: None, present: 0, used: BTreeMap::new() }
    }

    /// Advances to this instant, and drops slots older than the window. Returns the number of the present slot.
    pub(crate) fn advance(&mut self, now: Instant) -> u64 {
        // If the clock steps back, the newest slot stays the present one.
        let present = self.number(now).max(self.present);
        if present > self.present {
            self.present = present;
            let oldest = (present + 1).saturating_sub(self.window);
            while let Some(entry) = self.used.first_entry().filter(|entry| *entry.key() < oldest) {
                entry.remove();
            }
        }
        present
    }

    /// The number of the slot of an instant.
    pub(crate) fn number(&mut self, at: Instant) -> u64 {
        at.saturating_duration_since(*self.start.get_or_insert(at)).as_secs() / self.slot_seconds
    }

    /// The counts of a slot.
    pub(crate) fn slot(&mut self, number: u64) -> &mut T {
        self.used.entry(number).or_default()
    }

    /// The counts of a slot, if any were recorded in it.
    pub(crate) fn used(&mut self, number: u64) -> Option<&mut T> {
        self.used.get_mut(&number)
    }

    /// The counts of all slots, including those in the future.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.used.values()
    }

    /// The counts of the window that ends with this slot.
    pub(crate) fn until(&self, last: u64) -> impl Iterator<Item = &T> {
        let first = (last + 1).saturating_sub(self.window);
        self.used.range(first..=last).map(|(_, counts)| counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_the_window_is_remembered() {
        let (mut counts, start) = (RecentCounts::<u64>::new(10, 3), Instant::now());
        for (second, sum) in [(0, 1), (9, 2), (10, 3), (29, 4), (30, 3), (49, 3), (1_000, 1)] {
            let present = counts.advance(start + Duration::from_secs(second));
            *counts.slot(present) += 1;
            assert_eq!((counts.all().sum::<u64>(), counts.until(present).sum::<u64>()), (sum, sum), "{second}");
        }
    }

    #[test]
    fn a_clock_that_steps_back_stays_in_the_newest_slot() {
        let (mut counts, start) = (RecentCounts::<u64>::new(1, 10), Instant::now());
        counts.advance(start);
        assert_eq!(counts.advance(start + Duration::from_secs(5)), 5);
        assert_eq!(counts.advance(start + Duration::from_secs(2)), 5);
    }

    #[test]
    fn slots_ahead_are_not_part_of_the_present_window() {
        let (mut counts, start) = (RecentCounts::<u64>::new(1, 10), Instant::now());
        let present = counts.advance(start);
        let ahead = counts.number(start + Duration::from_secs(30));
        *counts.slot(ahead) += 1;
        assert_eq!((counts.until(present).sum::<u64>(), counts.until(35).sum::<u64>()), (0, 1));
        counts.advance(start + Duration::from_secs(39));
        assert_eq!(counts.used(ahead), Some(&mut 1));
        counts.advance(start + Duration::from_secs(40));
        assert_eq!(counts.used(ahead), None);
    }
}
