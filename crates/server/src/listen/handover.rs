//! One server takes the place of another, and no connection is refused meanwhile.
//!
//! A server that may be succeeded listens at a Unix socket. Its successor connects there, is handed the sockets that the doors
//! listen at, and serves from them: whoever connects finds one of the two. When it is up it says so, and the first one stops as
//! if it were told to: it accepts no more, and finishes what is in flight. Sharing an address by `SO_REUSEPORT` would not do:
//! what waits in the queue of a socket that is closed is lost.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use tokio_util::sync::CancellationToken;

/// The most doors there are.
const MOST: usize = 16;
/// How long the other one may take to answer. A successor that takes longer to start has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a predecessor has handed over.
pub struct Inheritance {
    predecessor: Option<UnixStream>,
    listeners: Vec<TcpListener>,
}

/// Nothing can be handed over.
#[derive(Debug, thiserror::Error)]
#[error("`{}` cannot be used to hand over: {reason}", path.display())]
pub struct HandoverError {
    path: PathBuf,
    reason: io::Error,
}

impl Inheritance {
    /// From nobody.
    #[must_use]
    pub const fn none() -> Inheritance {
        Inheritance { predecessor: None, listeners: Vec::new() }
    }

    /// From the server that listens at `path`, if there is one.
    ///
    /// # Errors
    /// If there is one that hands over nothing.
    pub fn take(path: &Path) -> Result<Inheritance, HandoverError> {
        let take = || {
            let predecessor = match UnixStream::connect(path) {
                Ok(stream) => stream,
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                    return Ok(Inheritance::none());
                }
                Err(error) => return Err(error),
            };
            predecessor.set_read_timeout(Some(PATIENCE))?;
            let listeners = receive(&predecessor)?.into_iter().map(TcpListener::from).collect();
            Ok(Inheritance { predecessor: Some(predecessor), listeners })
        };
        take().map_err(|reason| HandoverError { path: path.to_owned(), reason })
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
pub struct Estate {
    path: Arc<Path>,
    /// `None` once they are handed over or withdrawn.
    sockets: Arc<Mutex<Option<Vec<OwnedFd>>>>,
}

impl Estate {
    /// Keeps nothing for anybody any more: the doors close when they are told to, and whoever comes to `path` finds nobody
    /// there. Nothing happens if somebody has taken over already.
    pub fn withdraw(&self) {
        // Under the lock, for the path is a successor's as soon as it is not ours.
        let mut sockets = self.lock();
        if sockets.take().is_some() {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<OwnedFd>>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hands these sockets to whoever comes to `path`, until one of them says that it is up, and then cancels `succeeded`.
///
/// # Errors
/// If it cannot listen there.
pub fn hand_over(path: &Path, sockets: Vec<OwnedFd>, succeeded: CancellationToken) -> Result<Estate, HandoverError> {
    let listen = || {
        // Nobody listens there any more: whoever did was asked first.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        // Whoever has the sockets can answer in our name.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    };
    let listener = listen().map_err(|reason| HandoverError { path: path.to_owned(), reason })?;
    let estate = Estate { path: path.into(), sockets: Arc::new(Mutex::new(Some(sockets))) };
    let offered = estate.clone();
    // It waits for somebody who may never come, and nobody waits for it.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            match offer(stream, &offered) {
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
    Ok(estate)
}

/// Sends the sockets, and waits until the other one says that it is up.
fn offer(mut stream: UnixStream, estate: &Estate) -> io::Result<UnixStream> {
    stream.set_read_timeout(Some(PATIENCE))?;
    send(&stream, estate.lock().as_deref().unwrap_or_default())?;
    stream.read_exact(&mut [0])?;
    Ok(stream)
}

fn send(stream: &UnixStream, sockets: &[OwnedFd]) -> io::Result<()> {
    let sockets: Vec<_> = sockets.iter().take(MOST).map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !sockets.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&sockets));
    }
    sendmsg(stream, &[IoSlice::new(b"!")], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

fn receive(stream: &UnixStream) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut sockets = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(handed) = message {
            sockets.extend(handed);
        }
    }
    if received.bytes == 0 || sockets.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "whoever listens there hands over nothing"));
    }
    Ok(sockets)
}
