//! The successor's side of a handover.

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::net::sockopt::socket_peercred;
use tidegate_core::memory::Restored;
use tidegate_core::{MemoryStore, SystemClock};

use super::{
    GRANTED, HandoverError, LEFT, READY, Reason, SEND_TIME, TAKEN, WITH_STATE, WITH_STATE_AND_LOCK, another_user,
    descriptors, expect, listener_at,
};

/// Sockets received from a predecessor.
pub struct InheritedListeners {
    predecessor: Option<UnixStream>,
    listeners: Vec<TcpListener>,
    /// Whether the predecessor sends its state next.
    has_state: bool,
    lock: Option<OwnedFd>,
    path: PathBuf,
}

impl InheritedListeners {
    /// No sockets, without a predecessor.
    #[must_use]
    pub fn none() -> InheritedListeners {
        InheritedListeners {
            predecessor: None,
            listeners: Vec::new(),
            has_state: false,
            lock: None,
            path: PathBuf::new(),
        }
    }

    /// Receives the sockets of the server that listens on `path`, if there is one.
    ///
    /// # Errors
    /// If the process there does not hand over its sockets.
    pub fn take(path: &Path) -> Result<InheritedListeners, HandoverError> {
        let take = || {
            let Some(predecessor) = listener_at(path)? else { return Ok(InheritedListeners::none()) };
            if let Some(uid) = another_user(&predecessor)? {
                return Err(Reason::AnotherUser(uid));
            }
            predecessor.set_read_timeout(Some(SEND_TIME))?;
            predecessor.set_write_timeout(Some(SEND_TIME))?;
            let (mut descriptors, byte) = descriptors::receive(&predecessor)?;
            let lock = if byte == WITH_STATE_AND_LOCK { descriptors.pop() } else { None };
            Ok(InheritedListeners {
                predecessor: Some(predecessor),
                listeners: descriptors.into_iter().map(TcpListener::from).collect(),
                has_state: matches!(byte, WITH_STATE | WITH_STATE_AND_LOCK),
                lock,
                path: path.to_owned(),
            })
        };
        take().map_err(HandoverError::at(path))
    }

    /// Whether there is a server to take over from.
    pub(crate) const fn has_predecessor(&self) -> bool {
        self.predecessor.is_some()
    }

    /// The state that the predecessor sends, for a store in memory of up to `keys` keys. `None` if it sends none, or if this
    /// server keeps its state elsewhere.
    ///
    /// # Errors
    /// If the state is incomplete, or of another version.
    pub fn state(&mut self, keys: Option<usize>) -> Result<Option<Restored<SystemClock>>, HandoverError> {
        let Some(predecessor) = self.predecessor.as_ref().filter(|_| self.has_state) else { return Ok(None) };
        self.has_state = false;
        // The predecessor sends nothing after the state until this server is up, so buffering loses no later bytes.
        let mut input = BufReader::with_capacity(1 << 16, predecessor);
        match MemoryStore::restore(SystemClock::new(), keys.unwrap_or(0), &mut input) {
            Ok(restored) => Ok(keys.map(|_| restored)),
            Err(error) => Err(HandoverError { path: self.path.clone(), reason: Reason::State(error) }),
        }
    }

    /// The lock of the predecessor's state file, if it has one.
    pub const fn lock(&mut self) -> Option<OwnedFd> {
        self.lock.take()
    }

    /// The listening socket for `address`, if it was handed over.
    pub(crate) fn listener(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let is_there = |listener: &TcpListener| listener.local_addr().is_ok_and(|known| known == address);
        let place = self.listeners.iter().position(is_there)?;
        Some(self.listeners.swap_remove(place))
    }

    /// Reports to the predecessor that this server is up. Afterwards, the handover depends on this server alone: the
    /// predecessor stops on [`ConfirmedHandover::complete`]. `None` without a predecessor, or if it has ended meanwhile.
    ///
    /// # Errors
    /// If the predecessor continues instead.
    pub(crate) fn confirm(self) -> Result<Option<ConfirmedHandover>, HandoverError> {
        let InheritedListeners { predecessor, path, .. } = self;
        let Some(mut predecessor) = predecessor else { return Ok(None) };
        let confirmed =
            predecessor.write_all(&[READY]).map_err(Reason::Io).and_then(|()| expect(&predecessor, GRANTED));
        match confirmed {
            Ok(()) => Ok(Some(ConfirmedHandover { predecessor, path })),
            Err(_) => ended(&path).map(|()| None),
        }
    }
}

/// A handover that the predecessor has agreed to.
pub(crate) struct ConfirmedHandover {
    predecessor: UnixStream,
    path: PathBuf,
}

impl ConfirmedHandover {
    /// Process id of the predecessor.
    pub(crate) fn predecessor(&self) -> Option<u32> {
        let credentials = socket_peercred(&self.predecessor).ok()?;
        u32::try_from(credentials.pid.as_raw_nonzero().get()).ok()
    }

    /// Makes the predecessor stop, and waits until it has left the path and the state file.
    ///
    /// # Errors
    /// If the predecessor continues instead.
    pub(crate) fn complete(mut self) -> Result<(), HandoverError> {
        let left = self.predecessor.write_all(&[TAKEN]).map_err(Reason::Io);
        left.and_then(|()| expect(&self.predecessor, LEFT)).or_else(|_| ended(&self.path))
    }
}

/// Tells a predecessor that has ended from one that continues.
fn ended(path: &Path) -> Result<(), HandoverError> {
    match listener_at(path) {
        Ok(None) => Ok(()),
        Ok(Some(_)) => Err(HandoverError { path: path.to_owned(), reason: Reason::NotConfirmed }),
        Err(reason) => Err(HandoverError { path: path.to_owned(), reason }),
    }
}
