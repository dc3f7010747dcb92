//! The error for bytes that are not a snapshot.

use std::error::Error;
use std::{fmt, io};

use super::VERSION;

/// The error for bytes that are not a complete snapshot that this program can read. None of them is used.
#[derive(Debug)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The bytes are not a snapshot.
    Foreign,
    /// The snapshot has another version of the format.
    Version {
        /// The version.
        version: u32,
    },
    /// The bytes end too early.
    Torn,
    /// A checksum is wrong, or the content is invalid.
    Damaged,
    /// The program that wrote the snapshot hashes keys in another way, so no key would be found.
    Hashes,
    /// The bytes cannot be read.
    Io(io::Error),
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotError::Foreign => f.write_str("it is not a snapshot of Tidegate's state"),
            SnapshotError::Version { version } => write!(
                f,
                "it has version {version} of the format, and this program reads version {VERSION}: use the program that wrote it"
            ),
            SnapshotError::Torn => f.write_str("it ends too early: it was not written completely"),
            SnapshotError::Damaged => f.write_str("it is damaged: a checksum or a number is wrong"),
            SnapshotError::Hashes => f.write_str(
                "it was written by a program that hashes keys in another way, for another processor or version",
            ),
            SnapshotError::Io(error) => write!(f, "it cannot be read: {error}"),
        }
    }
}

impl Error for SnapshotError {}

impl From<io::Error> for SnapshotError {
    fn from(error: io::Error) -> SnapshotError {
        SnapshotError::Io(error)
    }
}
