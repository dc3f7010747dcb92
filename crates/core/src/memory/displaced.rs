//! Entries displaced from their slots while a table grows into more slots.

use std::hint::select_unpredictable;

use super::slots::TableEntry;

/// A ring buffer of entries. `push` and `pop_if` are branch-free: whether a slot is empty is unpredictable, and a branch
/// misprediction costs more than the write.
pub(super) struct DisplacedEntries {
    /// The length is a power of two.
    ring: Vec<TableEntry>,
    /// The number of entries popped so far.
    popped: usize,
    /// The number of entries pushed so far.
    pushed: usize,
}

impl DisplacedEntries {
    /// An empty buffer that holds `entries` entries before it grows.
    pub(super) fn with_capacity(entries: usize) -> DisplacedEntries {
        DisplacedEntries { ring: vec![TableEntry::EMPTY; (entries + 1).next_power_of_two()], popped: 0, pushed: 0 }
    }

    const fn index(&self, number: usize) -> usize {
        number & (self.ring.len() - 1)
    }

    /// Appends an entry, unless it is empty.
    #[inline]
    pub(super) fn push(&mut self, entry: TableEntry) {
        if self.pushed - self.popped == self.ring.len() {
            self.grow();
        }
        let index = self.index(self.pushed);
        self.ring[index] = entry;
        self.pushed += usize::from(!entry.is_empty());
    }

    /// Removes and returns the first entry if there is one and `is_due` returns `true`. Otherwise returns an empty entry.
    #[inline]
    pub(super) fn pop_if(&mut self, is_due: impl FnOnce(&TableEntry) -> bool) -> TableEntry {
        let first = self.ring[self.index(self.popped)];
        let is_popped = (self.popped < self.pushed) & is_due(&first);
        self.popped += usize::from(is_popped);
        select_unpredictable(is_popped, first, TableEntry::EMPTY)
    }

    #[cold]
    fn grow(&mut self) {
        let remaining = self.remaining();
        *self = DisplacedEntries::with_capacity(2 * remaining.len());
        remaining.into_iter().for_each(|entry| self.push(entry));
    }

    /// The entries that were not popped, in order.
    pub(super) fn remaining(&self) -> Vec<TableEntry> {
        (self.popped..self.pushed).map(|number| self.ring[self.index(number)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: u64) -> TableEntry {
        TableEntry { key, tag: 0, state: [0; 2] }
    }

    #[test]
    fn entries_are_popped_in_the_order_in_which_they_were_pushed() {
        for capacity in [0, 1, 5, 40] {
            let mut displaced = DisplacedEntries::with_capacity(capacity);
            let mut popped = Vec::new();
            for key in 1..=40 {
                displaced.push(entry(key));
                displaced.push(TableEntry::EMPTY);
                popped.push(displaced.pop_if(|first| first.key % 3 != 0 && key % 2 == 0));
            }
            popped.retain(|entry| !entry.is_empty());
            popped.extend(displaced.remaining());
            assert_eq!(popped, (1..=40).map(entry).collect::<Vec<_>>(), "{capacity}");
        }
    }

    #[test]
    fn nothing_is_popped_from_an_empty_buffer() {
        let mut displaced = DisplacedEntries::with_capacity(2);
        assert_eq!(displaced.pop_if(|_| true), TableEntry::EMPTY);
        displaced.push(entry(7));
        assert_eq!(displaced.pop_if(|_| false), TableEntry::EMPTY);
        assert_eq!(displaced.pop_if(|_| true), entry(7));
        assert_eq!(displaced.pop_if(|_| true), TableEntry::EMPTY);
    }
}
