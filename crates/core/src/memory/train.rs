//! Entries on their way to another slot.

use std::hint::select_unpredictable;

use super::slots::Entry;

/// A queue of entries. Joining and leaving take no branch, for whether a slot is empty there is nothing to go by in guessing.
pub(super) struct Train {
    /// A ring; how many seats it has is a power of two.
    seats: Vec<Entry>,
    /// How many have left so far.
    left: usize,
    /// How many have joined so far.
    joined: usize,
}

impl Train {
    /// An empty one, with room for some before it has to be made longer.
    pub(super) fn with_room_for(entries: usize) -> Train {
        Train { seats: vec![Entry::EMPTY; (entries + 1).next_power_of_two()], left: 0, joined: 0 }
    }

    const fn seat(&self, number: usize) -> usize {
        number & (self.seats.len() - 1)
    }

    /// Adds an entry behind the others, unless it is empty.
    #[inline]
    pub(super) fn join(&mut self, entry: Entry) {
        if self.joined - self.left == self.seats.len() {
            self.lengthen();
        }
        let seat = self.seat(self.joined);
        self.seats[seat] = entry;
        self.joined += usize::from(!entry.is_empty());
    }

    /// Takes out the first entry, if there is one and `may_leave` says so; otherwise an empty one.
    #[inline]
    pub(super) fn leave_if(&mut self, may_leave: impl FnOnce(&Entry) -> bool) -> Entry {
        let first = self.seats[self.seat(self.left)];
        let leaves = (self.left < self.joined) & may_leave(&first);
        self.left += usize::from(leaves);
        select_unpredictable(leaves, first, Entry::EMPTY)
    }

    #[cold]
    fn lengthen(&mut self) {
        let rest = self.rest();
        *self = Train::with_room_for(2 * rest.len());
        rest.into_iter().for_each(|entry| self.join(entry));
    }

    /// Those that have not left, in order.
    pub(super) fn rest(&self) -> Vec<Entry> {
        (self.left..self.joined).map(|number| self.seats[self.seat(number)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::slots::Tag;
    use super::*;

    fn entry(key: u64) -> Entry {
        Entry { key, tag: Tag::NONE, cell: [0; 2] }
    }

    #[test]
    fn entries_leave_in_the_order_in_which_they_joined_whatever_the_room() {
        for room in [0, 1, 5, 40] {
            let mut train = Train::with_room_for(room);
            let mut left = Vec::new();
            for key in 1..=40 {
                train.join(entry(key));
                train.join(Entry::EMPTY);
                left.push(train.leave_if(|first| first.key % 3 != 0 && key % 2 == 0));
            }
            left.retain(|entry| !entry.is_empty());
            left.extend(train.rest());
            assert_eq!(left, (1..=40).map(entry).collect::<Vec<_>>(), "{room}");
        }
    }

    #[test]
    fn nobody_leaves_an_empty_train() {
        let mut train = Train::with_room_for(2);
        assert_eq!(train.leave_if(|_| true), Entry::EMPTY);
        train.join(entry(7));
        assert_eq!(train.leave_if(|_| false), Entry::EMPTY);
        assert_eq!(train.leave_if(|_| true), entry(7));
        assert_eq!(train.leave_if(|_| true), Entry::EMPTY);
    }
}
