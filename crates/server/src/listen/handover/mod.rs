//! One server replaces another without refusing connections.
//!
//! A server that can be replaced listens on a Unix socket. Its successor connects there, receives the listening
//! sockets, and serves from them, so every client reaches one of the two. Once the successor has taken over, the
//! predecessor shuts down as usual: it accepts no more connections, and finishes the requests in flight. `SO_REUSEPORT`
//! is no alternative: connections in the queue of a closed socket are lost.
//!
//! | from | message | meaning |
//! |---|---|---|
//! | predecessor | a byte with descriptors, and the state if the byte says so | what there is to take over |
//! | successor | [`READY`] | it is up |
//! | predecessor | [`GRANTED`] | it is still there, and waits for nothing else |
//! | successor | [`TAKEN`] | it has told the service manager, and may be relied on |
//! | predecessor | [`LEFT`] | the path and the state file are the successor's |
//!
//! Until [`TAKEN`] arrives, the predecessor goes on as if there were no successor, and so it does if the successor ends.
//! A successor that misses a message ends if the predecessor still listens at the path, and takes over if it does not.
//!
//! The path of the Unix socket may be wrong or belong to another program. Therefore only a socket without a listener is
//! ever removed, and both sides deal only with processes of the same user or of root.

mod descriptors;
mod inherited;
mod offer;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use tidegate_core::memory::{SnapshotCounts, SnapshotError};

pub use self::inherited::InheritedListeners;
pub use self::offer::{HandoverOffer, hand_over};

/// Timeout for each message but the first of a successor. They are sent immediately unless the predecessor is busy with
/// another successor.
const SEND_TIME: Duration = Duration::from_secs(10);
/// Timeout for a successor to start.
const START_TIME: Duration = Duration::from_secs(60);

/// Byte sent with the sockets: no state follows.
const WITHOUT_STATE: u8 = b'!';
/// Byte sent with the sockets: the state follows.
const WITH_STATE: u8 = b'+';
/// Byte sent with the sockets: the state follows, and the last descriptor is the lock of the state file.
const WITH_STATE_AND_LOCK: u8 = b'*';

const READY: u8 = b'r';
const GRANTED: u8 = b'g';
const TAKEN: u8 = b't';
const LEFT: u8 = b'l';

/// The state of a server, for its successor.
pub trait HandedState: Send {
    /// Writes the state.
    ///
    /// # Errors
    /// If it cannot be written.
    fn send(&self, out: &mut dyn io::Write) -> io::Result<SnapshotCounts>;

    /// The lock of the state file, if there is one.
    fn lock(&self) -> Option<OwnedFd>;

    /// The state is the successor's: this server saves it no more.
    fn leave(&self);
}

/// The handover failed.
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

/// Reason why a handover failed.
#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error("it is {0}, not a Unix socket: name a path at which there is nothing yet")]
    NotASocket(&'static str),
    #[error("a process of another user (uid {0}) listens there")]
    AnotherUser(u32),
    #[error("the process that listens there did not hand over within {:?}: is it another program's socket?", SEND_TIME)]
    Silent,
    #[error("the process that listens there hands over no listeners: is it another program's socket?")]
    Nothing,
    #[error("another process listens there")]
    InUse,
    #[error("the state of the server there cannot be taken over: {0}")]
    State(SnapshotError),
    #[error("the server there has not confirmed the handover, and continues")]
    NotConfirmed,
    #[error("this server was told to stop")]
    Withdrawn,
    #[error("an unknown message was received")]
    Unknown,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<rustix::io::Errno> for Reason {
    fn from(error: rustix::io::Errno) -> Reason {
        Reason::Io(error.into())
    }
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

/// User of the peer, unless it is this process's user or root: a process of another user could answer the connections.
fn another_user(stream: &UnixStream) -> Result<Option<u32>, Reason> {
    let user = socket_peercred(stream)?.uid;
    Ok((user != geteuid() && !user.is_root()).then(|| user.as_raw()))
}

/// Reads the next message.
fn expect(mut stream: &UnixStream, wanted: u8) -> Result<(), Reason> {
    let mut byte = [0];
    io::Read::read_exact(&mut stream, &mut byte)?;
    if byte == [wanted] { Ok(()) } else { Err(Reason::Unknown) }
}

#[cfg(test)]
mod tests;
