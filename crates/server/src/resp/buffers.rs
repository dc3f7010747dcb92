//! Buffers of a connection: input that has not been processed, and replies that have not been written.

use std::io;
use std::pin::Pin;
use std::task::{self, Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Size of the read buffer that an idle connection keeps.
pub(super) const LEAST_INPUT: usize = 1_024;
/// Maximum size of one read.
pub(super) const MOST_READ: usize = 64 * 1_024;
/// Size of the write buffer that an idle connection keeps.
const LEAST_OUTPUT: usize = 1_024;

/// Input that has not been processed yet.
#[derive(Default)]
pub(super) struct InputBuffer {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

impl InputBuffer {
    pub(super) fn held(&mut self) -> &mut [u8] {
        &mut self.bytes[self.begin..self.end]
    }

    pub(super) const fn consume(&mut self, length: usize) {
        self.begin += length;
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        }
    }

    /// Reads the available input, up to the size of one read or of a request of `longest` bytes.
    pub(super) fn poll_read(
        &mut self,
        io: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
        longest: usize,
    ) -> Poll<io::Result<usize>> {
        let mut read = 0;
        loop {
            self.make_room(longest);
            let room = self.bytes.len() - self.end;
            let mut buffer = ReadBuf::new(&mut self.bytes[self.end..]);
            match Pin::new(&mut *io).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) if read == 0 => return Poll::Ready(Err(error)),
                Poll::Pending if read == 0 => return Poll::Pending,
                // Input received before the error is processed first.
                Poll::Ready(Err(_)) | Poll::Pending => return Poll::Ready(Ok(read)),
            }
            let came = buffer.filled().len();
            self.end += came;
            read += came;
            if came < room || self.bytes.len() >= MOST_READ {
                return Poll::Ready(Ok(read));
            }
        }
    }

    /// Ensures room for at least one byte while a request of up to `longest` bytes is incomplete.
    fn make_room(&mut self, longest: usize) {
        if self.begin > 0 {
            self.bytes.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        if self.end == self.bytes.len() {
            let most = MOST_READ.max(longest + 1);
            self.bytes.resize((2 * self.bytes.len()).clamp(LEAST_INPUT, most.max(self.end + 1)), 0);
        }
    }

    pub(super) fn shrink(&mut self) {
        if self.end == 0 && self.bytes.len() > LEAST_INPUT {
            self.bytes = Vec::new();
        }
    }
}

/// Replies that have not been written yet.
#[derive(Default)]
pub(super) struct Output {
    pub(super) bytes: Vec<u8>,
    written: usize,
    /// Whether all replies have been written, but not flushed yet.
    flushing: bool,
}

impl Output {
    /// Number of unwritten bytes.
    pub(super) const fn left(&self) -> usize {
        self.bytes.len() - self.written
    }

    pub(super) const fn is_done(&self) -> bool {
        self.left() == 0 && !self.flushing
    }

    /// Writes as much as possible. Ready once something was written.
    pub(super) fn poll_write(
        &mut self,
        io: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left() > 0 {
            let written = task::ready!(Pin::new(&mut *io).poll_write(cx, &self.bytes[self.written..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += written;
            if self.left() > 0 {
                return Poll::Ready(Ok(()));
            }
            self.bytes.clear();
            (self.written, self.flushing) = (0, true);
        }
        task::ready!(Pin::new(io).poll_flush(cx))?;
        self.flushing = false;
        Poll::Ready(Ok(()))
    }

    pub(super) fn shrink(&mut self) {
        if self.is_done() && self.bytes.capacity() > LEAST_OUTPUT {
            self.bytes = Vec::new();
        }
    }
}
