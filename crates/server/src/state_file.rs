//! The file in which a store in memory survives a restart.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::memory::{Restored, SnapshotCounts, SnapshotError};
use tidegate_core::{Clock, MemoryStore, SystemClock};

use crate::state_file_lock::StateFileLock;

/// Settings of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFileSettings {
    /// The file.
    pub path: PathBuf,
    /// The time between two snapshots.
    pub every: Duration,
}

/// A file that cannot be used. Nothing in it was used.
#[derive(Debug, thiserror::Error)]
#[error(
    "the state file `{}` cannot be used: {reason}. To start without the state in it, move it away",
    path.display()
)]
pub struct StateFileError {
    path: PathBuf,
    reason: SnapshotError,
}

/// The state in a file.
///
/// # Errors
/// If it is not a whole snapshot that this program can read, or cannot be read. `Ok(None)` if there is no such file.
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

/// A file that snapshots are written to, and counts of them.
#[derive(Debug)]
pub struct StateFile {
    settings: StateFileSettings,
    lock: StateFileLock,
    /// Written with every snapshot: the key that secrets are hashed with, or nothing if it is configured.
    note: Vec<u8>,
    saves: AtomicU64,
    failures: AtomicU64,
    /// The instant of the last snapshot, in microseconds since the Unix epoch; 0 if there was none.
    saved_at: AtomicU64,
    /// The size of the last snapshot, and its duration in microseconds.
    bytes: AtomicU64,
    took: AtomicU64,
}

/// Counts of the snapshots of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateFileStats {
    /// Snapshots that were written.
    pub saves: u64,
    /// Snapshots that could not be written.
    pub failures: u64,
    /// The instant of the last one, in seconds since the Unix epoch; 0 if there was none.
    pub saved_at: u64,
    /// The size of the last one.
    pub bytes: u64,
    /// The time that the last one took, in microseconds.
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
            saves: zero(),
            failures: zero(),
            saved_at: zero(),
            bytes: zero(),
            took: zero(),
        }
    }

    /// The settings.
    #[must_use]
    pub const fn settings(&self) -> &StateFileSettings {
        &self.settings
    }

    /// Lets another server use the file. To be called after the last snapshot.
    pub fn release(&self) {
        self.lock.release();
    }

    /// Counts so far.
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

    /// Writes a snapshot, and then puts it in the place of the file: a reader finds the last whole snapshot, or this one. Logs
    /// the first of several failures.
    ///
    /// # Errors
    /// If it cannot be written. The file is as it was then.
    pub fn save(&self, store: &MemoryStore) -> io::Result<SnapshotCounts> {
        let begun = store.clock().now();
        let saved = self.replace(store);
        match &saved {
            Ok((counts, bytes)) => {
                let now = store.clock().now();
                self.saves.fetch_add(1, Ordering::Relaxed);
                self.saved_at.store(begun.as_micros(), Ordering::Relaxed);
                self.bytes.store(*bytes, Ordering::Relaxed);
                self.took.store(now.since(begun).get(), Ordering::Relaxed);
                tracing::debug!(keys = counts.keys, reservations = counts.reservations, "the state was saved");
            }
            Err(error) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                let file = self.settings.path.display();
                tracing::error!(%error, %file, "the state cannot be saved: a restart would forget what was spent since");
            }
        }
        saved.map(|(counts, _)| counts)
    }

    fn replace(&self, store: &MemoryStore) -> io::Result<(SnapshotCounts, u64)> {
        // Where a symbolic link leads: renaming would replace the link.
        let path = &fs::canonicalize(&self.settings.path).unwrap_or_else(|_| self.settings.path.clone());
        let unfinished = unfinished(path);
        // Left by a process that was killed. It may have other permissions.
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
        let written = (|| {
            let mut out = BufWriter::with_capacity(1 << 20, file);
            let counts = store.save(&mut out, &self.note)?;
            out.flush()?;
            let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.sync_all()?;
            let bytes = file.metadata()?.len();
            fs::rename(&unfinished, path)?;
            Ok((counts, bytes))
        })();
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        } else if let Some(folder) = path.parent() {
            // The rename itself survives a power failure only then. Not every file system can do it.
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            let _ = File::open(folder).and_then(|folder| folder.sync_all());
        }
        written
    }
}

/// The file that a snapshot is written to until it is complete.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tidegate_core::{Charge, Key, RuleId};

    use super::*;

    fn folder() -> PathBuf {
        let name = format!("tidegate-state-{}-{:?}", std::process::id(), std::thread::current().id());
        let folder = std::env::temp_dir().join(name.replace(['(', ')'], "-"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_only_its_owner_can_read_it() {
        let folder = folder();
        let path = folder.join("state");
        assert!(read(&path, 1_000).unwrap().is_none());
        let settings = StateFileSettings { path: path.clone(), every: Duration::from_secs(5) };
        let file = StateFile::new(settings, StateFileLock::default(), b"key".to_vec());
        // What a process left that was killed while it wrote.
        fs::write(folder.join("state.new"), "half").unwrap();
        let store = MemoryStore::with_clock_and_cap(SystemClock::new(), 1_000);
        let (rule, limit) = (RuleId::new("rule"), "fixed 10/year".parse().unwrap());
        for left in [9, 8] {
            store.decide(&[Charge::new(&rule, &Key::from("alice"), &limit)]).unwrap();
            assert_eq!(file.save(&store).unwrap().keys, 1);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            let restored = read(&path, 1_000).unwrap().unwrap();
            assert_eq!(restored.note, b"key");
            let key = Key::from("alice");
            let charge = Charge::new(&rule, &key, &limit).cost(0);
            assert_eq!(restored.store.peek_one(&charge).remaining, left);
        }
        let stats = file.stats();
        assert_eq!((stats.saves, stats.failures), (2, 0));
        assert!(stats.saved_at > 1_600_000_000 && stats.bytes == fs::metadata(&path).unwrap().len());
        // The folder is gone, and so nothing can be written.
        fs::remove_dir_all(&folder).unwrap();
        assert!(file.save(&store).is_err());
        assert_eq!(file.stats().failures, 1);
    }

    #[test]
    fn a_symbolic_link_stays_and_its_target_is_replaced() {
        let folder = folder();
        let (target, link) = (folder.join("elsewhere"), folder.join("state"));
        let store = MemoryStore::with_clock_and_cap(SystemClock::new(), 1_000);
        let file = |path: &Path| {
            let settings = StateFileSettings { path: path.to_owned(), every: Duration::from_secs(5) };
            StateFile::new(settings, StateFileLock::default(), Vec::new())
        };
        file(&target).save(&store).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let rule = RuleId::new("rule");
        store.decide(&[Charge::new(&rule, &Key::from("alice"), &"fixed 10/year".parse().unwrap())]).unwrap();
        file(&link).save(&store).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(read(&target, 1_000).unwrap().unwrap().counts.keys, 1);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_of_another_program_is_refused_with_what_to_do() {
        let folder = folder();
        let path = folder.join("state");
        fs::write(&path, "something else entirely").unwrap();
        let error = read(&path, 1_000).err().unwrap().to_string();
        let told =
            "cannot be used: it is not a snapshot of Tidegate's state. To start without the state in it, move it away";
        assert!(error.ends_with(told), "{error}");
        assert!(read(&folder, 1_000).err().unwrap().to_string().contains("it cannot be read"));
        assert!(read(Path::new("/dev/null"), 1_000).err().unwrap().to_string().contains("it is not a regular file"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
