//! Snapshots: the state of a store as bytes, to survive a restart.
//!
//! A snapshot is a head and a sequence of blocks, each with its length and a checksum: one with the seeds of the hash
//! functions, one for each shard, and one that says that it is complete. Shards are copied one after the other, each under its
//! lock for some tens of microseconds, so a snapshot of a busy store is not of one instant: a request over several shards may
//! be in it in part.
//!
//! Keys are in it as fingerprints, and so are the seeds that they were made with. Who can read a snapshot can test guesses
//! of keys against it.

mod blocks;
mod codec;
mod restore;
mod save;
mod shard_copy;
#[cfg(test)]
mod tests;

pub use self::restore::{Restored, SnapshotError};
pub use self::save::SnapshotCounts;
pub(super) use self::shard_copy::ShardCopy;

/// The first bytes of every snapshot.
const MAGIC: [u8; 16] = *b"tidegate state\r\n";
/// The version of the format. Programs refuse other ones.
const VERSION: u32 = 1;

/// The kinds of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum BlockKind {
    Store = 1,
    Shard = 2,
    End = 3,
}
