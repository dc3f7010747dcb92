//! State in memory that survives restarts, in a file or through a handover.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tidegate_core::memory::{Restored, SnapshotCounts};
use tidegate_core::{Clock, MemoryStore, SystemClock};
use tidegate_rules::Secret;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::ServeError;
use crate::config::{Configuration, StoreSettings};
use crate::engine::Engine;
use crate::listen::{HandedState, InheritedListeners};
use crate::state_file::{self, StateFile, StateFileSettings};
use crate::state_file_lock::StateFileLock;
use crate::store::AnyStore;

/// An opened store, the key that secrets are hashed with, and the state file.
pub(super) struct OpenedStore {
    pub(super) store: AnyStore,
    pub(super) secret: Secret,
    pub(super) file: Option<Arc<StateFile>>,
    /// Key that secrets are hashed with, if it is not configured. Saved with every snapshot.
    note: Vec<u8>,
}

impl OpenedStore {
    /// Opens the store. State handed over by a predecessor takes precedence over the file, which is left as it is until the
    /// handover is complete.
    pub(super) fn open(
        configuration: &Configuration,
        inherited: &mut InheritedListeners,
    ) -> Result<OpenedStore, ServeError> {
        // Read in any case: the predecessor waits until it is.
        let handed = inherited.state(configuration.store.keys_in_memory())?;
        let StoreSettings::Memory { keys, file } = &configuration.store else {
            let store = configuration.store.open()?;
            return Ok(OpenedStore { store, secret: configuration.secret(), file: None, note: Vec::new() });
        };
        let was_handed = handed.is_some();
        let (mut lock, mut in_file, mut is_shared) = (StateFileLock::default(), None, false);
        if let Some(StateFileSettings { path, .. }) = file {
            match inherited.lock().and_then(|handed| StateFileLock::adopt(path, handed)) {
                Some(shared) => (lock, is_shared) = (shared, true),
                None => {
                    lock = StateFileLock::acquire(path)?;
                    // The state in it is not used after a handover, but a file of another program is refused in any case.
                    in_file = state_file::read(path, if was_handed { 0 } else { *keys })?;
                }
            }
        }
        let restored = handed.or(in_file);
        let kept_key = restored.as_ref().and_then(|restored| String::from_utf8(restored.note.clone()).ok());
        let (secret, note) = match &configuration.secrets {
            Some(secret) => (secret.clone(), Vec::new()),
            // Without the saved key, keys with a hashed part would not be found again.
            None => match kept_key.and_then(|key| Some((key.parse().ok()?, key))) {
                Some((secret, key)) => (secret, key.into_bytes()),
                None => random_secret()?,
            },
        };
        let store = restored.map_or_else(|| MemoryStore::with_clock_and_cap(SystemClock::new(), *keys), taken);
        let file = file.as_ref().map(|settings| Arc::new(StateFile::new(settings.clone(), lock, note.clone())));
        if let Some(file) = &file {
            // A folder that does not exist or cannot be written to is found now. If the predecessor cannot write either,
            // the state goes on all the same.
            let path = file.settings().path.clone();
            let saved = match (was_handed, is_shared) {
                (false, _) => first_snapshot(file, &store),
                (true, false) => file.check_writable(),
                (true, true) => Ok(()),
            };
            saved.map_err(|error| ServeError::StateFile { path, error })?;
        }
        Ok(OpenedStore { store: store.into(), secret, file, note })
    }

    /// The state for a successor; `None` if it is not in memory.
    pub(super) fn for_successor(
        engine: &Arc<Engine>,
        file: Option<&Arc<StateFile>>,
        note: Vec<u8>,
    ) -> Option<Box<dyn HandedState>> {
        let engine = Arc::clone(engine);
        let is_in_memory = engine.limiter().store().is_in_memory();
        is_in_memory.then(|| -> Box<dyn HandedState> { Box::new(StateInMemory { engine, file: file.cloned(), note }) })
    }

    /// Takes the saved key, for [`OpenedStore::for_successor`].
    pub(super) fn take_note(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.note)
    }
}

/// State in memory, for a successor that may use the same file.
struct StateInMemory {
    engine: Arc<Engine>,
    file: Option<Arc<StateFile>>,
    note: Vec<u8>,
}

impl HandedState for StateInMemory {
    fn send(&self, mut out: &mut dyn Write) -> io::Result<SnapshotCounts> {
        let AnyStore::Memory(store) = self.engine.limiter().store() else { return Ok(SnapshotCounts::default()) };
        store.save(&mut out, &self.note)
    }

    fn lock(&self) -> Option<OwnedFd> {
        self.file.as_ref().and_then(|file| file.share_lock())
    }

    fn leave(&self) {
        if let Some(file) = &self.file {
            file.leave();
        }
    }
}

/// Saves the state for the first time, and removes what killed processes have left beside the file.
fn first_snapshot(file: &StateFile, store: &MemoryStore) -> io::Result<()> {
    file.remove_unfinished();
    file.save(store).map(drop)
}

/// The store of a snapshot. Logs what was in it.
fn taken(restored: Restored<SystemClock>) -> MemoryStore {
    let Restored { store, counts, dropped, saved_at, .. } = restored;
    let age = store.clock().now().since(saved_at);
    tracing::info!(keys = counts.keys, reservations = counts.reservations, %age, "state was restored");
    if dropped > 0 {
        tracing::warn!(dropped, "part of the saved state was dropped: `store.keys` is lower than before");
    }
    store
}

/// A random key, and its text.
fn random_secret() -> Result<(Secret, Vec<u8>), ServeError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| ServeError::Randomness(error.to_string()))?;
    let text = format!("{:032x}", u128::from_ne_bytes(bytes));
    let secret = text.parse().unwrap_or_else(|_| Secret::random());
    Ok((secret, text.into_bytes()))
}

/// Task that saves the state periodically.
pub(super) struct StateSaver {
    file: Arc<StateFile>,
    engine: Arc<Engine>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl StateSaver {
    /// Starts saving. The first snapshot is written at once if none was when the store was opened.
    pub(super) fn start(file: Arc<StateFile>, engine: Arc<Engine>) -> StateSaver {
        let stop = CancellationToken::new();
        let task = tokio::spawn(save_repeatedly(Arc::clone(&file), Arc::clone(&engine), stop.clone()));
        StateSaver { file, engine, stop, task }
    }

    /// Stops saving, and releases the file. A snapshot in progress is completed.
    pub(super) async fn stop(self) {
        self.end_saving().await.0.release();
    }

    /// Saves once more, and releases the file.
    pub(super) async fn finish(self) {
        let (file, engine) = self.end_saving().await;
        let _ = with_store(&file, engine, |file, store| file.save(store).map(drop)).await;
        file.release();
    }

    async fn end_saving(self) -> (Arc<StateFile>, Arc<Engine>) {
        self.stop.cancel();
        let _ = self.task.await;
        (self.file, self.engine)
    }
}

async fn save_repeatedly(file: Arc<StateFile>, engine: Arc<Engine>, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(file.settings().every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is immediate.
    ticks.tick().await;
    if file.stats().saves == 0 {
        let _ = with_store(&file, Arc::clone(&engine), first_snapshot).await;
    }
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let _ = with_store(&file, Arc::clone(&engine), |file, store| file.save(store).map(drop)).await;
    }
}

/// Saves on a thread for blocking work.
async fn with_store(
    file: &Arc<StateFile>,
    engine: Arc<Engine>,
    save: fn(&StateFile, &MemoryStore) -> io::Result<()>,
) -> io::Result<()> {
    let file = Arc::clone(file);
    let save = move || match engine.limiter().store() {
        AnyStore::Memory(store) => save(&file, store),
        AnyStore::Redis(_) => Ok(()),
    };
    tokio::task::spawn_blocking(save).await.map_err(io::Error::other)?
}
