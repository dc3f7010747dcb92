//! One server takes the place of another, and no connection is refused meanwhile.
//!
//! A server that may be succeeded listens at a Unix socket. Its successor connects there, is handed the sockets that the listeners
//! listen at, and serves from them: every client finds one of the two. When it is up it says so, and the first one stops as
//! if it were told to: it accepts no more, and finishes what is in flight. Sharing an address by `SO_REUSEPORT` would not do:
//! what waits in the queue of a socket that is closed is lost.
//!
//! The path of that Unix socket may be mistaken or belong to another program, so only a socket without a listener is ever
//! removed, and both sides deal only with processes of the same user, or of root.

use std::io::{self, BufReader, BufWriter, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use rustix::process::geteuid;
use tidegate_core::memory::{Restored, SnapshotCounts, SnapshotError};
use tidegate_core::{MemoryStore, SystemClock};
use tokio_util::sync::CancellationToken;

/// The most listeners there are.
const MOST: usize = 16;
/// The time for a predecessor to send its sockets, which it does at once unless it is busy with another successor.
const SEND_TIME: Duration = Duration::from_secs(10);
/// The time for a successor to start.
const START_TIME: Duration = Duration::from_secs(60);

/// The sockets that a predecessor has handed over.
pub struct InheritedListeners {
    predecessor: Option<UnixStream>,
    listeners: Vec<TcpListener>,
    /// Whether the predecessor sends its state next.
    has_state: bool,
    path: PathBuf,
}

/// Writes the state of a server for its successor.
pub type StateSource = Box<dyn Fn(&mut dyn Write) -> io::Result<SnapshotCounts> + Send>;

/// The byte that comes with the sockets: whether the state follows.
const WITHOUT_STATE: u8 = b'!';
const WITH_STATE: u8 = b'+';

/// Nothing can be handed over.
#[derive(Debug, thiserror::Error)]
#[error("`{}` cannot be used to hand over: {reason}", path.display())]
pub struct HandoverError {
    path: PathBuf,
    reason: Reason,
}

impl HandoverError {
    fn at(path: &Path) -> impl Fn(Reason) -> HandoverError {
        move |reason| HandoverError { path: path.to_owned(), reason }
    }
}

/// The reason why a handover fails.
#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error("it is {0}, not a Unix socket: name a path at which there is nothing yet")]
    NotASocket(&'static str),
    #[error("a process of another user (uid {0}) listens there")]
    AnotherUser(u32),
    #[error(
        "the process that listens there hands over nothing within {:?}: is it another program's socket?",
        SEND_TIME
    )]
    Silent,
    #[error("the process that listens there hands over no listeners: is it another program's socket?")]
    Nothing,
    #[error("another process listens there")]
    InUse,
    #[error("the state of the server there cannot be taken over: {0}")]
    State(SnapshotError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<rustix::io::Errno> for Reason {
    fn from(error: rustix::io::Errno) -> Reason {
        Reason::Io(error.into())
    }
}

impl InheritedListeners {
    /// No sockets, from no predecessor.
    #[must_use]
    pub fn none() -> InheritedListeners {
        InheritedListeners { predecessor: None, listeners: Vec::new(), has_state: false, path: PathBuf::new() }
    }

    /// From the server that listens at `path`, if there is one.
    ///
    /// # Errors
    /// If there is one that hands over nothing.
    pub fn take(path: &Path) -> Result<InheritedListeners, HandoverError> {
        let take = || {
            let Some(predecessor) = listener_at(path)? else { return Ok(InheritedListeners::none()) };
            if let Some(uid) = another_user(&predecessor)? {
                return Err(Reason::AnotherUser(uid));
            }
            predecessor.set_read_timeout(Some(SEND_TIME))?;
            let (sockets, byte) = receive(&predecessor)?;
            let listeners = sockets.into_iter().map(TcpListener::from).collect();
            // It answers once more, when it has accepted its last connection.
            predecessor.set_read_timeout(Some(START_TIME))?;
            Ok(InheritedListeners {
                predecessor: Some(predecessor),
                listeners,
                has_state: byte == WITH_STATE,
                path: path.to_owned(),
            })
        };
        take().map_err(HandoverError::at(path))
    }

    /// The state that the predecessor sends, for a store in memory of up to `keys` keys. `None` if it sends none, or if this
    /// server keeps its state elsewhere.
    ///
    /// # Errors
    /// If it is not complete, or of another version.
    pub fn state(&mut self, keys: Option<usize>) -> Result<Option<Restored<SystemClock>>, HandoverError> {
        let Some(predecessor) = self.predecessor.as_ref().filter(|_| self.has_state) else { return Ok(None) };
        self.has_state = false;
        // Nothing else comes until the predecessor was told that it may stop, so that no byte is read in vain.
        let mut input = BufReader::with_capacity(1 << 16, predecessor);
        match MemoryStore::restore(SystemClock::new(), keys.unwrap_or(0), &mut input) {
            Ok(restored) => Ok(keys.map(|_| restored)),
            Err(error) => Err(HandoverError { path: self.path.clone(), reason: Reason::State(error) }),
        }
    }

    /// The socket that listens at `address`, if it was handed over.
    pub(crate) fn listener(&mut self, address: std::net::SocketAddr) -> Option<TcpListener> {
        let is_there = |listener: &TcpListener| listener.local_addr().is_ok_and(|known| known == address);
        let place = self.listeners.iter().position(is_there)?;
        Some(self.listeners.swap_remove(place))
    }

    /// Tells the predecessor that it may stop, and waits until it has accepted its last connection. Says whether there was one.
    pub fn accept(self) -> bool {
        let Some(mut predecessor) = self.predecessor else { return false };
        // One that is gone already has stopped.
        let _ = predecessor.write_all(b"!");
        let _ = predecessor.read(&mut [0]);
        true
    }
}

/// Sockets that are kept for a successor. A clone is the same.
#[derive(Clone)]
pub struct HandoverOffer {
    path: Arc<Path>,
    /// The socket at `path`, by device and inode.
    file: (u64, u64),
    /// `None` once they are handed over or withdrawn.
    sockets: Arc<Mutex<Option<Vec<OwnedFd>>>>,
}

impl HandoverOffer {
    /// Withdraws the offer: the listeners close when they are told to, and nothing listens at `path` any more. Does nothing once
    /// a successor has taken over.
    pub fn withdraw(&self) {
        // Holds the lock: once it is released, the path may belong to a successor.
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

/// Hands these sockets and this state to processes that connect to `path`, until one of them reports that it is up. Then cancels
/// `succeeded`. The state is that of the moment at which the process connects.
///
/// # Errors
/// If it cannot listen there.
pub fn hand_over(
    path: &Path,
    sockets: Vec<OwnedFd>,
    state: Option<StateSource>,
    succeeded: CancellationToken,
) -> Result<HandoverOffer, HandoverError> {
    let listen = || {
        // Its listener is gone: a predecessor was asked first.
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
    // It waits for a successor that may never come, and nothing waits for it.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            match serve_successor(stream, &offered, state.as_ref()) {
                Ok(mut successor) => {
                    tracing::info!("another server takes over");
                    // From now on `path` is the successor's.
                    drop(listener);
                    drop(offered.lock().take());
                    succeeded.cancel();
                    let _ = successor.write_all(b"!");
                    return;
                }
                Err(error) => tracing::warn!(%error, "a server that was to take over has not come up"),
            }
        }
    });
    Ok(offer)
}

/// Connects to the process that listens at the Unix socket `path`, if there is one.
fn listener_at(path: &Path) -> Result<Option<UnixStream>, Reason> {
    let kind = match std::fs::symlink_metadata(path) {
        Ok(found) => found.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let other = if kind.is_socket() {
        None
    } else if kind.is_file() {
        Some("a regular file")
    } else if kind.is_dir() {
        Some("a directory")
    } else if kind.is_symlink() {
        Some("a symbolic link")
    } else {
        Some("a device or a pipe")
    };
    if let Some(other) = other {
        return Err(Reason::NotASocket(other));
    }
    match UnixStream::connect(path) {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The user at the other end, unless it is this process' own or root: listeners that others share could be theirs to answer.
fn another_user(stream: &UnixStream) -> Result<Option<u32>, Reason> {
    let user = socket_peercred(stream)?.uid;
    Ok((user != geteuid() && !user.is_root()).then(|| user.as_raw()))
}

/// Sends the sockets and the state, and waits until the other one says that it is up.
fn serve_successor(
    mut stream: UnixStream,
    offer: &HandoverOffer,
    state: Option<&StateSource>,
) -> Result<UnixStream, Reason> {
    if let Some(uid) = another_user(&stream)? {
        return Err(Reason::AnotherUser(uid));
    }
    stream.set_read_timeout(Some(START_TIME))?;
    stream.set_write_timeout(Some(SEND_TIME))?;
    let byte = if state.is_some() { WITH_STATE } else { WITHOUT_STATE };
    send(&stream, offer.lock().as_deref().unwrap_or_default(), byte)?;
    if let Some(state) = state {
        let mut out = BufWriter::with_capacity(1 << 16, &stream);
        state(&mut out)?;
        out.flush()?;
    }
    stream.read_exact(&mut [0])?;
    Ok(stream)
}

fn send(stream: &UnixStream, sockets: &[OwnedFd], byte: u8) -> io::Result<()> {
    let sockets: Vec<_> = sockets.iter().take(MOST).map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !sockets.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&sockets));
    }
    sendmsg(stream, &[IoSlice::new(&[byte])], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

fn receive(stream: &UnixStream) -> Result<(Vec<OwnedFd>, u8), Reason> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC);
    let received = received.map_err(|error| match error {
        rustix::io::Errno::AGAIN => Reason::Silent,
        error => error.into(),
    })?;
    let mut sockets = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(handed) = message {
            sockets.extend(handed);
        }
    }
    if received.bytes == 0 || sockets.is_empty() {
        return Err(Reason::Nothing);
    }
    Ok((sockets, byte[0]))
}
