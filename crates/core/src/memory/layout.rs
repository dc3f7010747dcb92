//! Sizes of slots, cache lines and rows: the layout that the arena and the tables agree on.

use std::sync::atomic::AtomicU64;

/// The words of a slot: a key, a tag and a packed state of two words. Half a cache line.
pub(super) const WORDS_PER_SLOT: usize = 4;
/// The words of a cache line, which is two slots.
pub(super) const WORDS_PER_LINE: usize = 2 * WORDS_PER_SLOT;

/// The slots that each shard has in each row.
pub(super) const SLOTS_PER_ROW: usize = 64;
/// The cache lines that each shard has in each row.
pub(super) const LINES_PER_ROW: usize = SLOTS_PER_ROW / 2;

/// The part of a row that belongs to one shard: two kilobytes.
pub(super) type ShardRow = [[AtomicU64; WORDS_PER_LINE]; LINES_PER_ROW];

/// The row that small tables lie in. It is in small pages.
pub(super) const SMALL_ROW: usize = 0;
/// The most slots that a table in the small row can have.
pub(super) const SMALL_ROW_SLOTS: usize = SLOTS_PER_ROW;
