//! The memory that the tables of all shards lie in.
//!
//! The hash spreads keys evenly, so all shards grow at nearly the same pace. Memory is therefore cut into rows: each row
//! holds the next few slots of every shard. No table ever moves to a larger piece of memory and leaves a smaller one
//! behind, so nothing is lost between pieces, and a row is large enough to lie in huge pages, where reading a random slot
//! takes the processor half the time: it need not look up where the page is.

use std::array;
use std::hint::select_unpredictable;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::commons::{Commons, Counts};
use super::pages::{self, Fresh};
use crate::limit::{Cell, Limit};

/// One key. Half a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Zero if there is no key here.
    pub(super) key: u64,
    /// The shape of the limit that wrote the cell.
    pub(super) shape: u64,
    /// The key's state, or where to find it if it is a large one.
    pub(super) cell: Cell,
}

impl Entry {
    pub(super) const EMPTY: Entry = Entry { key: 0, shape: 0, cell: [0; 2] };
    pub(super) const BYTES: usize = size_of::<Entry>();

    pub(super) const fn is_empty(&self) -> bool {
        self.key == 0
    }
}

/// Of each shard in each row: two kilobytes.
const SLOTS_A_ROW: usize = 64;
pub(super) const WORDS_A_SLOT: usize = Entry::BYTES / size_of::<u64>();
const WORDS_A_PART: usize = SLOTS_A_ROW * WORDS_A_SLOT;

/// Slots for any number of shards. Whoever holds a shard's lock may use that shard's slots.
pub(super) struct Ground {
    shards: usize,
    /// One row, then two, then four, and so on. What nobody has written to takes no memory.
    fields: [OnceLock<Field>; 32],
    users: Mutex<Users>,
    /// Rows that are to be laid out in huge pages, from the first, and those that were.
    wanted: AtomicUsize,
    prepared: AtomicUsize,
    is_tended: AtomicBool,
    commons: Commons,
}

/// How many shards reach into each row.
#[derive(Default)]
struct Users {
    of_rows: Vec<u32>,
    /// Rows that may take memory, from the first.
    backed: usize,
}

impl Users {
    /// Rows that some shard reaches into.
    fn rows(&self) -> usize {
        self.of_rows.iter().take_while(|&&users| users > 0).count()
    }
}

/// Some rows, one after the other.
struct Field {
    words: Fresh,
    /// Where the first row begins: at the beginning of a page, or at least of a cache line.
    start: usize,
}

impl Ground {
    /// Ground for so many tables.
    pub(super) fn new(shards: usize) -> Ground {
        Ground {
            shards,
            fields: array::from_fn(|_| OnceLock::new()),
            users: Mutex::default(),
            wanted: AtomicUsize::new(0),
            prepared: AtomicUsize::new(0),
            is_tended: AtomicBool::new(false),
            commons: Commons::default(),
        }
    }

    pub(super) const fn commons(&self) -> &Commons {
        &self.commons
    }

    /// In which field a row lies, and the how-manieth row of that it is.
    #[inline]
    const fn locate(row: usize) -> (usize, usize) {
        let field = (row + 1).ilog2();
        (field as usize, row + 1 - (1 << field))
    }

    const fn words_a_row(&self) -> usize {
        self.shards * WORDS_A_PART
    }

    fn row(&self, row: usize) -> &[AtomicU64] {
        let (field, row) = Ground::locate(row);
        let words = self.words_a_row();
        let field = self.fields[field].get_or_init(|| Field::new(words << field));
        &field.words[field.start + row * words..][..words]
    }

    fn users(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has rows up to the `rows`-th laid out in huge pages before a table reaches them. Rows that are reached earlier lie in
    /// small pages.
    fn prepare(ground: &Arc<Ground>, rows: usize) {
        let is_large = ground.words_a_row() * size_of::<u64>() >= pages::HUGE;
        if is_large && ground.prepared.load(Ordering::Relaxed) < rows {
            ground.wanted.fetch_max(rows, Ordering::SeqCst);
            Ground::tend(ground);
        }
    }

    /// Prepares the rows that are wanted, and gives back those that are not used any more. The system takes up to milliseconds
    /// to clear a huge page, and as long to take back many, which no check should wait for: so it is done aside.
    fn tend(ground: &Arc<Ground>) {
        if !ground.begin_to_tend() {
            return;
        }
        let there = Arc::clone(ground);
        if std::thread::Builder::new().name("tidegate-rows".to_owned()).spawn(move || there.tend_all()).is_err() {
            ground.is_tended.store(false, Ordering::SeqCst);
        }
    }

    /// `false` if another thread is at it.
    fn begin_to_tend(&self) -> bool {
        !self.is_tended.swap(true, Ordering::SeqCst)
    }

    fn tend_all(&self) {
        loop {
            self.prepare_wanted();
            while self.give_back_one() {}
            self.is_tended.store(false, Ordering::SeqCst);
            // Who wanted more meanwhile has left it to this thread.
            if !self.is_wanting() || !self.begin_to_tend() {
                return;
            }
        }
    }

    /// Whether there is anything to prepare or to give back.
    fn is_wanting(&self) -> bool {
        let (wanted, users) = (self.wanted.load(Ordering::SeqCst), self.users());
        wanted > self.prepared.load(Ordering::Relaxed) || users.backed > users.rows().max(wanted)
    }

    fn prepare_wanted(&self) {
        let rows = self.wanted.load(Ordering::SeqCst);
        let first = self.prepared.load(Ordering::Relaxed).max(self.users().rows());
        for row in first..rows {
            pages::make_huge(self.row(row));
            pages::touch(self.row(row));
        }
        self.prepared.fetch_max(rows, Ordering::Relaxed);
        let mut users = self.users();
        users.backed = users.backed.max(rows);
    }

    /// Gives back the last row that takes memory, if nobody uses it or wants it. Nobody begins to use it meanwhile.
    fn give_back_one(&self) -> bool {
        let mut users = self.users();
        let is_idle = users.backed > users.rows().max(self.wanted.load(Ordering::SeqCst));
        if is_idle {
            users.backed -= 1;
            pages::give_back(self.row(users.backed));
        }
        is_idle
    }
}

impl Field {
    fn new(words: usize) -> Field {
        let align = if words * size_of::<u64>() >= pages::HUGE { pages::HUGE } else { 64 };
        let words = Fresh::new(words + align / size_of::<u64>());
        Field { start: words.as_ptr().align_offset(align).min(align / size_of::<u64>()), words }
    }
}

/// The slots of one shard.
#[derive(Clone, Copy)]
pub(super) struct Slots<'a> {
    ground: &'a Arc<Ground>,
    shard: usize,
}

/// Two slots: a cache line.
#[derive(Clone, Copy)]
pub(super) struct Line<'a> {
    words: &'a [AtomicU64; 2 * WORDS_A_SLOT],
}

/// Six slots: three cache lines.
#[derive(Clone, Copy)]
pub(super) struct Near<'a> {
    /// All lines of the shard in one row.
    part: &'a [[AtomicU64; 2 * WORDS_A_SLOT]; SLOTS_A_ROW / 2],
    /// The first of the three.
    first: usize,
}

const LINES_NEAR: usize = 3;

/// A slot.
#[derive(Clone, Copy)]
pub(super) struct Slot<'a> {
    words: &'a [AtomicU64; WORDS_A_SLOT],
}

impl<'a> Slots<'a> {
    pub(super) const fn of(ground: &'a Arc<Ground>, shard: usize) -> Slots<'a> {
        Slots { ground, shard }
    }

    pub(super) fn commons(self) -> &'a Commons {
        self.ground.commons()
    }

    /// What has happened in this shard, and in some others.
    pub(super) fn counts(self) -> &'a Counts {
        self.commons().counts(self.shard)
    }

    /// Says that the table will use `after` slots instead of `before`.
    pub(super) fn resize(self, before: usize, after: usize) {
        let (before, after) = (before.div_ceil(SLOTS_A_ROW), after.div_ceil(SLOTS_A_ROW));
        if before == after {
            return;
        }
        let mut users = self.ground.users();
        if users.of_rows.len() < after {
            users.of_rows.resize(after, 0);
        }
        let used = users.rows();
        for row in before..after {
            self.ground.row(row);
            users.of_rows[row] += 1;
        }
        for row in after..before {
            users.of_rows[row] -= 1;
        }
        let uses = users.rows();
        users.backed = users.backed.max(uses);
        drop(users);
        if uses > used {
            // Others follow soon, and some of them will be further ahead.
            Ground::prepare(self.ground, uses + 1);
        } else if uses < used {
            self.ground.wanted.store(uses, Ordering::SeqCst);
            self.ground.prepared.fetch_min(uses, Ordering::Relaxed);
            Ground::tend(self.ground);
        }
    }

    /// Says that the table will soon use `slots` slots.
    pub(super) fn foresee(self, slots: usize) {
        Ground::prepare(self.ground, slots.div_ceil(SLOTS_A_ROW));
    }

    /// The line that begins with slot `index`, an even number; `None` if no table has reached it yet.
    #[inline]
    pub(super) fn line(self, index: usize) -> Option<Line<'a>> {
        let (field, row) = Ground::locate(index / SLOTS_A_ROW);
        let field = self.ground.fields.get(field)?.get()?;
        let part = (row * self.ground.shards + self.shard) * WORDS_A_PART;
        let word = self.slot_in_part(index) * WORDS_A_SLOT;
        Some(Line { words: field.words.get(field.start + part + word..)?.first_chunk()? })
    }

    /// The how-manieth of its part a slot is. Small tables only use the first slots of their part, so each shard counts from
    /// another slot: otherwise they would all fall on the same few sets of the processor's cache.
    #[inline]
    const fn slot_in_part(self, index: usize) -> usize {
        (index + self.shard * 8) % SLOTS_A_ROW
    }

    /// The slots from `index` on, an even number, that a key which points there nearly always is in. Where a row ends, others
    /// of the same row take the place of those that follow.
    #[inline(always)]
    pub(super) fn near(self, index: usize) -> Option<Near<'a>> {
        let (field, row) = Ground::locate(index / SLOTS_A_ROW);
        let field = self.ground.fields.get(field)?.get()?;
        let part = (row * self.ground.shards + self.shard) * WORDS_A_PART;
        let part = field.words.get(field.start + part..)?.as_chunks().0.first_chunk()?;
        Some(Near { part, first: self.slot_in_part(index) / 2 })
    }

    /// All slots that any table has reached, in order. The processor fetches each row while the one before is gone through.
    pub(super) fn in_order(self) -> impl Iterator<Item = Slot<'a>> {
        let part = move |row| self.near(row * SLOTS_A_ROW);
        (0..).map_while(move |row| Some((part(row)?, part(row + 1)))).flat_map(|(part, next)| {
            (0..SLOTS_A_ROW / 2).flat_map(move |index| {
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

impl<'a> Near<'a> {
    /// The slot that holds `key` if any of them does, or else any. Without a branch, for there is nothing to go by in guessing.
    #[inline(always)]
    pub(super) fn slot_of(self, key: u64) -> Slot<'a> {
        let [a, b, c] = [0, 1, 2].map(|index| self.line(index));
        [a.slot(1), b.slot(0), b.slot(1), c.slot(0), c.slot(1)]
            .into_iter()
            .fold(a.slot(0), |found, slot| select_unpredictable(slot.key() == key, slot, found))
    }

    #[inline(always)]
    fn line(self, index: usize) -> Line<'a> {
        Line { words: &self.part[(self.first + index) % (SLOTS_A_ROW / 2)] }
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
        self.load(1)
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
        Entry { key: self.load(0), shape: self.load(1), cell: [self.load(2), self.load(3)] }
    }

    #[inline]
    pub(super) fn set(self, entry: Entry) {
        self.words[0].store(entry.key, Ordering::Relaxed);
        self.words[1].store(entry.shape, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: usize) -> Entry {
        Entry { key: number as u64 + 1, shape: 7, cell: [number as u64, 9] }
    }

    #[test]
    fn every_slot_of_every_shard_is_its_own() {
        const SLOTS: usize = 1_000;
        let ground = Arc::new(Ground::new(8));
        for shard in 0..8 {
            Slots::of(&ground, shard).resize(0, SLOTS);
            (0..SLOTS).for_each(|index| Slots::of(&ground, shard).set(index, entry(shard * SLOTS + index)));
        }
        for shard in 0..8 {
            assert!((0..SLOTS).all(|index| Slots::of(&ground, shard).get(index) == entry(shard * SLOTS + index)));
        }
    }

    #[test]
    fn rows_that_no_shard_reaches_any_more_are_given_back_and_can_be_had_again() {
        let ground = Arc::new(Ground::new(2_048));
        let (one, other) = (Slots::of(&ground, 1), Slots::of(&ground, 2));
        one.resize(0, 1_000);
        other.resize(0, 300);
        one.set(999, entry(1));
        one.set(999, Entry::EMPTY);
        other.set(299, entry(2));
        one.resize(1_000, 100);
        assert_eq!(ground.users().rows(), 300_usize.div_ceil(SLOTS_A_ROW));
        while ground.users().backed > 300_usize.div_ceil(SLOTS_A_ROW) + 1 {
            std::thread::yield_now();
        }
        assert_eq!(other.get(299), entry(2));
        one.resize(100, 1_000);
        assert!((100..1_000).all(|index| one.get(index).is_empty()));
    }

    #[test]
    fn rows_are_made_ready_aside_while_tables_use_them() {
        let ground = Arc::new(Ground::new(2_048));
        let slots = Slots::of(&ground, 5);
        slots.resize(0, 64);
        slots.foresee(640);
        slots.resize(64, 640);
        (0..640).for_each(|index| slots.set(index, entry(index)));
        while ground.prepared.load(Ordering::Relaxed) < 10 {
            std::thread::yield_now();
        }
        assert!((0..640).all(|index| slots.get(index) == entry(index)));
    }
}
