//! Log lines that wait to be written, in bounded memory.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long to wait before writing again to a file that takes nothing for the moment.
const PAUSE: Duration = Duration::from_millis(10);

/// Lines that one thread writes and all others add to, without ever waiting for the file.
pub(crate) struct Queue {
    state: Mutex<State>,
    /// There is something to write.
    filled: Condvar,
    /// All is written.
    emptied: Condvar,
    capacity: usize,
    /// The time to wait for further lines before some are written.
    linger: Duration,
    taken: AtomicU64,
    dropped: AtomicU64,
}

/// Lines that were not written.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// There was no room for them.
    Missing {
        /// The number.
        lines: u64,
    },
    /// The file did not take them.
    Failed {
        /// The number.
        lines: u64,
        /// Why.
        error: io::Error,
    },
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    lines: u64,
    /// Lines that were dropped since `bytes` was last taken. They all come after what is in `bytes`.
    missing: u64,
    is_writing: bool,
}

impl Queue {
    /// A queue of so many bytes. A single line may be longer.
    pub(super) fn new(capacity: usize) -> Queue {
        Queue::lingering(capacity, Duration::ZERO)
    }

    /// The same, for many lines: whoever writes them waits for more to come, unless half of the queue is full, so that those who
    /// add lines seldom have to wake anybody.
    pub(crate) fn lingering(capacity: usize, linger: Duration) -> Queue {
        Queue {
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

    /// Lines that were taken to be written.
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
        // After a gap nothing is added until the gap can be reported, so that it is reported in its place.
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

    /// Writes lines for ever. `report` is told of those that were not written: if they were dropped, once there is room to log that.
    pub(crate) fn write_to(&self, mut out: impl Write, report: impl Fn(Trouble)) {
        let mut bytes = Vec::new();
        loop {
            let (lines, missing) = self.take(&mut bytes);
            if missing > 0 {
                report(Trouble::Missing { lines: missing });
            }
            self.taken.fetch_add(lines, Ordering::Relaxed);
            if let Err(error) = write_whole(&mut out, &bytes) {
                self.dropped.fetch_add(lines, Ordering::Relaxed);
                report(Trouble::Failed { lines, error });
            }
            bytes.clear();
            // A burst need not be paid for until the end.
            bytes.shrink_to(self.capacity / 16);
        }
    }

    /// Waits for lines, and takes them all: how many there are, and how many are missing behind them.
    fn take(&self, bytes: &mut Vec<u8>) -> (u64, u64) {
        let mut state = self.lock();
        state.is_writing = false;
        if state.bytes.is_empty() {
            self.emptied.notify_all();
        }
        let mut state =
            self.filled.wait_while(state, |state| state.bytes.is_empty()).unwrap_or_else(PoisonError::into_inner);
        if !self.linger.is_zero() {
            let has_room = |state: &mut State| state.bytes.len() <= self.capacity / 2;
            let waited = self.filled.wait_timeout_while(state, self.linger, has_room);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.is_writing = true;
        std::mem::swap(&mut state.bytes, bytes);
        (std::mem::take(&mut state.lines), std::mem::take(&mut state.missing))
    }

    /// Waits until all is written, but not for longer than `most`.
    pub(crate) fn flush(&self, most: Duration) {
        let is_busy = |state: &mut State| state.is_writing || !state.bytes.is_empty();
        let _ = self.emptied.wait_timeout_while(self.lock(), most, is_busy);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where one line is written to, whole.
pub(super) struct Line(pub(super) Arc<Queue>);

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Like `write_all`, also for files that are not to be waited for: standard error may be shared with a program that made it so.
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

    /// A file that says what is written to it, and takes the next only when it is read.
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

    /// A queue of ten bytes, what is written of it, and the means to have that read.
    fn begin() -> (Arc<Queue>, Receiver<String>, Sender<()>) {
        let (queue, (say, said), (read, reads)) = (Arc::new(Queue::new(10)), mpsc::channel(), mpsc::channel());
        let (lines, reported) = (Arc::clone(&queue), Arc::clone(&queue));
        let report = move |trouble: Trouble| {
            if let Trouble::Missing { lines } = trouble {
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
