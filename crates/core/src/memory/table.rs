//! A table of keys in one array, ordered by fingerprint.
//!
//! The *place* of a fingerprint is the cache line whose position is proportional to the fingerprint. Entries are in order,
//! each in its place or displaced behind it by smaller ones. A search therefore ends at the first fingerprint that is not
//! smaller, usually in the cache line where it began, and growing is one pass over the array. The table runs nearly full
//! and grows by a tenth instead of twofold, which keeps a key below 44 bytes.

use super::displaced::DisplacedEntries;
use super::layout::SMALL_ROW_SLOTS;
use super::slots::{CacheLine, ProbeWindow, ShardSlots, Slot, TableEntry, TableSlots};

/// The number of keys in a table, and of places over which they are spread. The slots themselves are passed in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    places: u32,
    len: u32,
}

const LEAST_PLACES: u32 = 6;
/// Maximum number of places of a table in the small row.
const SMALL_ROW_PLACES: u32 = 56;
const _: () =
    assert!(slots_for(SMALL_ROW_PLACES) <= SMALL_ROW_SLOTS && slots_for(SMALL_ROW_PLACES + 2) > SMALL_ROW_SLOTS);

impl Table {
    pub(super) const fn new(places: u32, len: u32) -> Table {
        Table { places, len }
    }

    pub(super) const fn places(self) -> u32 {
        self.places
    }

    pub(super) const fn len_u32(self) -> u32 {
        self.len
    }

    pub(super) const fn len(self) -> usize {
        self.len as usize
    }

    /// The number of slots: one for each place, and some more for entries that are displaced behind the last one. The very last
    /// slot is always empty.
    pub(super) const fn slots(self) -> usize {
        slots_for(self.places)
    }

    const fn is_in_small_row(self) -> bool {
        self.places <= SMALL_ROW_PLACES
    }

    /// The slots of the table among all slots of its shard.
    #[inline]
    const fn within(self, slots: ShardSlots<'_>) -> TableSlots<'_> {
        slots.of_table(self.is_in_small_row())
    }

    /// The entry in a slot.
    pub(super) fn get(self, slots: ShardSlots<'_>, index: usize) -> TableEntry {
        self.within(slots).get(index)
    }

    pub(super) fn iter(self, slots: ShardSlots<'_>) -> impl Iterator<Item = TableEntry> {
        self.within(slots).in_order().take(self.slots()).map(Slot::entry).filter(|entry| !entry.is_empty())
    }

    /// The place of a fingerprint: the first slot of a cache line. A smaller fingerprint never has a later place.
    #[inline]
    fn place(key: u64, places: u32) -> usize {
        Table::place_of_upper((key >> 32) as u32, places)
    }

    /// The place of a fingerprint by its upper half, which alone determines it.
    #[inline]
    fn place_of_upper(upper: u32, places: u32) -> usize {
        2 * ((u64::from(upper) * u64::from(places / 2)) >> 32) as usize
    }

    /// The window in which a key with this upper half is nearly always found; `None` if no table has reached it.
    #[inline(always)]
    pub(super) fn probe_window(self, slots: ShardSlots<'_>, upper: u32) -> Option<ProbeWindow<'_>> {
        self.within(slots).probe_window(Table::place_of_upper(upper, self.places))
    }

    /// Prefetches some slots from `index` on.
    pub(super) fn prefetch(self, slots: ShardSlots<'_>, index: usize) {
        if index < self.slots()
            && let Some(window) = self.within(slots).probe_window(index & !1)
        {
            window.prefetch();
        }
    }

    /// The slot that holds the key.
    pub(super) fn find(self, slots: ShardSlots<'_>, key: u64) -> Option<Slot<'_>> {
        if self.len == 0 {
            return None;
        }
        self.within(slots).slot(self.search(slots, key).ok()?)
    }

    /// The index of the slot that holds the key, or of the slot where it belongs.
    pub(super) fn search(self, slots: ShardSlots<'_>, key: u64) -> Result<usize, usize> {
        let slots = self.within(slots);
        let mut index = Table::place(key, self.places);
        loop {
            let keys = slots.line(index).map_or([0; 2], CacheLine::keys);
            let smaller = smaller_than(key, keys);
            index += smaller;
            if let Some(&other) = keys.get(smaller) {
                return if other == key { Ok(index) } else { Err(index) };
            }
        }
    }

    /// Adds a key that is not present yet.
    pub(super) fn insert(&mut self, slots: ShardSlots<'_>, entry: TableEntry) {
        let most = self.places - self.places.div_ceil(5);
        if self.len + 1 > most {
            self.grow(slots, places_for(self.len + 1));
        } else if self.len + self.len / 32 > most {
            slots.reserve_ahead(slots_for(places_for(most)));
        }
        while !self.try_insert(slots, entry) {
            self.grow(slots, more_than(self.places));
        }
        self.len += 1;
    }

    /// Inserts `entry` in order and displaces the entries behind it by one slot, unless that would take the last slot.
    fn try_insert(self, slots: ShardSlots<'_>, entry: TableEntry) -> bool {
        let (Ok(index) | Err(index)) = self.search(slots, entry.key);
        let slots = self.within(slots);
        let Some(free) = (index..self.slots() - 1).find(|&index| slots.get(index).is_empty()) else { return false };
        for to in (index + 1..=free).rev() {
            slots.set(to, slots.get(to - 1));
        }
        slots.set(index, entry);
        true
    }

    /// Removes the entry in slot `index`. The entries that it had displaced move back.
    pub(super) fn remove(&mut self, slots: ShardSlots<'_>, mut index: usize) {
        let slots = self.within(slots);
        loop {
            let next = slots.get(index + 1);
            if next.is_empty() || Table::place(next.key, self.places) > index {
                break;
            }
            slots.set(index, next);
            index += 1;
        }
        slots.set(index, TableEntry::EMPTY);
        self.len -= 1;
    }

    /// Shrinks a table that is mostly empty.
    pub(super) fn shrink(&mut self, slots: ShardSlots<'_>) {
        let (before, places) = (self.slots(), places_for(self.len));
        if self.places <= 4 * LEAST_PLACES || self.len >= self.places / 4 {
            return;
        }
        if end_in(places, self.iter(slots)) >= slots_for(places) {
            return;
        }
        if Table::new(places, self.len).is_in_small_row() {
            return self.rebuild(slots, places);
        }
        // With fewer places, every entry stays in its slot or moves forward, so one pass is enough.
        let within = self.within(slots);
        let mut next = 0;
        for slot in within.in_order().take(before) {
            let entry = slot.entry();
            if !entry.is_empty() {
                next = after(next, &entry, places);
                slot.set(TableEntry::EMPTY);
                within.set(next - 1, entry);
            }
        }
        self.places = places;
        slots.resize(before, self.slots());
    }

    fn grow(&mut self, slots: ShardSlots<'_>, places: u32) {
        if self.is_in_small_row() {
            return self.rebuild(slots, places);
        }
        slots.resize(self.slots(), slots_for(places));
        let mut late = self.spread(slots, places);
        while !late.is_empty() {
            // The entries crowd at the end. Further slots hold the late entries in order until all are spread over more
            // places.
            let end = self.slots();
            let mut places = more_than(self.places);
            while slots_for(places) < end + late.len() {
                places = more_than(places);
            }
            slots.resize(end, slots_for(places));
            (end - 1..).zip(late).for_each(|(index, entry)| self.within(slots).set(index, entry));
            late = self.spread(slots, places);
        }
    }

    /// Takes out all entries and inserts them into a table of `places` places, or of more if they crowd. Used within the
    /// small row, into it and out of it, where there are few entries.
    fn rebuild(&mut self, slots: ShardSlots<'_>, mut places: u32) {
        let entries: Vec<_> = self.iter(slots).collect();
        self.within(slots).in_order().take(self.slots()).for_each(|slot| slot.set(TableEntry::EMPTY));
        while end_in(places, entries.iter().copied()) >= slots_for(places) {
            places = more_than(places);
        }
        slots.resize(self.slots(), slots_for(places));
        self.places = places;
        let mut next = 0;
        for entry in entries {
            next = after(next, &entry, places);
            self.within(slots).set(next - 1, entry);
        }
    }

    /// Spreads the entries over more places in one pass from the first slot to the last: each entry is carried along until
    /// its new place. Returns the entries for which there was no slot.
    fn spread(&mut self, slots: ShardSlots<'_>, places: u32) -> Vec<TableEntry> {
        let mut taken = DisplacedEntries::with_capacity((places - self.places) as usize);
        self.places = places;
        for (index, slot) in self.within(slots).in_order().take(self.slots() - 1).enumerate() {
            taken.push(slot.entry());
            slot.set(taken.pop_if(|first| Table::place(first.key, places) <= index));
        }
        taken.remaining()
    }
}

/// The number of keys in a line that come before `key`. An empty slot counts as larger than any key. Branch-free: the result
/// cannot be predicted.
#[inline]
fn smaller_than(key: u64, keys: [u64; 2]) -> usize {
    keys.map(|other| usize::from(other.wrapping_sub(1) < key - 1)).iter().sum()
}

/// The slot behind that of an entry, if the entries before it end before slot `next`.
fn after(next: usize, entry: &TableEntry, places: u32) -> usize {
    Table::place(entry.key, places).max(next) + 1
}

/// The slot behind the last entry, if the entries were spread over this many places.
fn end_in(places: u32, entries: impl Iterator<Item = TableEntry>) -> usize {
    entries.fold(0, |next, entry| after(next, &entry, places))
}

/// The number of places of which `len` keys fill three quarters.
fn places_for(len: u32) -> u32 {
    (len + (len * 11).div_ceil(32) + 1).next_multiple_of(2).max(LEAST_PLACES)
}

/// The next larger number of places, for keys that crowd.
fn more_than(places: u32) -> u32 {
    (places + places / 8 + 2).next_multiple_of(2)
}

const fn slots_for(places: u32) -> usize {
    if places == 0 { 0 } else { places as usize + 8 + places as usize / 64 }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::super::arena::Arena;
    use super::*;

    fn entry(key: u64, number: u64) -> TableEntry {
        TableEntry { key, tag: 0, state: [number, 0] }
    }

    proptest! {
        #[test]
        fn a_table_holds_what_a_map_holds(
            steps in prop::collection::vec((0_u8..8, 0_u64..400, any::<bool>()), 1..1500),
            shards in 2_usize..9,
            adding in 1_u8..8,
        ) {
            let arena = Arena::new(shards);
            // A second shard, whose slots must not change.
            let neighbour = ShardSlots::new(&arena, 0);
            let mut other = Table::new(0, 0);
            (1..100).for_each(|key| other.insert(neighbour, entry(key << 56, key)));
            let slots = ShardSlots::new(&arena, shards - 1);
            let mut table = Table::new(0, 0);
            let mut model = BTreeMap::new();
            let last = steps.len() as u64;
            for (number, (kind, key, crowded)) in steps.into_iter().enumerate() {
                // Some keys spread out. Others crowd at the far end, where entries are displaced beyond the last place.
                let key = if crowded { u64::MAX - key } else { key.wrapping_mul(0x9e37_79b9_7f4a_7c15) }.max(1);
                let number = number as u64;
                let found = table.find(slots, key);
                match (found, kind < adding) {
                    (Some(slot), true) => { slot.set_state([number, 0]); model.insert(key, number); }
                    (None, true) => {
                        table.insert(slots, entry(key, number));
                        prop_assert!(model.insert(key, number).is_none());
                    }
                    (Some(_), false) => {
                        table.remove(slots, table.search(slots, key).unwrap());
                        prop_assert!(model.remove(&key).is_some());
                        table.shrink(slots);
                    }
                    (None, false) => prop_assert!(!model.contains_key(&key)),
                }
                prop_assert_eq!(table.len(), model.len());
                // Reading the whole table after each step would make a case quadratic in its steps.
                if number.is_multiple_of(16) || number + 1 == last {
                    let held: Vec<_> = table.iter(slots).map(|entry| (entry.key, entry.state[0])).collect();
                    let wanted: Vec<_> = model.iter().map(|(&key, &number)| (key, number)).collect();
                    prop_assert_eq!(held, wanted);
                    for &key in model.keys() {
                        prop_assert_eq!(table.find(slots, key).map(|slot| slot.entry().key), Some(key));
                    }
                }
            }
            let held: Vec<_> = other.iter(neighbour).map(|entry| (entry.key >> 56, entry.state[0])).collect();
            prop_assert_eq!(held, (1..100).map(|key| (key, key)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_key_takes_about_forty_bytes_whatever_the_number() {
        let arena = Arena::new(1);
        let slots = ShardSlots::new(&arena, 0);
        let mut table = Table::new(0, 0);
        let mut key = 1_u64;
        let mut worst = 0;
        for len in 1..20_000 {
            key = key.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            table.insert(slots, entry(key, 0));
            if len > 1_000 {
                worst = worst.max(table.slots() * TableEntry::BYTES / len);
            }
        }
        assert!(worst <= 44, "{worst} bytes a key");
    }
}
