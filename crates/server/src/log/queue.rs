//! Queue of log lines to be written, in bounded memory.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Pause before the next attempt to write to a file that would block.
const PAUSE: Duration = Duration::from_millis(10);

/// Queue of lines. One thread writes them. Adding a line never waits for the file.
pub(crate) struct LineQueue {
    state: Mutex<LineQueueState>,
    /// Signals that the queue is no longer empty.
    filled: Condvar,
    /// Signals that the queue is written.
    emptied: Condvar,
    capacity: usize,
    /// The time that the writer waits for further lines before it writes.
    linger: Duration,
    taken: AtomicU64,
    dropped: AtomicU64,
}

/// Lines that were not written.
#[derive(Debug)]
pub(crate) enum LostLines {
    /// The queue was full.
    Missing {
        /// The number.
        lines: u64,
    },
    /// Writing failed.
    Failed {
        /// The number.
        lines: u64,
        /// Cause.
        error: io::Error,
    },
}

#[derive(Default)]
struct LineQueueState {
    bytes: Vec<u8>,
    lines: u64,
    /// Lines dropped since `bytes` was last taken. All of them come after the lines in `bytes`.
    missing: u64,
    is_writing: bool,
}

impl LineQueue {
    /// A queue with this capacity in bytes. A single line may be longer.
    pub(super) fn new(capacity: usize) -> LineQueue {
        LineQueue::lingering(capacity, Duration::ZERO)
    }

    /// A queue for many lines: the writer waits for more lines unless the queue is half full, so that adding a line
    /// rarely needs to wake it.
    pub(crate) fn lingering(capacity: usize, linger: Duration) -> LineQueue {
        LineQueue {
            state: Mutex::default(),
            filled: Condvar::new(),
            emptied: Condvar::new(),
            capacity,
            linger,
            taken: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Lines that were not written.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Lines taken from the queue for writing.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Counts a line as dropped.
    pub(crate) fn skip(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a line, or drops it if there is no room.
    pub(crate) fn push(&self, line: &[u8]) {
        let mut state = self.lock();
        // Once a line was dropped, nothing is added until the gap is reported, so that the report appears in the right
        // place.
        let fits = state.bytes.is_empty() || state.bytes.len().saturating_add(line.len()) <= self.capacity;
        if state.missing > 0 || !fits {
            state.missing += 1;
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let before = state.bytes.len();
        state.bytes.extend_from_slice(line);
        state.lines += 1;
        let is_half_full = |bytes: usize| bytes > self.capacity / 2;
        let is_to_wake = before == 0 || is_half_full(state.bytes.len()) && !is_half_full(before);
        drop(state);
        if is_to_wake {
            self.filled.notify_one();
        }
    }

    /// Writes lines forever. Calls `report` for lost lines: for dropped ones, once there is room to log the report.
    pub(crate) fn write_to(&self, mut out: impl Write, report: impl Fn(LostLines)) {
        let mut bytes = Vec::new();
        loop {
            let (lines, missing) = self.take(&mut bytes);
            if missing > 0 {
                report(LostLines::Missing { lines: missing });
            }
            self.taken.fetch_add(lines, Ordering::Relaxed);
            if let Err(error) = write_whole(&mut out, &bytes) {
                self.dropped.fetch_add(lines, Ordering::Relaxed);
                report(LostLines::Failed { lines, error });
            }
            bytes.clear();
            // Releases the memory of a burst.
            bytes.shrink_to(self.capacity / 16);
        }
    }

    /// Waits for lines, and takes all of them. Returns their number, and the number of lines dropped after them.
    fn take(&self, bytes: &mut Vec<u8>) -> (u64, u64) {
        let mut state = self.lock();
        state.is_writing = false;
        if state.bytes.is_empty() {
            self.emptied.notify_all();
        }
        let mut state =
            self.filled.wait_while(state, |state| state.bytes.is_empty()).unwrap_or_else(PoisonError::into_inner);
        if !self.linger.is_zero() {
            let has_room = |state: &mut LineQueueState| state.bytes.len() <= self.capacity / 2;
            let waited = self.filled.wait_timeout_while(state, self.linger, has_room);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.is_writing = true;
        std::mem::swap(&mut state.bytes, bytes);
        (std::mem::take(&mut state.lines), std::mem::take(&mut state.missing))
    }

    /// Waits until all lines are written, for at most `most`.
    pub(crate) fn flush(&self, most: Duration) {
        let is_busy = |state: &mut LineQueueState| state.is_writing || !state.bytes.is_empty();
        let _ = self.emptied.wait_timeout_while(self.lock(), most, is_busy);
    }

    fn lock(&self) -> MutexGuard<'_, LineQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writer of one line, which is queued as a whole on drop.
pub(super) struct LineWriter(pub(super) Arc<LineQueue>);

impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Like `write_all`, but also supports non-blocking files: another program may have made standard error non-blocking.
fn write_whole(out: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
            Err(error) => return Err(error),
        }
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver, Sender};

    use super::*;

    /// A writer that forwards each write, and blocks until it is read.
    struct Slow(Sender<String>, Receiver<()>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.send(String::from_utf8_lossy(bytes).into_owned());
            self.1.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A queue of ten bytes with a slow writer: its output, and a way to unblock it.
    fn begin() -> (Arc<LineQueue>, Receiver<String>, Sender<()>) {
        let (queue, (say, said), (read, reads)) = (Arc::new(LineQueue::new(10)), mpsc::channel(), mpsc::channel());
        let (lines, reported) = (Arc::clone(&queue), Arc::clone(&queue));
        let report = move |trouble: LostLines| {
            if let LostLines::Missing { lines } = trouble {
                reported.push(format!("-{lines}\n").as_bytes());
            }
        };
        std::thread::spawn(move || lines.write_to(Slow(say, reads), report));
        (queue, said, read)
    }

    #[test]
    fn lines_that_find_no_room_are_counted_and_reported_in_their_place() {
        let (queue, written, read) = begin();
        queue.push(b"first\n");
        assert_eq!(written.recv().unwrap(), "first\n");
        for line in ["1234\n", "5678\n", "lost\n", "\n"] {
            queue.push(line.as_bytes());
        }
        assert_eq!(queue.dropped(), 2, "the last would fit, and stands behind a gap");
        read.send(()).unwrap();
        assert_eq!(written.recv().unwrap(), "1234\n5678\n");
        queue.push(b"on\n");
        read.send(()).unwrap();
        assert_eq!(written.recv().unwrap(), "-2\non\n");
        read.send(()).unwrap();
        queue.flush(Duration::from_secs(60));
        assert_eq!(queue.dropped(), 2);
    }

    #[test]
    fn flushing_waits_for_what_is_written_and_no_longer_than_told() {
        let (queue, written, read) = begin();
        queue.flush(Duration::from_secs(60));
        queue.push(b"first\n");
        queue.flush(Duration::ZERO);
        assert_eq!(written.recv().unwrap(), "first\n");
        queue.push(b"second\n");
        let flushing = std::thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.flush(Duration::from_secs(60))
        });
        read.send(()).unwrap();
        assert_eq!(written.recv().unwrap(), "second\n");
        assert!(!flushing.is_finished(), "the second line is still being written");
        read.send(()).unwrap();
        flushing.join().unwrap();
    }

    #[test]
    fn a_line_longer_than_the_queue_is_written_and_one_that_cannot_be_written_is_counted() {
        let (queue, written, read) = begin();
        queue.push(&[b'x'; 100]);
        assert_eq!(written.recv().unwrap().len(), 100);
        drop(read);
        queue.flush(Duration::from_secs(60));
        assert_eq!(queue.dropped(), 1);
        queue.push(b"more\n");
        queue.flush(Duration::from_secs(60));
        assert_eq!(queue.dropped(), 2);
    }
}
