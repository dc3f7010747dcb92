//! The arena that holds the tables of all shards.
//!
//! The hash spreads keys evenly, so all shards grow at nearly the same pace. Memory is therefore cut into rows: each row
//! holds the next few slots of every shard. No table ever moves to a larger piece of memory and leaves a smaller one
//! behind, so nothing is lost between pieces, and a row is large enough to lie in huge pages, where reading a random slot
//! takes the processor half the time: it need not look up where the page is.
//!
//! Preparing a huge page takes milliseconds, and the first keys do not wait that long. So tables begin in the first row, which
//! lies in small pages (the *small row*), and move out of it when they outgrow it.

use std::array;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::pages::{self, Fresh};
use super::shared::SharedData;
use super::slots::WORDS_A_LINE;

/// Of each shard in each row.
pub(super) const SLOTS_A_ROW: usize = 64;
pub(super) const LINES_A_ROW: usize = SLOTS_A_ROW / 2;
const WORDS_A_SHARD_ROW: usize = LINES_A_ROW * WORDS_A_LINE;

/// The part of a row that belongs to one shard: two kilobytes.
pub(super) type ShardRow = [[AtomicU64; WORDS_A_LINE]; LINES_A_ROW];

/// The row that small tables lie in.
pub(super) const SMALL_ROW: usize = 0;
/// The most slots of a table in the small row.
pub(super) const SMALL_ROW_SLOTS: usize = SLOTS_A_ROW;

/// The rows that a table of so many slots lies in.
const fn rows_for(slots: usize) -> Range<usize> {
    if slots <= SMALL_ROW_SLOTS {
        SMALL_ROW..SMALL_ROW + slots.div_ceil(SLOTS_A_ROW)
    } else {
        SMALL_ROW + 1..SMALL_ROW + 1 + slots.div_ceil(SLOTS_A_ROW)
    }
}

/// Slots for any number of shards. The holder of a shard's lock may use that shard's slots.
pub(super) struct Arena {
    shards: usize,
    /// One row, then two, then four, and so on. What nobody has written to takes no memory.
    segments: [OnceLock<Segment>; 32],
    uses: Mutex<Uses>,
    /// Rows that are to be laid out in huge pages, from the first, and those that were.
    wanted: AtomicUsize,
    prepared: AtomicUsize,
    is_maintained: AtomicBool,
    shared_data: SharedData,
}

/// What rows are used for, from the first.
#[derive(Default)]
struct Uses {
    of_rows: Vec<Use>,
}

#[derive(Clone, Copy, Default)]
struct Use {
    /// How many reach into the row.
    shards: u32,
    /// Whether it may take memory.
    is_backed: bool,
    /// Whether it is being returned to the system: nobody may write to it before that is done.
    is_being_returned: bool,
}

impl Uses {
    /// Rows up to the last that some shard reaches into.
    fn reached(&self) -> usize {
        self.of_rows.iter().rposition(|row| row.shards > 0).map_or(0, |last| last + 1)
    }

    fn in_small_row(&self) -> usize {
        self.of_rows.first().map_or(0, |small_row| small_row.shards as usize)
    }

    fn row(&mut self, row: usize) -> &mut Use {
        if self.of_rows.len() <= row {
            self.of_rows.resize(row + 1, Use::default());
        }
        &mut self.of_rows[row]
    }

    /// The last row that takes memory though nobody uses it. Those before `wanted` will be used soon.
    fn idle(&self, wanted: usize) -> Option<usize> {
        let is_idle = |&row: &usize| {
            let Use { shards, is_backed, .. } = self.of_rows[row];
            shards == 0 && is_backed && (row >= wanted || row == SMALL_ROW)
        };
        (0..self.of_rows.len()).rfind(is_idle)
    }
}

/// Some rows, one after the other.
struct Segment {
    words: Fresh,
    /// Where the first row begins: at the beginning of a page, or at least of a cache line.
    start: usize,
}

impl Arena {
    /// An arena for `shards` tables, which hold up to `max_keys` keys together.
    pub(super) fn new(shards: usize, max_keys: usize) -> Arena {
        Arena {
            shards,
            segments: array::from_fn(|_| OnceLock::new()),
            uses: Mutex::default(),
            wanted: AtomicUsize::new(0),
            prepared: AtomicUsize::new(0),
            is_maintained: AtomicBool::new(false),
            shared_data: SharedData::new(max_keys),
        }
    }

    pub(super) const fn shared_data(&self) -> &SharedData {
        &self.shared_data
    }

    /// The segment that holds a row, and the row's index in it.
    #[inline]
    const fn locate(row: usize) -> (usize, usize) {
        let segment = (row + 1).ilog2();
        (segment as usize, row + 1 - (1 << segment))
    }

    const fn words_a_row(&self) -> usize {
        self.shards * WORDS_A_SHARD_ROW
    }

    fn row(&self, row: usize) -> &[AtomicU64] {
        let (segment, row) = Arena::locate(row);
        let words = self.words_a_row();
        let segment = self.segments[segment].get_or_init(|| Segment::new(words << segment));
        &segment.words[segment.start + row * words..][..words]
    }

    /// What a shard has of a row; `None` if no table has reached it yet.
    #[inline(always)]
    pub(super) fn part(&self, row: usize, shard: usize) -> Option<&ShardRow> {
        let (segment, row) = Arena::locate(row);
        let segment = self.segments.get(segment)?.get()?;
        let words = segment.words.get(segment.start + (row * self.shards + shard) * WORDS_A_SHARD_ROW..)?;
        words.as_chunks().0.first_chunk()
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at them when none of `rows` is being given back, and waits for that if need be.
    fn uses_without_leaving(&self, rows: &Range<usize>) -> MutexGuard<'_, Uses> {
        loop {
            let mut uses = self.uses();
            if !rows.clone().any(|row| uses.row(row).is_being_returned) {
                return uses;
            }
            drop(uses);
            std::thread::yield_now();
        }
    }

    /// Says that a table will use `after` slots instead of `before`.
    pub(super) fn resize(arena: &Arc<Arena>, before: usize, after: usize) {
        let (before, after) = (rows_for(before), rows_for(after));
        if before == after {
            return;
        }
        let mut uses = arena.uses_without_leaving(&after);
        let (reached, small_before) = (uses.reached(), uses.in_small_row());
        for row in after.clone().filter(|row| !before.contains(row)) {
            arena.row(row);
            let row = uses.row(row);
            (row.shards, row.is_backed) = (row.shards + 1, true);
        }
        for row in before.filter(|row| !after.contains(row)) {
            uses.row(row).shards -= 1;
        }
        let (reaches, small_now) = (uses.reached(), uses.in_small_row());
        drop(uses);
        if reaches > reached.max(SMALL_ROW + 1) {
            // Others follow soon, and some of them will be further ahead.
            Arena::prepare(arena, reaches + 1);
        } else if small_now == arena.shards / 2 && small_before < small_now {
            // The fullest will soon leave.
            Arena::reserve_ahead(arena, SMALL_ROW_SLOTS + 1);
        } else if reaches < reached {
            arena.wanted.store(reaches, Ordering::SeqCst);
            arena.prepared.fetch_min(reaches, Ordering::Relaxed);
            Arena::maintain(arena);
        } else if small_now == 0 && small_before > 0 {
            Arena::maintain(arena);
        }
    }

    /// Says that a table will soon use `slots` slots.
    pub(super) fn reserve_ahead(arena: &Arc<Arena>, slots: usize) {
        Arena::prepare(arena, rows_for(slots).end);
    }

    /// Has rows up to the `rows`-th laid out in huge pages before a table reaches them. Rows that are reached earlier lie in
    /// small pages.
    fn prepare(arena: &Arc<Arena>, rows: usize) {
        let is_large = arena.words_a_row() * size_of::<u64>() >= pages::HUGE;
        if is_large && arena.prepared.load(Ordering::Relaxed) < rows {
            arena.wanted.fetch_max(rows, Ordering::SeqCst);
            Arena::maintain(arena);
        }
    }

    /// Prepares the rows that are wanted, and gives back those that are not used any more. The system takes up to milliseconds
    /// to clear a huge page, and as long to take back many, which no check should wait for: so it is done aside.
    fn maintain(arena: &Arc<Arena>) {
        if !arena.begin_to_tend() {
            return;
        }
        let there = Arc::clone(arena);
        if std::thread::Builder::new().name("tidegate-rows".to_owned()).spawn(move || there.maintain_all()).is_err() {
            arena.is_maintained.store(false, Ordering::SeqCst);
        }
    }

    /// `false` if another thread is at it.
    fn begin_to_tend(&self) -> bool {
        !self.is_maintained.swap(true, Ordering::SeqCst)
    }

    fn maintain_all(&self) {
        loop {
            self.prepare_wanted();
            while self.give_back_one() {}
            self.is_maintained.store(false, Ordering::SeqCst);
            // Who wanted more meanwhile has left it to this thread.
            if !self.is_wanting() || !self.begin_to_tend() {
                return;
            }
        }
    }

    /// Whether there is anything to prepare or to give back.
    fn is_wanting(&self) -> bool {
        let wanted = self.wanted.load(Ordering::SeqCst);
        wanted > self.prepared.load(Ordering::Relaxed) || self.uses().idle(wanted).is_some()
    }

    fn prepare_wanted(&self) {
        let rows = self.wanted.load(Ordering::SeqCst);
        let first = self.prepared.load(Ordering::Relaxed).max(self.uses().reached()).max(SMALL_ROW + 1);
        for row in first..rows {
            pages::make_huge(self.row(row));
            pages::touch(self.row(row));
            self.uses().row(row).is_backed = true;
        }
        self.prepared.fetch_max(rows, Ordering::Relaxed);
    }

    /// Gives back a row that takes memory, if nobody uses it or wants it.
    fn give_back_one(&self) -> bool {
        let mut uses = self.uses();
        let Some(row) = uses.idle(self.wanted.load(Ordering::SeqCst)) else { return false };
        *uses.row(row) = Use { shards: 0, is_backed: false, is_being_returned: true };
        // Half a millisecond for one in small pages. Who changes to other rows does not wait for it.
        drop(uses);
        pages::give_back(self.row(row));
        self.uses().row(row).is_being_returned = false;
        true
    }
}

impl Segment {
    fn new(words: usize) -> Segment {
        let align = if words * size_of::<u64>() >= pages::HUGE { pages::HUGE } else { 64 };
        let words = Fresh::new(words + align / size_of::<u64>());
        Segment { start: words.as_ptr().align_offset(align).min(align / size_of::<u64>()), words }
    }
}

#[cfg(test)]
mod tests {
    use super::super::slots::{Entry, Slots, Tag};
    use super::*;

    fn entry(number: usize) -> Entry {
        Entry { key: number as u64 + 1, tag: Tag::NONE, cell: [number as u64, 9] }
    }

    fn large(arena: &Arc<Arena>, shard: usize) -> Slots<'_> {
        Slots::of(arena, shard).in_small_row(false)
    }

    #[test]
    fn every_slot_of_every_shard_is_its_own() {
        const SLOTS: usize = 1_000;
        let arena = Arc::new(Arena::new(8, 1 << 20));
        for shard in 0..8 {
            large(&arena, shard).resize(0, SLOTS);
            (0..SLOTS).for_each(|index| large(&arena, shard).set(index, entry(shard * SLOTS + index)));
        }
        for shard in 0..8 {
            assert!((0..SLOTS).all(|index| large(&arena, shard).get(index) == entry(shard * SLOTS + index)));
            assert!((0..SMALL_ROW_SLOTS).all(|index| Slots::of(&arena, shard).get(index).is_empty()));
        }
    }

    #[test]
    fn rows_that_no_shard_reaches_any_more_are_given_back_and_can_be_had_again() {
        let arena = Arc::new(Arena::new(2_048, 1 << 20));
        let (one, other) = (large(&arena, 1), large(&arena, 2));
        one.resize(0, 1_000);
        other.resize(0, 300);
        one.set(999, entry(1));
        one.set(999, Entry::EMPTY);
        other.set(299, entry(2));
        one.resize(1_000, 100);
        assert_eq!(arena.uses().reached(), rows_for(300).end);
        let backed = || arena.uses().of_rows.iter().filter(|row| row.is_backed).count();
        while backed() > rows_for(300).len() + 1 {
            std::thread::yield_now();
        }
        assert_eq!(other.get(299), entry(2));
        one.resize(100, 1_000);
        assert!((100..1_000).all(|index| one.get(index).is_empty()));
    }

    #[test]
    fn the_small_row_is_given_back_when_all_have_left_it_and_can_be_had_again() {
        let arena = Arc::new(Arena::new(2_048, 1 << 20));
        let (one, other) = (Slots::of(&arena, 1), Slots::of(&arena, 2));
        for slots in [one, other] {
            slots.resize(0, 64);
            slots.resize(64, 65);
        }
        while arena.uses().of_rows[SMALL_ROW].is_backed {
            std::thread::yield_now();
        }
        one.resize(65, 40);
        one.set(39, entry(1));
        assert!(arena.uses().of_rows[SMALL_ROW].is_backed);
        assert_eq!((one.get(39), other.get(39)), (entry(1), Entry::EMPTY));
    }

    #[test]
    fn rows_are_made_ready_aside_while_tables_use_them() {
        let arena = Arc::new(Arena::new(2_048, 1 << 20));
        let slots = large(&arena, 5);
        slots.resize(0, 100);
        slots.reserve_ahead(640);
        slots.resize(100, 640);
        (0..640).for_each(|index| slots.set(index, entry(index)));
        while arena.prepared.load(Ordering::Relaxed) < rows_for(640).end {
            std::thread::yield_now();
        }
        assert!((0..640).all(|index| slots.get(index) == entry(index)));
    }

    #[test]
    fn huge_rows_are_made_ready_when_half_of_the_shards_have_a_table() {
        let arena = Arc::new(Arena::new(2_048, 1 << 20));
        (0..1_023).for_each(|shard| Slots::of(&arena, shard).resize(0, 20));
        assert_eq!(arena.wanted.load(Ordering::SeqCst), 0);
        Slots::of(&arena, 1_023).resize(0, 20);
        while arena.prepared.load(Ordering::Relaxed) < rows_for(SMALL_ROW_SLOTS + 1).end {
            std::thread::yield_now();
        }
        assert!(!arena.uses().of_rows.iter().skip(1).any(|row| row.shards > 0 || !row.is_backed));
    }
}
