//! File in which a store in memory survives a restart.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::memory::{Restored, SnapshotCounts, SnapshotError};
use tidegate_core::{Clock, MemoryStore, SystemClock};

use crate::state_file_lock::StateFileLock;

/// Settings of a state file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFileSettings {
    /// Path of the file.
    pub path: PathBuf,
    /// Interval between snapshots.
    pub every: Duration,
}

/// The end of the names of unfinished snapshots, after a random number.
const UNFINISHED: &str = ".new";

/// A file that cannot be used. Nothing in it was used.
#[derive(Debug, thiserror::Error)]
#[error(
    "the state file `{}` cannot be used: {reason}. To start without its state, move it to another place",
    path.display()
)]
pub struct StateFileError {
    path: PathBuf,
    reason: SnapshotError,
}

/// Reads the state from a file; `Ok(None)` if there is no such file.
///
/// # Errors
/// If the file cannot be read, or is not a complete snapshot of a supported version.
pub fn read(path: &Path, keys: usize) -> Result<Option<Restored<SystemClock>>, StateFileError> {
    let refused = |reason| StateFileError { path: path.to_owned(), reason };
    let file = match open_regular(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refused(error.into())),
    };
    let restored = MemoryStore::restore(SystemClock::new(), keys, &mut BufReader::with_capacity(1 << 20, file));
    restored.map(Some).map_err(refused)
}

/// Opens a file. Opening a named pipe would wait for a writer, so only regular files are opened.
fn open_regular(path: &Path) -> io::Result<File> {
    match fs::metadata(path)? {
        metadata if metadata.is_dir() => Err(io::Error::from(io::ErrorKind::IsADirectory)),
        metadata if !metadata.is_file() => Err(io::Error::other("it is not a regular file")),
        _ => File::open(path),
    }
}

/// A file that snapshots are written to, with counters.
#[derive(Debug)]
pub struct StateFile {
    settings: StateFileSettings,
    lock: StateFileLock,
    /// Key that secrets are hashed with, saved with every snapshot; empty if it is configured.
    note: Vec<u8>,
    /// The end of the name of unfinished snapshots. No other process has the same.
    unfinished: String,
    /// Whether the file was left to a successor. Locked while a snapshot is written.
    is_left: Mutex<bool>,
    /// Whether the last snapshot could not be written.
    is_failing: AtomicBool,
    saves: AtomicU64,
    failures: AtomicU64,
    /// Time of the last snapshot, in microseconds since the Unix epoch; 0 if there was none.
    saved_at: AtomicU64,
    /// Size of the last snapshot in bytes.
    bytes: AtomicU64,
    took: AtomicU64,
}

/// Counts of a process's snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateFileStats {
    /// Number of snapshots written.
    pub saves: u64,
    /// Number of snapshots that failed.
    pub failures: u64,
    /// Time of the last snapshot, in seconds since the Unix epoch; 0 if there was none.
    pub saved_at: u64,
    /// Size of the last snapshot in bytes.
    pub bytes: u64,
    /// Duration of the last snapshot in microseconds.
    pub took: u64,
}

impl StateFile {
    /// Writes snapshots to a locked file.
    #[must_use]
    pub fn new(settings: StateFileSettings, lock: StateFileLock, note: Vec<u8>) -> StateFile {
        let zero = || AtomicU64::new(0);
        StateFile {
            settings,
            lock,
            note,
            unfinished: format!(".{:016x}{UNFINISHED}", fastrand::u64(..)),
            is_left: Mutex::new(false),
            is_failing: AtomicBool::new(false),
            saves: zero(),
            failures: zero(),
            saved_at: zero(),
            bytes: zero(),
            took: zero(),
        }
    }

    /// Settings of the file.
    #[must_use]
    pub const fn settings(&self) -> &StateFileSettings {
        &self.settings
    }

    /// Releases the lock, so that another server can use the file. Call it after the last snapshot.
    pub fn release(&self) {
        self.lock.release();
    }

    /// The lock, for a successor.
    #[must_use]
    pub fn share_lock(&self) -> Option<OwnedFd> {
        self.lock.share()
    }

    /// Current counts.
    #[must_use]
    pub fn stats(&self) -> StateFileStats {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        StateFileStats {
            saves: load(&self.saves),
            failures: load(&self.failures),
            saved_at: load(&self.saved_at) / 1_000_000,
            bytes: load(&self.bytes),
            took: load(&self.took),
        }
    }

    /// Leaves the file to a successor: no further snapshots are written. Waits for one that is being written.
    pub fn leave(&self) {
        *self.lock_left() = true;
    }

    fn lock_left(&self) -> MutexGuard<'_, bool> {
        self.is_left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a snapshot, and then puts it in the place of the file: a reader finds the last whole snapshot, or this one. Logs
    /// the first of several failures, and the first success after them. Does nothing, and returns `None`, once the file was
    /// [left](StateFile::leave).
    ///
    /// # Errors
    /// If the snapshot cannot be written. The file is unchanged then.
    pub fn save(&self, store: &MemoryStore) -> io::Result<Option<SnapshotCounts>> {
        let is_left = self.lock_left();
        if *is_left { Ok(None) } else { self.write(store).map(Some) }
    }

    /// Checks whether snapshots can be written, without changing the file.
    ///
    /// # Errors
    /// If the file beside it cannot be created.
    pub fn check_writable(&self) -> io::Result<()> {
        let (unfinished, _) = self.create_unfinished(&self.target())?;
        fs::remove_file(unfinished)
    }

    fn write(&self, store: &MemoryStore) -> io::Result<SnapshotCounts> {
        let begun = store.clock().now();
        let saved = self.replace(store);
        let was_failing = self.is_failing.swap(saved.is_err(), Ordering::Relaxed);
        let file = self.settings.path.display();
        match &saved {
            Ok((counts, bytes)) => {
                let now = store.clock().now();
                self.saves.fetch_add(1, Ordering::Relaxed);
                self.saved_at.store(begun.as_micros(), Ordering::Relaxed);
                self.bytes.store(*bytes, Ordering::Relaxed);
                self.took.store(now.since(begun).get(), Ordering::Relaxed);
                tracing::debug!(keys = counts.keys, reservations = counts.reservations, "the state was saved");
                if was_failing {
                    tracing::info!(%file, "the state can be saved again");
                }
            }
            Err(error) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                if !was_failing {
                    tracing::error!(%error, %file, "the state cannot be saved: a restart would forget what was spent since");
                }
            }
        }
        saved.map(|(counts, _)| counts)
    }

    /// Removes unfinished snapshots of processes that were killed. Does nothing without the lock: they may be those of a live
    /// process.
    pub fn remove_unfinished(&self) {
        if !self.lock.is_held() {
            return;
        }
        let path = self.target();
        let (Some(folder), Some(name)) = (folder(&path), path.file_name().and_then(|name| name.to_str())) else {
            return;
        };
        for found in fs::read_dir(folder).into_iter().flatten().flatten() {
            if found.file_name().to_str().is_some_and(|found| is_unfinished(found, name)) {
                let _ = fs::remove_file(found.path());
            }
        }
    }

    /// The target of a symbolic link: renaming would replace the link.
    fn target(&self) -> PathBuf {
        fs::canonicalize(&self.settings.path).unwrap_or_else(|_| self.settings.path.clone())
    }

    fn create_unfinished(&self, target: &Path) -> io::Result<(PathBuf, File)> {
        let mut unfinished = target.as_os_str().to_owned();
        unfinished.push(&self.unfinished);
        let unfinished = PathBuf::from(unfinished);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
        Ok((unfinished, file))
    }

    fn replace(&self, store: &MemoryStore) -> io::Result<(SnapshotCounts, u64)> {
        let path = self.target();
        let (unfinished, file) = self.create_unfinished(&path)?;
        let written = (|| {
            let mut out = BufWriter::with_capacity(1 << 20, file);
            let counts = store.save(&mut out, &self.note)?;
            out.flush()?;
            let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.sync_all()?;
            let bytes = file.metadata()?.len();
            fs::rename(&unfinished, &path)?;
            Ok((counts, bytes))
        })();
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        } else if let Some(folder) = folder(&path) {
            // The rename itself survives a power failure only then. Not every file system can do it.
            let _ = File::open(folder).and_then(|folder| folder.sync_all());
        }
        written
    }
}

/// The folder of a file.
fn folder(path: &Path) -> Option<&Path> {
    path.parent().map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
}

/// Whether this is the name of an unfinished snapshot of the file `of`.
fn is_unfinished(name: &str, of: &str) -> bool {
    let number = name.strip_prefix(of).and_then(|rest| rest.strip_prefix('.')?.strip_suffix(UNFINISHED));
    number.is_some_and(|number| number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests;
