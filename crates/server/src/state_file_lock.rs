//! Lock on a state file, so that only one server writes it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A state file that another server uses.
#[derive(Debug, thiserror::Error)]
#[error("the state file `{}` is in use by another server: give each server its own `store.file`", .0.display())]
pub struct StateFileInUse(PathBuf);

/// Lock on a state file, for as long as this value or its process lives.
///
/// The lock is on a file beside the state file, which is replaced with every snapshot. It stays there: a server that removed it
/// could remove the one that another server has just locked.
#[derive(Debug, Default)]
pub struct StateFileLock(Arc<Mutex<Option<File>>>);

impl StateFileLock {
    /// Locks a state file.
    ///
    /// # Errors
    /// If another server holds the lock. A file system without locks, or a folder that cannot be written to, is no error: the
    /// first is logged, and the second is found when the state is saved.
    pub fn acquire(path: &Path) -> Result<StateFileLock, StateFileInUse> {
        let Ok(file) = open(path) else { return Ok(StateFileLock::default()) };
        match file.try_lock() {
            Ok(()) => Ok(StateFileLock(Arc::new(Mutex::new(Some(file))))),
            Err(TryLockError::WouldBlock) => Err(StateFileInUse(path.to_owned())),
            Err(TryLockError::Error(error)) => {
                tracing::warn!(%error, file = %path.display(), "the state file cannot be locked: no other server may use it");
                Ok(StateFileLock::default())
            }
        }
    }

    /// Locks a state file as soon as its present owner releases it, which a predecessor does after a handover.
    #[must_use]
    pub fn inherit(path: &Path) -> StateFileLock {
        let lock = StateFileLock::default();
        let (shared, path) = (Arc::downgrade(&lock.0), path.to_owned());
        std::thread::spawn(move || {
            if let Ok(file) = open(&path)
                && file.lock().is_ok()
                && let Some(shared) = shared.upgrade()
            {
                *shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
            }
        });
        lock
    }

    /// Releases the lock.
    pub fn release(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(PathBuf::from(name))
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
    fn a_successor_gets_the_lock_when_its_predecessor_releases_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let predecessor = StateFileLock::acquire(&path).unwrap();
        let successor = StateFileLock::inherit(&path);
        predecessor.release();
        let holds = || successor.0.lock().unwrap().is_some();
        while !holds() {
            std::thread::yield_now();
        }
        assert!(StateFileLock::acquire(&path).is_err());
    }
}
