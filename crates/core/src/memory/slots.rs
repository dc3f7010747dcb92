//! Slots of the arena, as the table of one shard sees them.
//!
//! A slot holds one [`TableEntry`]: four words, each an atomic. The tag and the state are opaque here.

use std::hint::select_unpredictable;
use std::sync::atomic::{AtomicU64, Ordering};

use super::arena::Arena;
use super::layout::{LINES_PER_ROW, SLOTS_PER_ROW, SMALL_ROW, ShardRow, WORDS_PER_LINE, WORDS_PER_SLOT};
use super::pages;

/// One key with its state. Half a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableEntry {
    /// The key's fingerprint; zero if the slot is empty.
    pub(super) key: u64,
    /// Bits that the table does not interpret.
    pub(super) tag: u64,
    /// The key's state, which the table does not interpret either.
    pub(super) state: [u64; 2],
}

impl TableEntry {
    pub(super) const EMPTY: TableEntry = TableEntry { key: 0, tag: 0, state: [0; 2] };
    pub(super) const BYTES: usize = size_of::<TableEntry>();

    pub(super) const fn is_empty(&self) -> bool {
        self.key == 0
    }
}

const _: () = assert!(TableEntry::BYTES == WORDS_PER_SLOT * size_of::<u64>());

/// All slots of one shard, in the small row and in the others.
#[derive(Clone, Copy)]
pub(super) struct ShardSlots<'a> {
    arena: &'a Arena,
    shard: usize,
}

/// The slots of one shard from the first row of its table on.
#[derive(Clone, Copy)]
pub(super) struct TableSlots<'a> {
    arena: &'a Arena,
    shard: usize,
    first_row: usize,
}

/// Two slots in one cache line.
#[derive(Clone, Copy)]
pub(super) struct CacheLine<'a> {
    words: &'a [AtomicU64; WORDS_PER_LINE],
}

/// Eight slots in four cache lines, which are searched for a key without a loop.
#[derive(Clone, Copy)]
pub(super) struct ProbeWindow<'a> {
    row: &'a ShardRow,
    /// The index of the first of the four lines.
    first: usize,
}

const LINES_PER_WINDOW: usize = 4;

/// One slot.
#[derive(Clone, Copy)]
pub(super) struct Slot<'a> {
    words: &'a [AtomicU64; WORDS_PER_SLOT],
}

impl<'a> ShardSlots<'a> {
    pub(super) const fn new(arena: &'a Arena, shard: usize) -> ShardSlots<'a> {
        ShardSlots { arena, shard }
    }

    /// The number of the shard.
    pub(super) const fn shard(self) -> usize {
        self.shard
    }

    /// The slots of a table that is in the small row, or has moved out of it.
    #[inline]
    pub(super) const fn of_table(self, is_in_small_row: bool) -> TableSlots<'a> {
        let first_row = if is_in_small_row { SMALL_ROW } else { SMALL_ROW + 1 };
        TableSlots { arena: self.arena, shard: self.shard, first_row }
    }

    /// Records that the table uses `after` slots instead of `before`.
    pub(super) fn resize(self, before: usize, after: usize) {
        self.arena.resize(before, after);
    }

    /// Announces that the table will soon use `slots` slots.
    pub(super) fn reserve_ahead(self, slots: usize) {
        self.arena.reserve_ahead(slots);
    }
}

impl<'a> TableSlots<'a> {
    /// The line that begins with slot `index`, an even number; `None` if no table has reached it yet.
    #[inline]
    pub(super) fn line(self, index: usize) -> Option<CacheLine<'a>> {
        let row = self.arena.shard_row(self.first_row + index / SLOTS_PER_ROW, self.shard)?;
        Some(CacheLine { words: &row[self.line_in_row(index)] })
    }

    /// The line of its row that contains a slot. Small tables use only the first lines of their row, so each shard counts
    /// from another line: otherwise they would compete for the same few sets of the processor's cache.
    #[inline]
    const fn line_in_row(self, index: usize) -> usize {
        (index / 2 + self.shard * 4) % LINES_PER_ROW
    }

    /// The window that begins with slot `index`, an even number. A key that probes from there is nearly always in it. At the end
    /// of a row the window wraps around to the beginning of the same row.
    #[inline(always)]
    pub(super) fn probe_window(self, index: usize) -> Option<ProbeWindow<'a>> {
        let row = self.arena.shard_row(self.first_row + index / SLOTS_PER_ROW, self.shard)?;
        Some(ProbeWindow { row, first: self.line_in_row(index) })
    }

    /// All slots that any table has reached, in order. Each row is prefetched while the previous one is read.
    pub(super) fn in_order(self) -> impl Iterator<Item = Slot<'a>> {
        let window = move |row| self.probe_window(row * SLOTS_PER_ROW);
        (0..).map_while(move |row| Some((window(row)?, window(row + 1)))).flat_map(|(row, next)| {
            (0..LINES_PER_ROW).flat_map(move |index| {
                if let Some(next) = next {
                    pages::prefetch(&next.line(index).words[0]);
                }
                let line = row.line(index);
                [line.slot(0), line.slot(1)]
            })
        })
    }

    #[inline]
    pub(super) fn slot(self, index: usize) -> Option<Slot<'a>> {
        Some(self.line(index & !1)?.slot(index % 2))
    }

    #[inline]
    pub(super) fn get(self, index: usize) -> TableEntry {
        self.slot(index).map_or(TableEntry::EMPTY, Slot::entry)
    }

    /// Writes to a slot that the table [uses](ShardSlots::resize).
    pub(super) fn set(self, index: usize, entry: TableEntry) {
        if let Some(slot) = self.slot(index) {
            slot.set(entry);
        }
    }
}

impl<'a> CacheLine<'a> {
    /// The keys of the two slots; zero for an empty one.
    #[inline]
    pub(super) fn keys(self) -> [u64; 2] {
        [0, WORDS_PER_SLOT].map(|word| self.words[word].load(Ordering::Relaxed))
    }

    /// The first slot or the second.
    #[inline]
    pub(super) fn slot(self, index: usize) -> Slot<'a> {
        let (first, second) = self.words.split_at(WORDS_PER_SLOT);
        let half = if index == 0 { first } else { second };
        match half.first_chunk() {
            Some(words) => Slot { words },
            None => unreachable!("half of a line is a slot"),
        }
    }
}

impl<'a> ProbeWindow<'a> {
    /// The slot that holds `key`, or any slot if none does. Five keys of six are in the first two lines, so most searches
    /// do not wait for the other two lines to arrive from memory.
    #[inline(always)]
    pub(super) fn slot_of(self, key: u64) -> Slot<'a> {
        let found = self.slot_in_two(0, key);
        if found.key() == key { found } else { self.slot_in_two(2, key) }
    }

    /// Like `slot_of`, for two lines. Branch-free: which slot holds the key cannot be predicted, and a branch misprediction
    /// costs more than all four comparisons.
    #[inline(always)]
    fn slot_in_two(self, first: usize, key: u64) -> Slot<'a> {
        let [a, b] = [self.line(first), self.line(first + 1)];
        [a.slot(1), b.slot(0), b.slot(1)]
            .into_iter()
            .fold(a.slot(0), |found, slot| select_unpredictable(slot.key() == key, slot, found))
    }

    #[inline(always)]
    fn line(self, index: usize) -> CacheLine<'a> {
        CacheLine { words: &self.row[(self.first + index) % LINES_PER_ROW] }
    }

    /// Prefetches the lines.
    #[inline(always)]
    pub(super) fn prefetch(self) {
        for index in 0..LINES_PER_WINDOW {
            pages::prefetch(&self.line(index).words[0]);
        }
    }
}

impl<'a> Slot<'a> {
    #[inline]
    pub(super) const fn new(words: &'a [AtomicU64; WORDS_PER_SLOT]) -> Slot<'a> {
        Slot { words }
    }

    #[inline]
    fn load(self, word: usize) -> u64 {
        self.words[word].load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn key(self) -> u64 {
        self.load(0)
    }

    #[inline]
    pub(super) fn tag(self) -> u64 {
        self.load(1)
    }

    #[inline]
    pub(super) fn state(self) -> [u64; 2] {
        [self.load(2), self.load(3)]
    }

    #[inline]
    pub(super) fn entry(self) -> TableEntry {
        TableEntry { key: self.key(), tag: self.tag(), state: self.state() }
    }

    #[inline]
    pub(super) fn set(self, entry: TableEntry) {
        self.words[0].store(entry.key, Ordering::Relaxed);
        self.words[1].store(entry.tag, Ordering::Relaxed);
        self.set_state(entry.state);
    }

    /// Writes the state if it differs. A line that is not written to stays in the caches of the cores that read it.
    #[inline]
    pub(super) fn update_state(self, state: [u64; 2]) {
        if self.state() != state {
            self.set_state(state);
        }
    }

    #[inline]
    pub(super) fn set_state(self, state: [u64; 2]) {
        self.words[2].store(state[0], Ordering::Relaxed);
        self.words[3].store(state[1], Ordering::Relaxed);
    }
}
