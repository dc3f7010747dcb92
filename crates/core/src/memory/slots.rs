//! The slots that keys lie in, as the table of one shard sees them.

use std::hint::select_unpredictable;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::arena::{Arena, LINES_A_ROW, SLOTS_A_ROW, SMALL_ROW, ShardRow};
use super::pages;
use super::quota::{AccountId, Quota};
use super::shared::{Counts, SharedData};
use crate::limit::{Cell, Limit, Shape};

/// One key. Half a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Zero if there is no key here.
    pub(super) key: u64,
    pub(super) tag: Tag,
    /// The key's state, or where to find it if it is a large one.
    pub(super) cell: Cell,
}

/// The shape of the limit that wrote an entry's cell, and the account that the entry counts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(u64);

impl Tag {
    pub(super) const NONE: Tag = Tag(0);

    pub(super) fn new(limit: &Limit, account: AccountId) -> Tag {
        Tag(u64::from(account.0) << Shape::BITS | limit.shape().get())
    }

    #[inline]
    pub(super) const fn shape(self) -> u64 {
        self.0 & ((1 << Shape::BITS) - 1)
    }

    pub(super) const fn account(self) -> AccountId {
        AccountId((self.0 >> Shape::BITS) as u16)
    }
}

impl Entry {
    pub(super) const EMPTY: Entry = Entry { key: 0, tag: Tag::NONE, cell: [0; 2] };
    pub(super) const BYTES: usize = size_of::<Entry>();

    pub(super) const fn is_empty(&self) -> bool {
        self.key == 0
    }
}

pub(super) const WORDS_A_SLOT: usize = Entry::BYTES / size_of::<u64>();
pub(super) const WORDS_A_LINE: usize = 2 * WORDS_A_SLOT;

/// The slots of one shard.
#[derive(Clone, Copy)]
pub(super) struct Slots<'a> {
    arena: &'a Arc<Arena>,
    shard: usize,
    /// The row of the first slot.
    first_row: usize,
}

/// Two slots: a cache line.
#[derive(Clone, Copy)]
pub(super) struct Line<'a> {
    words: &'a [AtomicU64; WORDS_A_LINE],
}

/// Eight slots: four cache lines.
#[derive(Clone, Copy)]
pub(super) struct ProbeWindow<'a> {
    part: &'a ShardRow,
    /// The first of the four.
    first: usize,
}

const LINES_NEAR: usize = 4;

/// A slot.
#[derive(Clone, Copy)]
pub(super) struct Slot<'a> {
    words: &'a [AtomicU64; WORDS_A_SLOT],
}

impl<'a> Slots<'a> {
    /// The slots of a table in the small row.
    pub(super) const fn of(arena: &'a Arc<Arena>, shard: usize) -> Slots<'a> {
        Slots { arena, shard, first_row: SMALL_ROW }
    }

    /// The slots of a table that is in the small row, or has moved out of it.
    #[inline]
    pub(super) const fn in_small_row(self, is_in_small_row: bool) -> Slots<'a> {
        Slots { first_row: if is_in_small_row { SMALL_ROW } else { SMALL_ROW + 1 }, ..self }
    }

    pub(super) fn shared_data(self) -> &'a SharedData {
        self.arena.shared_data()
    }

    /// What all rules of the store hold.
    pub(super) fn quota(self) -> &'a Quota {
        self.shared_data().quota()
    }

    /// What has happened in this shard, and in some others.
    pub(super) fn counts(self) -> &'a Counts {
        self.shared_data().counts(self.shard)
    }

    /// Says that the table will use `after` slots instead of `before`.
    pub(super) fn resize(self, before: usize, after: usize) {
        Arena::resize(self.arena, before, after);
    }

    /// Says that the table will soon use `slots` slots.
    pub(super) fn reserve_ahead(self, slots: usize) {
        Arena::reserve_ahead(self.arena, slots);
    }

    /// The line that begins with slot `index`, an even number; `None` if no table has reached it yet.
    #[inline]
    pub(super) fn line(self, index: usize) -> Option<Line<'a>> {
        let part = self.arena.part(self.first_row + index / SLOTS_A_ROW, self.shard)?;
        Some(Line { words: &part[self.line_in_part(index)] })
    }

    /// In which line of its part a slot is. Small tables only use the first lines of their part, so each shard counts from
    /// another one: otherwise they would all fall on the same few sets of the processor's cache.
    #[inline]
    const fn line_in_part(self, index: usize) -> usize {
        (index / 2 + self.shard * 4) % LINES_A_ROW
    }

    /// The slots from `index` on, an even number, that a key which points there nearly always is in. Where a row ends, others
    /// of the same row take the place of those that follow.
    #[inline(always)]
    pub(super) fn near(self, index: usize) -> Option<ProbeWindow<'a>> {
        let part = self.arena.part(self.first_row + index / SLOTS_A_ROW, self.shard)?;
        Some(ProbeWindow { part, first: self.line_in_part(index) })
    }

    /// All slots that any table has reached, in order. The processor fetches each row while the one before is gone through.
    pub(super) fn in_order(self) -> impl Iterator<Item = Slot<'a>> {
        let part = move |row| self.near(row * SLOTS_A_ROW);
        (0..).map_while(move |row| Some((part(row)?, part(row + 1)))).flat_map(|(part, next)| {
            (0..LINES_A_ROW).flat_map(move |index| {
                if let Some(next) = next {
                    pages::fetch(&next.line(index).words[0]);
                }
                let line = part.line(index);
                [line.slot(0), line.slot(1)]
            })
        })
    }

    #[inline]
    pub(super) fn slot(self, index: usize) -> Option<Slot<'a>> {
        Some(self.line(index & !1)?.slot(index % 2))
    }

    #[inline]
    pub(super) fn get(self, index: usize) -> Entry {
        self.slot(index).map_or(Entry::EMPTY, Slot::entry)
    }

    /// Writes to a slot that the table [uses](Slots::resize).
    pub(super) fn set(self, index: usize, entry: Entry) {
        if let Some(slot) = self.slot(index) {
            slot.set(entry);
        }
    }
}

impl<'a> Line<'a> {
    /// The keys of its slots; zero where there are none.
    #[inline]
    pub(super) fn keys(self) -> [u64; 2] {
        [0, WORDS_A_SLOT].map(|word| self.words[word].load(Ordering::Relaxed))
    }

    /// The first of its slots, or the second.
    #[inline]
    pub(super) fn slot(self, index: usize) -> Slot<'a> {
        let (first, second) = self.words.split_at(WORDS_A_SLOT);
        let half = if index == 0 { first } else { second };
        match half.first_chunk() {
            Some(words) => Slot { words },
            None => unreachable!("half of a line is a slot"),
        }
    }
}

impl<'a> ProbeWindow<'a> {
    /// The slot that holds `key` if any of them does, or else any. Five keys of six are in the first two lines: the others need
    /// not have come from memory for these.
    #[inline(always)]
    pub(super) fn slot_of(self, key: u64) -> Slot<'a> {
        let found = self.slot_in_two(0, key);
        if found.key() == key { found } else { self.slot_in_two(2, key) }
    }

    /// The same in two lines. Without a branch, for there is nothing to go by in guessing.
    #[inline(always)]
    fn slot_in_two(self, first: usize, key: u64) -> Slot<'a> {
        let [a, b] = [self.line(first), self.line(first + 1)];
        [a.slot(1), b.slot(0), b.slot(1)]
            .into_iter()
            .fold(a.slot(0), |found, slot| select_unpredictable(slot.key() == key, slot, found))
    }

    #[inline(always)]
    fn line(self, index: usize) -> Line<'a> {
        Line { words: &self.part[(self.first + index) % LINES_A_ROW] }
    }

    /// Has the processor fetch its lines, and does not wait for them.
    #[inline(always)]
    pub(super) fn fetch(self) {
        for index in 0..LINES_NEAR {
            pages::fetch(&self.line(index).words[0]);
        }
    }
}

impl<'a> Slot<'a> {
    #[inline]
    pub(super) const fn new(words: &'a [AtomicU64; WORDS_A_SLOT]) -> Slot<'a> {
        Slot { words }
    }

    #[inline]
    pub(super) fn key(self) -> u64 {
        self.load(0)
    }

    #[inline]
    fn load(self, word: usize) -> u64 {
        self.words[word].load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn shape(self) -> u64 {
        Tag(self.load(1)).shape()
    }

    /// Whether its state is packed and was written under a limit of this shape.
    #[inline]
    pub(super) fn is_packed_under(self, limit: &Limit) -> bool {
        self.shape() == limit.shape().get() && limit.packs()
    }

    #[inline]
    pub(super) fn cell(self) -> Cell {
        [self.load(2), self.load(3)]
    }

    #[inline]
    pub(super) fn entry(self) -> Entry {
        Entry { key: self.load(0), tag: Tag(self.load(1)), cell: [self.load(2), self.load(3)] }
    }

    #[inline]
    pub(super) fn set(self, entry: Entry) {
        self.words[0].store(entry.key, Ordering::Relaxed);
        self.words[1].store(entry.tag.0, Ordering::Relaxed);
        self.set_cell(entry.cell);
    }

    /// Writes only what is new: a line that is not written to stays with whoever reads it.
    #[inline]
    pub(super) fn change_cell(self, cell: Cell) {
        if self.cell() != cell {
            self.set_cell(cell);
        }
    }

    #[inline]
    pub(super) fn set_cell(self, cell: Cell) {
        self.words[2].store(cell[0], Ordering::Relaxed);
        self.words[3].store(cell[1], Ordering::Relaxed);
    }
}
