//! One shard's keys, in the order of their fingerprints.
//!
//! Open addressing where each entry stands at, or shortly behind, the place that its fingerprint points to, and entries
//! never stand out of order. A look-up, found or not, ends at the first fingerprint that is not smaller, usually in the
//! cache line where it began; growing is one pass from an old sorted array to a new one. The table runs nearly full and
//! grows by a sixth, not twofold: that is what keeps a key at about forty bytes.

use super::fingerprint::Fingerprint;
use crate::limit::Cell;

/// One key. Half a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(super) struct Entry {
    /// Zero if there is no key here.
    key: u64,
    /// The shape of the limit that wrote the cell.
    pub(super) shape: u64,
    /// The key's state, or where to find it if it is a large one.
    pub(super) cell: Cell,
}

impl Entry {
    const EMPTY: Entry = Entry { key: 0, shape: 0, cell: [0; 2] };

    const fn is_empty(&self) -> bool {
        self.key == 0
    }
}

#[derive(Default)]
pub(super) struct Table {
    /// The places that fingerprints point to, and some more for entries that are pushed past the last of them. The very
    /// last slot is always empty.
    slots: Vec<Entry>,
    places: u32,
    len: u32,
}

const LEAST_PLACES: u32 = 6;

impl Table {
    pub(super) const fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) const fn slots(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Entry>()
    }

    /// The entry in slot `index`, if there is one.
    pub(super) fn get(&self, index: usize) -> Option<&Entry> {
        self.slots.get(index).filter(|entry| !entry.is_empty())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.slots.iter().filter(|entry| !entry.is_empty())
    }

    #[inline]
    pub(super) fn entry_mut(&mut self, index: usize) -> &mut Entry {
        &mut self.slots[index]
    }

    /// Where a fingerprint points to. Smaller fingerprints never point further.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the result is below `places`")]
    fn place(key: u64, places: u32) -> usize {
        ((u128::from(key) * u128::from(places)) >> 64) as usize
    }

    /// The slot that holds the key, or the one where it belongs.
    #[inline]
    pub(super) fn find(&self, fingerprint: Fingerprint) -> Result<usize, usize> {
        let mut index = Table::place(fingerprint.key, self.places);
        while let Some(entry) = self.slots.get(index) {
            if entry.key == fingerprint.key {
                return Ok(index);
            }
            if entry.is_empty() || entry.key > fingerprint.key {
                break;
            }
            index += 1;
        }
        Err(index)
    }

    /// Adds a key that [`Table::find`] did not find.
    pub(super) fn insert(&mut self, fingerprint: Fingerprint, shape: u64, cell: Cell) {
        if self.len + 1 > self.places - self.places.div_ceil(7) {
            self.resize(places_for(self.len + 1));
        }
        let entry = Entry { key: fingerprint.key, shape, cell };
        while !self.try_insert(fingerprint, entry) {
            self.resize(self.places + self.places / 8 + 1);
        }
        self.len += 1;
    }

    /// Puts `entry` in order and moves those behind it along, unless that would take the last slot.
    fn try_insert(&mut self, fingerprint: Fingerprint, entry: Entry) -> bool {
        let (Ok(index) | Err(index)) = self.find(fingerprint);
        let Some(run) = self.slots[index..].iter().position(Entry::is_empty) else { return false };
        if index + run + 1 >= self.slots.len() {
            return false;
        }
        self.slots.copy_within(index..index + run, index + 1);
        self.slots[index] = entry;
        true
    }

    /// Removes the entry in slot `index`; those that it had pushed along move back.
    pub(super) fn remove(&mut self, index: usize) {
        let behind = &self.slots[index + 1..];
        let stays = |(offset, entry): (usize, &Entry)| {
            entry.is_empty() || Table::place(entry.key, self.places) == index + 1 + offset
        };
        let run = behind.iter().enumerate().position(stays).unwrap_or(behind.len());
        self.slots.copy_within(index + 1..=index + run, index);
        self.slots[index + run] = Entry::EMPTY;
        self.len -= 1;
    }

    /// Gives back memory if most of it is empty.
    pub(super) fn shrink(&mut self) {
        if self.places > 4 * LEAST_PLACES && self.len < self.places / 4 {
            self.resize(places_for(self.len));
        }
    }

    fn resize(&mut self, places: u32) {
        let mut places = places;
        while !self.try_resize(places) {
            places += places / 8 + 1;
        }
    }

    fn try_resize(&mut self, places: u32) -> bool {
        let room_behind = 8 + places as usize / 64;
        let mut slots = vec![Entry::EMPTY; places as usize + room_behind];
        let mut next = 0;
        for entry in self.iter() {
            next = Table::place(entry.key, places).max(next);
            if next + 1 >= slots.len() {
                return false;
            }
            slots[next] = *entry;
            next += 1;
        }
        self.slots = slots;
        self.places = places;
        true
    }
}

/// So many places that `len` keys fill three quarters of them.
fn places_for(len: u32) -> u32 {
    (len + len / 3 + 1).max(LEAST_PLACES)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn fingerprint(high: u64) -> Fingerprint {
        Fingerprint { key: high.max(1), shard: 0 }
    }

    proptest! {
        #[test]
        fn a_table_holds_what_a_map_holds(steps in prop::collection::vec((any::<bool>(), 0_u64..200, any::<bool>()), 1..600)) {
            let mut table = Table::default();
            let mut model = BTreeMap::new();
            for (number, (add, key, crowded)) in steps.into_iter().enumerate() {
                // Some keys spread out, some crowd at the far end, where entries are pushed past the last place.
                let high = if crowded { u64::MAX - key } else { key.wrapping_mul(0x9e37_79b9_7f4a_7c15) }.max(1);
                let number = number as u64;
                match (table.find(fingerprint(high)), add) {
                    (Ok(index), true) => { table.entry_mut(index).cell = [number, 0]; model.insert(high, number); }
                    (Err(_), true) => {
                        table.insert(fingerprint(high), 0, [number, 0]);
                        prop_assert!(model.insert(high, number).is_none());
                    }
                    (Ok(index), false) => { table.remove(index); prop_assert!(model.remove(&high).is_some()); table.shrink(); }
                    (Err(_), false) => prop_assert!(!model.contains_key(&high)),
                }
                prop_assert_eq!(table.len(), model.len());
                let held: Vec<_> = table.iter().map(|entry| (entry.key, entry.cell[0])).collect();
                let wanted: Vec<_> = model.iter().map(|(&high, &number)| (high, number)).collect();
                prop_assert_eq!(held, wanted);
                for &high in model.keys() {
                    prop_assert!(table.find(fingerprint(high)).is_ok());
                }
            }
        }
    }

    #[test]
    fn a_key_takes_about_forty_bytes_whatever_the_number() {
        let mut table = Table::default();
        let mut high = 1_u64;
        let mut worst = 0;
        for len in 1..20_000 {
            high = high.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            table.insert(fingerprint(high), 0, [0; 2]);
            if len > 1_000 {
                worst = worst.max(table.bytes() / len);
            }
        }
        assert!(worst <= 46, "{worst} bytes a key");
    }
}
