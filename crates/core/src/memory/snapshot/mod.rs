//! Snapshots: the state of a store as bytes, to survive a restart.
//!
//! A snapshot is a head and a sequence of blocks, each with its length and a checksum: one with the seeds of the hash
//! functions, one for each shard, and one that marks the end. Shards are copied one after the other, each under its lock
//! for some tens of microseconds. So a snapshot of a busy store does not describe one instant: it may contain a part of a
//! request over several shards.
//!
//! A snapshot contains keys as fingerprints, together with the seeds of the hash functions. Anyone who can read it can test
//! guesses of keys against it.

mod blocks;
mod codec;
mod error;
mod restore;
mod save;
mod shard_copy;
#[cfg(test)]
mod tests;

pub use self::error::SnapshotError;
pub use self::restore::Restored;
pub use self::save::SnapshotCounts;
pub(super) use self::shard_copy::ShardCopy;

/// The first bytes of every snapshot.
const MAGIC: [u8; 16] = *b"tidegate state\r\n";
/// The version of the format. Other versions are rejected.
const VERSION: u32 = 1;

/// The kinds of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum BlockKind {
    Store = 1,
    Shard = 2,
    End = 3,
}
