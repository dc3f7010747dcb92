//! State in memory that survives restarts: in a file, and through a handover.

use std::io::{self, Write};
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
use crate::listen::StateSource;
use crate::state_file::{self, StateFile};
use crate::state_file_lock::StateFileLock;
use crate::store::AnyStore;

/// An opened store, the key that secrets are hashed with, and the file of its state.
pub(super) struct OpenedStore {
    pub(super) store: AnyStore,
    pub(super) secret: Secret,
    pub(super) file: Option<Arc<StateFile>>,
    /// Saved with every snapshot: the key, if it is not configured.
    note: Vec<u8>,
}

impl OpenedStore {
    /// Opens the store. State that a predecessor handed over takes precedence over that in the file.
    pub(super) fn open(
        configuration: &Configuration,
        handed: Option<Restored<SystemClock>>,
    ) -> Result<OpenedStore, ServeError> {
        let StoreSettings::Memory { keys, file } = &configuration.store else {
            let store = configuration.store.open()?;
            return Ok(OpenedStore { store, secret: configuration.secret(), file: None, note: Vec::new() });
        };
        let lock = match file {
            // The predecessor still holds it, and saves no more.
            Some(settings) if handed.is_some() => StateFileLock::inherit(&settings.path),
            Some(settings) => StateFileLock::acquire(&settings.path)?,
            None => StateFileLock::default(),
        };
        let restored = match (handed, file) {
            (Some(handed), _) => Some(handed),
            (None, Some(settings)) => state_file::read(&settings.path, *keys)?,
            (None, None) => None,
        };
        let kept_key = restored.as_ref().and_then(|restored| String::from_utf8(restored.note.clone()).ok());
        let (secret, note) = match &configuration.secrets {
            Some(secret) => (secret.clone(), Vec::new()),
            // Without the key, keys that contain a secret would not be found again.
            None => match kept_key.and_then(|key| Some((key.parse().ok()?, key))) {
                Some((secret, key)) => (secret, key.into_bytes()),
                None => random_secret()?,
            },
        };
        let store = restored.map_or_else(|| MemoryStore::with_clock_and_cap(SystemClock::new(), *keys), taken);
        let file = file.as_ref().map(|settings| Arc::new(StateFile::new(settings.clone(), lock, note.clone())));
        if let Some(file) = &file {
            // A folder that does not exist or cannot be written to is found now.
            let path = file.settings().path.clone();
            file.save(&store).map_err(|error| ServeError::StateFile { path, error })?;
        }
        Ok(OpenedStore { store: store.into(), secret, file, note })
    }

    /// The source of the state for a successor; `None` if it is not in memory.
    pub(super) fn for_successor(engine: &Arc<Engine>, note: Vec<u8>) -> Option<StateSource> {
        if !engine.limiter().store().is_in_memory() {
            return None;
        }
        let engine = Arc::clone(engine);
        Some(Box::new(move |mut out: &mut dyn Write| {
            let AnyStore::Memory(store) = engine.limiter().store() else { return Ok(SnapshotCounts::default()) };
            store.save(&mut out, &note)
        }))
    }

    /// Takes the note, for [`OpenedStore::for_successor`].
    pub(super) fn take_note(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.note)
    }
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

/// The task that saves the state every few seconds.
pub(super) struct StateSaver {
    file: Arc<StateFile>,
    engine: Arc<Engine>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl StateSaver {
    /// Begins to save.
    pub(super) fn start(file: Arc<StateFile>, engine: Arc<Engine>) -> StateSaver {
        let stop = CancellationToken::new();
        let task = tokio::spawn(save_repeatedly(Arc::clone(&file), Arc::clone(&engine), stop.clone()));
        StateSaver { file, engine, stop, task }
    }

    /// Saves no more, and releases the file. A snapshot that is being written is completed.
    pub(super) async fn stop(self) {
        self.end_saving().await.0.release();
    }

    /// Saves once more, and releases the file.
    pub(super) async fn finish(self) {
        let (file, engine) = self.end_saving().await;
        let _ = save(Arc::clone(&file), engine).await;
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
    // The first tick is at once, and the state was saved when the store was opened.
    ticks.tick().await;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let _ = save(Arc::clone(&file), Arc::clone(&engine)).await;
    }
}

/// Saves on a thread for blocking work.
async fn save(file: Arc<StateFile>, engine: Arc<Engine>) -> io::Result<()> {
    let save = move || match engine.limiter().store() {
        AnyStore::Memory(store) => file.save(store).map(|_| ()),
        AnyStore::Redis(_) => Ok(()),
    };
    tokio::task::spawn_blocking(save).await.map_err(io::Error::other)?
}
