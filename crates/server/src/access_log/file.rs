//! The file that lines are written to, which can be renamed and created again while it is open.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The mode of new files: access logs contain personal data.
const MODE: u32 = 0o640;

/// Handle to reopen the file.
pub(super) struct LogFile(Arc<AtomicBool>);

/// The file that lines are written to.
pub(super) struct Writer {
    out: File,
    /// `None` for standard output.
    path: Option<PathBuf>,
    is_stale: Arc<AtomicBool>,
}

impl LogFile {
    pub(super) fn open(path: &Path) -> io::Result<(LogFile, Writer)> {
        Ok(LogFile::of(append(path)?, Some(path.to_owned())))
    }

    pub(super) fn stdout() -> io::Result<(LogFile, Writer)> {
        // `io::stdout` holds its lock while a write stalls, so the descriptor is written to directly.
        let out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        Ok(LogFile::of(out, None))
    }

    fn of(out: File, path: Option<PathBuf>) -> (LogFile, Writer) {
        let is_stale = Arc::new(AtomicBool::new(false));
        (LogFile(Arc::clone(&is_stale)), Writer { out, path, is_stale })
    }

    /// Reopens the file before the next line is written.
    pub(super) fn reopen(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn append(path: &Path) -> io::Result<File> {
    // Opening a pipe only for writing blocks until it has a reader.
    let is_pipe = fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo());
    OpenOptions::new().read(is_pipe).append(true).create(true).mode(MODE).open(path)
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_stale.swap(false, Ordering::Relaxed)
            && let Some(path) = &self.path
        {
            match append(path) {
                Ok(out) => self.out = out,
                Err(error) => {
                    let path = path.display();
                    tracing::error!(%path, %error, "the access log cannot be reopened: the open file stays in use");
                }
            }
        }
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
