//! Open files, sent from one process to another.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use super::Reason;

/// Maximum number of listeners.
pub(super) const MOST_LISTENERS: usize = 16;
/// With the lock of a state file.
const MOST: usize = MOST_LISTENERS + 1;

/// Sends a byte with these descriptors.
pub(super) fn send(stream: &UnixStream, descriptors: &[BorrowedFd<'_>], byte: u8) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    sendmsg(stream, &[IoSlice::new(&[byte])], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

/// Receives a byte with at least one descriptor.
pub(super) fn receive(stream: &UnixStream) -> Result<(Vec<OwnedFd>, u8), Reason> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC);
    let received = received.map_err(|error| match error {
        rustix::io::Errno::AGAIN => Reason::Silent,
        error => error.into(),
    })?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(handed) = message {
            descriptors.extend(handed);
        }
    }
    if received.bytes == 0 || descriptors.is_empty() {
        return Err(Reason::Nothing);
    }
    Ok((descriptors, byte[0]))
}
