//! Sizes of slots, cache lines and rows, shared by the arena and the tables.

use std::sync::atomic::AtomicU64;

/// The number of words of a slot, which is half a cache line: a key, a tag and a packed state of two words.
pub(super) const WORDS_PER_SLOT: usize = 4;
/// The number of words of a cache line, which is two slots.
pub(super) const WORDS_PER_LINE: usize = 2 * WORDS_PER_SLOT;

/// The number of slots that each shard has in each row.
pub(super) const SLOTS_PER_ROW: usize = 64;
/// The number of cache lines that each shard has in each row.
pub(super) const LINES_PER_ROW: usize = SLOTS_PER_ROW / 2;

/// The part of a row that belongs to one shard: two kilobytes.
pub(super) type ShardRow = [[AtomicU64; WORDS_PER_LINE]; LINES_PER_ROW];

/// The row of small tables. It consists of small pages.
pub(super) const SMALL_ROW: usize = 0;
/// Maximum number of slots of a table in the small row.
pub(super) const SMALL_ROW_SLOTS: usize = SLOTS_PER_ROW;
