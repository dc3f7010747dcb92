//! Lock on a state file, so that only one server writes it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The state file is in use by another server.
#[derive(Debug, thiserror::Error)]
#[error("the state file `{}` is in use by another server: give each server its own `store.file`", .0.display())]
pub struct StateFileInUse(PathBuf);

/// Lock on a state file, held until this value is dropped or its process ends.
///
/// The lock is on a separate file, because each snapshot replaces the state file. The lock file is never removed: a
/// server could otherwise remove one that another server has just locked.
#[derive(Debug, Default)]
pub struct StateFileLock(Mutex<Option<File>>);

impl StateFileLock {
    /// Locks a state file.
    ///
    /// # Errors
    /// If another server holds the lock. A file system without locks, or an unwritable folder, is not an error: the
    /// former is logged, and the latter is detected when the state is saved.
    pub fn acquire(path: &Path) -> Result<StateFileLock, StateFileInUse> {
        let Ok(file) = open(path) else { return Ok(StateFileLock::default()) };
        match file.try_lock() {
            Ok(()) => Ok(StateFileLock(Mutex::new(Some(file)))),
            Err(TryLockError::WouldBlock) => Err(StateFileInUse(path.to_owned())),
            Err(TryLockError::Error(error)) => {
                tracing::warn!(%error, file = %path.display(), "the state file cannot be locked: no other server may use it");
                Ok(StateFileLock::default())
            }
        }
    }

    /// Shares the lock that a predecessor holds. `None` if that is on another state file.
    #[must_use]
    pub fn adopt(path: &Path, handed: OwnedFd) -> Option<StateFileLock> {
        let handed = File::from(handed);
        is_lock_of(path, &handed).then(|| StateFileLock(Mutex::new(Some(handed))))
    }

    /// The lock, for a successor: it is held until both processes have released it. `None` if it is not held.
    #[must_use]
    pub fn share(&self) -> Option<OwnedFd> {
        self.held().as_ref().and_then(|file| file.try_clone().ok()).map(OwnedFd::from)
    }

    /// Whether the lock is held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held().is_some()
    }

    /// Releases the lock.
    pub fn release(&self) {
        *self.held() = None;
    }

    fn held(&self) -> MutexGuard<'_, Option<File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Path of the lock on a state file.
fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(lock_path(path))
}

/// Whether an open file is the lock on this state file.
fn is_lock_of(path: &Path, handed: &File) -> bool {
    let same = || {
        let (there, handed) = (fs::metadata(lock_path(path))?, handed.metadata()?);
        io::Result::Ok((there.dev(), there.ino()) == (handed.dev(), handed.ino()))
    };
    same().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_owner_until_it_is_released() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let lock = StateFileLock::acquire(&path).unwrap();
        let refused = StateFileLock::acquire(&path).unwrap_err().to_string();
        assert!(refused.ends_with("is in use by another server: give each server its own `store.file`"), "{refused}");
        assert!(StateFileLock::acquire(&folder.path().join("other")).is_ok());
        lock.release();
        let next = StateFileLock::acquire(&path).unwrap();
        drop(next);
        assert!(StateFileLock::acquire(&path).is_ok());
    }

    #[test]
    fn a_successor_shares_the_lock_of_its_predecessor_on_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let predecessor = StateFileLock::acquire(&path).unwrap();
        assert!(StateFileLock::adopt(&folder.path().join("other"), predecessor.share().unwrap()).is_none());
        let successor = StateFileLock::adopt(&path, predecessor.share().unwrap()).unwrap();
        assert!(StateFileLock::acquire(&path).is_err());
        predecessor.release();
        assert!(predecessor.share().is_none() && !predecessor.is_held());
        assert!(successor.is_held() && StateFileLock::acquire(&path).is_err(), "there is no moment without an owner");
        successor.release();
        assert!(StateFileLock::acquire(&path).is_ok());
    }
}
