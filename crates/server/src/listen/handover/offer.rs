//! The predecessor's side of a handover.

use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use super::descriptors::{self, MOST_LISTENERS};
use super::{
    GRANTED, HandedState, HandoverError, LEFT, READY, Reason, SEND_TIME, START_TIME, TAKEN, WITH_STATE,
    WITH_STATE_AND_LOCK, WITHOUT_STATE, another_user, expect, listener_at,
};

/// Sockets that are kept for a successor. Clones refer to the same offer.
#[derive(Clone)]
pub struct HandoverOffer {
    path: Arc<Path>,
    /// Device and inode of the socket at `path`.
    file: (u64, u64),
    /// `None` once handed over or withdrawn.
    sockets: Arc<Mutex<Option<Vec<OwnedFd>>>>,
}

impl HandoverOffer {
    /// Withdraws the offer: the listeners can close, and the socket at `path` is removed. Does nothing after a
    /// handover.
    pub fn withdraw(&self) {
        // Holds the lock until the end: after that, the path may belong to a successor.
        let mut sockets = self.lock();
        let is_ours =
            || std::fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.file);
        if sockets.take().is_some() && is_ours() {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<OwnedFd>>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Offers these sockets and this state to processes that connect to `path`, until one of them has taken over. Then
/// cancels `succeeded`. The state is written at the time of the connection.
///
/// # Errors
/// If it cannot listen on `path`.
pub fn hand_over(
    path: &Path,
    sockets: Vec<OwnedFd>,
    state: Option<Box<dyn HandedState>>,
    succeeded: CancellationToken,
) -> Result<HandoverOffer, HandoverError> {
    let listen = || {
        // A socket without a listener is a leftover: a predecessor would have been asked before.
        if listener_at(path)?.is_some() {
            return Err(Reason::InUse);
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let file = std::fs::symlink_metadata(path)?;
        Ok((listener, (file.dev(), file.ino())))
    };
    let (listener, file) = listen().map_err(HandoverError::at(path))?;
    let offer = HandoverOffer { path: path.into(), file, sockets: Arc::new(Mutex::new(Some(sockets))) };
    let offered = offer.clone();
    // A detached thread: it may wait for a successor forever, and nothing joins it.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            match serve_successor(stream, &offered, state.as_deref()) {
                Ok(mut successor) => {
                    tracing::info!("another server takes over");
                    if let Some(state) = &state {
                        state.leave();
                    }
                    // From now on, `path` belongs to the successor.
                    drop(listener);
                    succeeded.cancel();
                    let _ = successor.write_all(&[LEFT]);
                    return;
                }
                Err(error) => tracing::warn!(%error, "the server that was to take over did not start"),
            }
        }
    });
    Ok(offer)
}

/// Sends the sockets and the state, and waits until the successor has taken over. The sockets are released then.
fn serve_successor(
    mut stream: UnixStream,
    offer: &HandoverOffer,
    state: Option<&dyn HandedState>,
) -> Result<UnixStream, Reason> {
    if let Some(uid) = another_user(&stream)? {
        return Err(Reason::AnotherUser(uid));
    }
    stream.set_read_timeout(Some(START_TIME))?;
    stream.set_write_timeout(Some(SEND_TIME))?;
    let lock = state.and_then(HandedState::lock);
    let byte = match (state, &lock) {
        (None, _) => WITHOUT_STATE,
        (Some(_), None) => WITH_STATE,
        (Some(_), Some(_)) => WITH_STATE_AND_LOCK,
    };
    {
        let sockets = offer.lock();
        let sockets = sockets.as_deref().ok_or(Reason::Withdrawn)?.iter().take(MOST_LISTENERS);
        let handed: Vec<_> = sockets.chain(&lock).map(AsFd::as_fd).collect();
        descriptors::send(&stream, &handed, byte)?;
    }
    drop(lock);
    if let Some(state) = state {
        let mut out = BufWriter::with_capacity(1 << 16, &stream);
        state.send(&mut out)?;
        out.flush()?;
    }
    expect(&stream, READY)?;
    if offer.lock().is_none() {
        return Err(Reason::Withdrawn);
    }
    stream.set_read_timeout(Some(SEND_TIME))?;
    stream.write_all(&[GRANTED])?;
    expect(&stream, TAKEN)?;
    offer.lock().take().map(|_| stream).ok_or(Reason::Withdrawn)
}
