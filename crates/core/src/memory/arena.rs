//! The arena: memory for the tables of all shards, cut into rows.
//!
//! The hash spreads keys evenly, so all shards grow at nearly the same pace. Each row therefore holds the next few slots of
//! every shard. A table grows into the next row and never moves to a larger allocation, so no memory is lost to fragmentation.
//! A row is large enough for huge pages, where a read of a random slot takes half the time: it rarely misses the TLB.
//!
//! Clearing a huge page takes milliseconds, too long for the first keys to wait. Tables therefore begin in the first row,
//! which consists of small pages (the *small row*), and move to other rows when they outgrow it.
//!
//! A maintenance thread prepares and returns rows. The arena only records that there is work; the owner of the arena calls
//! [`Arena::maintain`] while it holds no lock. That function takes the `Arc`, but tables have the arena by reference, so
//! code that runs under a shard's lock cannot start a thread.

use std::array;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::layout::{LINES_PER_ROW, SLOTS_PER_ROW, SMALL_ROW, SMALL_ROW_SLOTS, ShardRow, WORDS_PER_LINE};
use super::pages::{self, ZeroedWords};

const WORDS_PER_SHARD_ROW: usize = LINES_PER_ROW * WORDS_PER_LINE;

/// The rows of a table that has `slots` slots.
const fn rows_for(slots: usize) -> Range<usize> {
    if slots <= SMALL_ROW_SLOTS {
        SMALL_ROW..SMALL_ROW + slots.div_ceil(SLOTS_PER_ROW)
    } else {
        SMALL_ROW + 1..SMALL_ROW + 1 + slots.div_ceil(SLOTS_PER_ROW)
    }
}

/// Slots for any number of shards.
pub(super) struct Arena {
    shards: usize,
    /// Segments of one row, two rows, four rows and so on. A page that was never written takes no memory.
    segments: [OnceLock<Segment>; 32],
    row_uses: Mutex<RowUses>,
    /// The number of rows to lay out in huge pages, counted from the first.
    wanted: AtomicUsize,
    /// The number of rows that were laid out in huge pages.
    prepared: AtomicUsize,
    /// Whether maintenance was requested since the maintenance thread last began.
    is_maintenance_due: AtomicBool,
    /// Whether the maintenance thread is running.
    is_maintained: AtomicBool,
}

/// The use of each row, in order.
#[derive(Default)]
struct RowUses {
    rows: Vec<RowUse>,
}

#[derive(Clone, Copy, Default)]
struct RowUse {
    /// The number of shards whose table reaches into the row.
    shards: u32,
    /// Whether the row may take memory.
    is_backed: bool,
    /// Whether the row is being returned to the system. Nothing may write to it until that is done.
    is_being_returned: bool,
}

impl RowUses {
    /// The number of rows up to the last one that a shard's table reaches.
    fn reached(&self) -> usize {
        self.rows.iter().rposition(|row| row.shards > 0).map_or(0, |last| last + 1)
    }

    /// The number of shards whose table is in the small row.
    fn in_small_row(&self) -> usize {
        self.rows.first().map_or(0, |small_row| small_row.shards as usize)
    }

    fn row(&mut self, row: usize) -> &mut RowUse {
        if self.rows.len() <= row {
            self.rows.resize(row + 1, RowUse::default());
        }
        &mut self.rows[row]
    }

    /// The last row that takes memory without being used. Rows before `wanted` will be used soon and do not count.
    fn idle(&self, wanted: usize) -> Option<usize> {
        let is_idle = |&row: &usize| {
            let RowUse { shards, is_backed, .. } = self.rows[row];
            shards == 0 && is_backed && (row >= wanted || row == SMALL_ROW)
        };
        (0..self.rows.len()).rfind(is_idle)
    }
}

/// Consecutive rows in one mapping.
struct Segment {
    words: ZeroedWords,
    /// The index of the first row's first word. It begins a page, or a cache line if the segment is smaller than a page.
    start: usize,
}

impl Arena {
    /// An arena for `shards` tables.
    pub(super) fn new(shards: usize) -> Arena {
        Arena {
            shards,
            segments: array::from_fn(|_| OnceLock::new()),
            row_uses: Mutex::default(),
            wanted: AtomicUsize::new(0),
            prepared: AtomicUsize::new(0),
            is_maintenance_due: AtomicBool::new(false),
            is_maintained: AtomicBool::new(false),
        }
    }

    /// The segment that holds a row, and the row's index in it.
    #[inline]
    const fn locate(row: usize) -> (usize, usize) {
        let segment = (row + 1).ilog2();
        (segment as usize, row + 1 - (1 << segment))
    }

    const fn words_per_row(&self) -> usize {
        self.shards * WORDS_PER_SHARD_ROW
    }

    fn row(&self, row: usize) -> &[AtomicU64] {
        let (segment, row) = Arena::locate(row);
        let words = self.words_per_row();
        let segment = self.segments[segment].get_or_init(|| Segment::new(words << segment));
        &segment.words[segment.start + row * words..][..words]
    }

    /// The part of a row that belongs to a shard; `None` if no table has reached the row yet.
    #[inline(always)]
    pub(super) fn shard_row(&self, row: usize, shard: usize) -> Option<&ShardRow> {
        let (segment, row) = Arena::locate(row);
        let segment = self.segments.get(segment)?.get()?;
        let words = segment.words.get(segment.start + (row * self.shards + shard) * WORDS_PER_SHARD_ROW..)?;
        words.as_chunks().0.first_chunk()
    }

    fn row_uses(&self) -> MutexGuard<'_, RowUses> {
        self.row_uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The use of all rows, once none of `rows` is being returned. Waits until then.
    fn row_uses_once_returned(&self, rows: &Range<usize>) -> MutexGuard<'_, RowUses> {
        loop {
            let mut uses = self.row_uses();
            if !rows.clone().any(|row| uses.row(row).is_being_returned) {
                return uses;
            }
            drop(uses);
            std::thread::yield_now();
        }
    }

    /// Records that a table uses `after` slots instead of `before`. When a table has grown, its new rows exist and are zero
    /// once this returns.
    pub(super) fn resize(&self, before: usize, after: usize) {
        let (before, after) = (rows_for(before), rows_for(after));
        if before == after {
            return;
        }
        let mut uses = self.row_uses_once_returned(&after);
        let (reached_before, small_before) = (uses.reached(), uses.in_small_row());
        for row in after.clone().filter(|row| !before.contains(row)) {
            self.row(row);
            let row = uses.row(row);
            (row.shards, row.is_backed) = (row.shards + 1, true);
        }
        for row in before.filter(|row| !after.contains(row)) {
            uses.row(row).shards -= 1;
        }
        let (reached, small) = (uses.reached(), uses.in_small_row());
        drop(uses);
        if reached > reached_before.max(SMALL_ROW + 1) {
            // The other shards will follow soon, and some of their tables will be larger.
            self.want_rows(reached + 1);
        } else if small == self.shards / 2 && small_before < small {
            // The fullest tables will soon leave the small row.
            self.reserve_ahead(SMALL_ROW_SLOTS + 1);
        } else if reached < reached_before {
            self.wanted.store(reached, Ordering::SeqCst);
            self.prepared.fetch_min(reached, Ordering::Relaxed);
            self.ask_for_maintenance();
        } else if small == 0 && small_before > 0 {
            self.ask_for_maintenance();
        }
    }

    /// Announces that a table will soon use `slots` slots.
    pub(super) fn reserve_ahead(&self, slots: usize) {
        self.want_rows(rows_for(slots).end);
    }

    /// Asks for the first `rows` rows to be laid out in huge pages. Rows that a table reaches earlier lie in small pages.
    fn want_rows(&self, rows: usize) {
        let is_huge = self.words_per_row() * size_of::<u64>() >= pages::HUGE_PAGE;
        if is_huge && self.prepared.load(Ordering::Relaxed) < rows {
            self.wanted.fetch_max(rows, Ordering::SeqCst);
            self.ask_for_maintenance();
        }
    }

    fn ask_for_maintenance(&self) {
        self.is_maintenance_due.store(true, Ordering::SeqCst);
    }

    /// Starts the maintenance thread if [`Arena::resize`] or [`Arena::reserve_ahead`] left work for it and it is not
    /// running yet. The caller must hold no lock, because starting a thread takes 50 to 200 µs.
    #[inline]
    pub(super) fn maintain(arena: &Arc<Arena>) {
        if arena.is_maintenance_due.load(Ordering::SeqCst) {
            Arena::start_maintenance(arena);
        }
    }

    /// Whether the maintenance thread has prepared any rows.
    #[cfg(test)]
    pub(super) fn has_prepared_rows(&self) -> bool {
        self.prepared.load(Ordering::SeqCst) > 0
    }

    #[cold]
    fn start_maintenance(arena: &Arc<Arena>) {
        if !arena.begin_maintenance() {
            return;
        }
        #[cfg(all(test, not(tidegate_loom)))]
        assert_eq!(super::sync::held_locks::count(), 0, "a thread is started while a spin lock is held");
        let maintained = Arc::clone(arena);
        let thread = std::thread::Builder::new().name("tidegate-rows".to_owned());
        if thread.spawn(move || maintained.run_maintenance()).is_err() {
            // Without the thread, rows are used in small pages and not returned. The next growth tries again.
            arena.is_maintenance_due.store(false, Ordering::SeqCst);
            arena.is_maintained.store(false, Ordering::SeqCst);
        }
    }

    /// Returns `false` if the maintenance thread is already running.
    fn begin_maintenance(&self) -> bool {
        !self.is_maintained.swap(true, Ordering::SeqCst)
    }

    /// The maintenance thread: prepares the rows that are wanted and returns those no longer used. The system takes up to
    /// milliseconds to clear a huge page, and as long to take many pages back, which no check should wait for.
    fn run_maintenance(&self) {
        loop {
            self.is_maintenance_due.store(false, Ordering::SeqCst);
            self.prepare_wanted();
            while self.return_idle_row() {}
            self.is_maintained.store(false, Ordering::SeqCst);
            // A request made while this thread ran did not start another one.
            if !self.is_maintenance_due.load(Ordering::SeqCst) || !self.begin_maintenance() {
                return;
            }
        }
    }

    fn prepare_wanted(&self) {
        let rows = self.wanted.load(Ordering::SeqCst);
        let first = self.prepared.load(Ordering::Relaxed).max(self.row_uses().reached()).max(SMALL_ROW + 1);
        for row in first..rows {
            pages::advise_huge(self.row(row));
            pages::populate(self.row(row));
            self.row_uses().row(row).is_backed = true;
        }
        self.prepared.fetch_max(rows, Ordering::Relaxed);
    }

    /// Returns the memory of one idle row to the system. `false` if there is none.
    fn return_idle_row(&self) -> bool {
        let mut uses = self.row_uses();
        let Some(row) = uses.idle(self.wanted.load(Ordering::SeqCst)) else { return false };
        *uses.row(row) = RowUse { shards: 0, is_backed: false, is_being_returned: true };
        // Release the mutex first: returning a row in small pages takes half a millisecond, and tables that move to other
        // rows need not wait for it.
        drop(uses);
        pages::return_zeroed(self.row(row));
        self.row_uses().row(row).is_being_returned = false;
        true
    }
}

impl Segment {
    fn new(words: usize) -> Segment {
        let align = if words * size_of::<u64>() >= pages::HUGE_PAGE { pages::HUGE_PAGE } else { 64 };
        let words = ZeroedWords::new(words + align / size_of::<u64>());
        Segment { start: words.as_ptr().align_offset(align).min(align / size_of::<u64>()), words }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first word of a slot in a table that has outgrown the small row.
    fn word(arena: &Arena, shard: usize, slot: usize) -> &AtomicU64 {
        let row =
            arena.shard_row(SMALL_ROW + 1 + slot / SLOTS_PER_ROW, shard).expect("a row that the table has reached");
        &row[slot % SLOTS_PER_ROW / 2][slot % 2 * (WORDS_PER_LINE / 2)]
    }

    fn load(arena: &Arena, shard: usize, slot: usize) -> u64 {
        word(arena, shard, slot).load(Ordering::Relaxed)
    }

    fn store(arena: &Arena, shard: usize, slot: usize, value: u64) {
        word(arena, shard, slot).store(value, Ordering::Relaxed);
    }

    /// Runs maintenance until `is_done`.
    fn maintain_until(arena: &Arc<Arena>, is_done: impl Fn() -> bool) {
        Arena::maintain(arena);
        while !is_done() {
            std::thread::yield_now();
        }
    }

    fn backed_rows(arena: &Arena) -> usize {
        arena.row_uses().rows.iter().filter(|row| row.is_backed).count()
    }

    #[test]
    fn every_slot_of_every_shard_is_its_own() {
        const SLOTS: usize = 1_000;
        let arena = Arena::new(8);
        for shard in 0..8 {
            arena.resize(0, SLOTS);
            (0..SLOTS).for_each(|slot| store(&arena, shard, slot, (shard * SLOTS + slot) as u64 + 1));
        }
        for shard in 0..8 {
            assert!((0..SLOTS).all(|slot| load(&arena, shard, slot) == (shard * SLOTS + slot) as u64 + 1));
            let small_row = arena.shard_row(SMALL_ROW, shard).into_iter().flatten().flatten();
            assert!(small_row.into_iter().all(|word| word.load(Ordering::Relaxed) == 0));
        }
    }

    #[test]
    fn rows_that_no_shard_reaches_any_more_are_returned_and_can_be_had_again() {
        let arena = Arc::new(Arena::new(2_048));
        arena.resize(0, 1_000);
        arena.resize(0, 300);
        store(&arena, 1, 999, 1);
        store(&arena, 1, 999, 0);
        store(&arena, 2, 299, 2);
        arena.resize(1_000, 100);
        assert_eq!(arena.row_uses().reached(), rows_for(300).end);
        maintain_until(&arena, || backed_rows(&arena) <= rows_for(300).len() + 1);
        assert_eq!(load(&arena, 2, 299), 2);
        arena.resize(100, 1_000);
        assert!((100..1_000).all(|slot| load(&arena, 1, slot) == 0));
    }

    #[test]
    fn the_small_row_is_returned_when_all_tables_have_left_it_and_can_be_had_again() {
        let arena = Arc::new(Arena::new(2_048));
        for _ in 0..2 {
            arena.resize(0, 64);
            arena.resize(64, 65);
        }
        maintain_until(&arena, || !arena.row_uses().rows[SMALL_ROW].is_backed);
        arena.resize(65, 40);
        let line = |shard| &arena.shard_row(SMALL_ROW, shard).expect("the small row")[19][0];
        line(1).store(1, Ordering::Relaxed);
        assert!(arena.row_uses().rows[SMALL_ROW].is_backed);
        assert_eq!((line(1).load(Ordering::Relaxed), line(2).load(Ordering::Relaxed)), (1, 0));
    }

    #[test]
    fn rows_are_prepared_while_tables_use_them() {
        let arena = Arc::new(Arena::new(2_048));
        arena.resize(0, 100);
        arena.reserve_ahead(640);
        Arena::maintain(&arena);
        arena.resize(100, 640);
        (0..640).for_each(|slot| store(&arena, 5, slot, slot as u64));
        maintain_until(&arena, || arena.prepared.load(Ordering::Relaxed) >= rows_for(640).end);
        assert!((0..640).all(|slot| load(&arena, 5, slot) == slot as u64));
    }

    #[test]
    fn huge_rows_are_prepared_when_half_of_the_shards_have_a_table() {
        let arena = Arc::new(Arena::new(2_048));
        (0..1_023).for_each(|_| arena.resize(0, 20));
        assert_eq!(arena.wanted.load(Ordering::SeqCst), 0);
        arena.resize(0, 20);
        maintain_until(&arena, || arena.prepared.load(Ordering::Relaxed) >= rows_for(SMALL_ROW_SLOTS + 1).end);
        assert!(!arena.row_uses().rows.iter().skip(1).any(|row| row.shards > 0 || !row.is_backed));
    }

    #[test]
    fn nothing_is_prepared_before_maintenance_is_called_for() {
        let arena = Arc::new(Arena::new(2_048));
        arena.reserve_ahead(640);
        assert!(arena.is_maintenance_due.load(Ordering::SeqCst) && !arena.is_maintained.load(Ordering::SeqCst));
        maintain_until(&arena, || arena.prepared.load(Ordering::Relaxed) >= rows_for(640).end);
    }
}
