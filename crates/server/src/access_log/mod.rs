//! The access log: a line for each request that the gateway has answered, or that a proxy asked about in forward-auth.
//!
//! Writing it never delays a request. A record (`record.rs`) goes into a bounded queue, as in the ordinary log, and a
//! thread writes the queue to the file (`file.rs`). Lines that find the queue full are dropped, counted, and reported
//! in the ordinary log.

mod file;
mod logged_ruling;
mod record;
mod redact;
mod time;

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use tidegate_core::{Clock, SystemClock, Timestamp};
use tidegate_rules::Secret;

use self::file::LogFile;
pub(crate) use self::logged_ruling::LoggedRuling;
pub(crate) use self::record::AccessRecord;
use crate::log::{LineQueue, LostLines};

pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The time that the writing thread waits for further lines, so that it writes many at once.
const LINGER: Duration = Duration::from_millis(10);
/// The time that shutdown waits for the last lines to be written.
const FLUSH_TIME: Duration = Duration::from_secs(2);

/// The format of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// One JSON object a line.
    Json,
    /// Apache's combined log format.
    Combined,
}

/// The destination of lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLogTarget {
    /// Standard output.
    Stdout,
    /// The end of a file, which is created if it does not exist.
    File(PathBuf),
}

/// The settings of an access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The format of a line.
    pub format: AccessLogFormat,
    /// The destination.
    pub target: AccessLogTarget,
    /// Maximum number of bytes waiting to be written.
    pub queue_bytes: usize,
}

/// The file cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("the access log `{}` cannot be opened: {reason}; see `access_log.path`", path.display())]
pub struct AccessLogError {
    path: PathBuf,
    reason: io::Error,
}

/// An access log that is open.
pub struct AccessLog {
    format: AccessLogFormat,
    queue: Arc<LineQueue>,
    file: LogFile,
    clock: SystemClock,
}

impl fmt::Debug for AccessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessLog").field("format", &self.format).finish_non_exhaustive()
    }
}

thread_local! {
    /// The buffer in which a thread formats a line before it is queued.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl AccessLog {
    /// Opens the file, and writes to it from a thread of its own until the process ends.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(settings: &Settings) -> Result<AccessLog, AccessLogError> {
        let (path, opened) = match &settings.target {
            AccessLogTarget::Stdout => (PathBuf::from("-"), LogFile::stdout()),
            AccessLogTarget::File(path) => (path.clone(), LogFile::open(path)),
        };
        let queue = Arc::new(LineQueue::lingering(settings.queue_bytes, LINGER));
        let begun = opened.and_then(|(file, writer)| {
            let written = Arc::clone(&queue);
            let thread = std::thread::Builder::new().name("tidegate-access-log".to_owned());
            thread.spawn(move || written.write_to(writer, report))?;
            Ok(file)
        });
        let file = begun.map_err(|reason| AccessLogError { path, reason })?;
        Ok(AccessLog { format: settings.format, queue, file, clock: SystemClock::new() })
    }

    /// The current time, for [`AccessRecord::at`].
    #[inline]
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Logs a request. Values of secret parameters are hidden under `secret`.
    pub(crate) fn write(&self, line: &AccessRecord<'_>, secret: &Secret) {
        let written = BUFFER.try_with(|buffer| {
            let mut buffer = buffer.borrow_mut();
            buffer.clear();
            match self.format {
                AccessLogFormat::Json => line.json(secret, &mut buffer),
                AccessLogFormat::Combined => line.combined(secret, &mut buffer),
            }
            self.queue.push(&buffer);
            // Releases the memory of an exceptionally long line.
            buffer.shrink_to(4_096);
        });
        // The buffer of a terminating thread has been destroyed.
        if written.is_err() {
            self.queue.skip();
        }
    }

    /// Reopens the file before the next line is written, after it was renamed.
    pub fn reopen(&self) {
        self.file.reopen();
    }

    /// Lines that were not written.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.queue.dropped()
    }

    /// Lines that were queued for writing.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.queue.taken()
    }

    /// Waits until all lines are written, but not for longer than two seconds.
    pub fn flush(&self) {
        self.queue.flush(FLUSH_TIME);
    }
}

fn report(trouble: LostLines) {
    match trouble {
        LostLines::Missing { lines } => {
            tracing::warn!(lines, "access log lines were dropped: they arrived faster than they could be written");
        }
        LostLines::Failed { lines, error } => {
            tracing::error!(lines, %error, "access log lines could not be written");
        }
    }
}
