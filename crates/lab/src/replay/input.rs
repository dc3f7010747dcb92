//! Logs as input: files and readers, compressed or not, read in blocks.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;

use super::log::LineError;

const BLOCK: usize = 1 << 18;
/// Maximum size of the block in which the lines of one second are spread. Larger seconds are spread in parts.
const LARGEST_BLOCK: usize = 1 << 26;

/// An error while reading a log.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The operating system reports an error.
    #[error("`{name}` cannot be read: {error}")]
    Unreadable {
        /// The name of the log.
        name: String,
        /// The system's error.
        error: io::Error,
    },
    /// The first lines are in no known format.
    #[error("`{name}` is in an unknown format; name it: combined, nginx-json, caddy-json, envoy-json, csv or jsonl")]
    UnknownFormat {
        /// The name of the log.
        name: String,
    },
    /// The header of a table is invalid.
    #[error("`{name}`, line 1: {error}")]
    Head {
        /// The name of the log.
        name: String,
        /// The problem.
        error: LineError,
    },
}

/// A log to read.
pub struct Input {
    pub(super) name: String,
    pub(super) reader: Box<dyn Read + Send>,
    pub(super) read: Arc<AtomicU64>,
    size: Option<u64>,
}

/// Counts the bytes that are read.
struct CountingReader<R> {
    inner: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

impl Input {
    /// A file, compressed with gzip or not.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path) -> Result<Input, ReadError> {
        let name = path.display().to_string();
        let open = || {
            let file = File::open(path)?;
            let meta = file.metadata()?;
            if meta.is_dir() {
                return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder: name the files in it"));
            }
            Ok((meta.is_file().then_some(meta.len()), file))
        };
        match open().and_then(|(size, file)| Ok((size, Input::from_reader(&name, file)?))) {
            Ok((size, input)) => Ok(Input { size, ..input }),
            Err(error) => Err(ReadError::Unreadable { name, error }),
        }
    }

    /// A reader, compressed with gzip or not.
    ///
    /// # Errors
    /// The first bytes cannot be read.
    pub fn from_reader(name: &str, reader: impl Read + Send + 'static) -> io::Result<Input> {
        const GZIP: [u8; 2] = [0x1f, 0x8b];
        let read = Arc::new(AtomicU64::new(0));
        let mut reader = CountingReader { inner: reader, read: Arc::clone(&read) };
        let mut first = Vec::with_capacity(2);
        reader.by_ref().take(2).read_to_end(&mut first)?;
        let zipped = first == GZIP;
        let whole = io::Cursor::new(first).chain(reader);
        let reader: Box<dyn Read + Send> = if zipped { Box::new(MultiGzDecoder::new(whole)) } else { Box::new(whole) };
        Ok(Input { name: name.to_owned(), reader, read, size: None })
    }

    /// The name of the log.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The size in bytes as stored, if known.
    #[must_use]
    pub const fn size(&self) -> Option<u64> {
        self.size
    }
}

/// Bytes that were read and not consumed yet.
pub(super) struct Buffer {
    bytes: Vec<u8>,
    filled: usize,
    from: usize,
}

impl Buffer {
    pub(super) fn new() -> Buffer {
        Buffer { bytes: vec![0; BLOCK], filled: 0, from: 0 }
    }

    /// Reads until the buffer is full. Returns whether the input has ended.
    pub(super) fn fill(&mut self, reader: &mut dyn Read) -> io::Result<bool> {
        if self.from > 0 {
            self.bytes.copy_within(self.from..self.filled, 0);
            self.filled -= self.from;
            self.from = 0;
        }
        // More than half of the buffer is unconsumed, so the buffer is enlarged.
        if self.filled > self.bytes.len() / 2 && !self.is_largest() {
            self.bytes.resize(self.bytes.len() * 2, 0);
        }
        while self.filled < self.bytes.len() {
            match reader.read(&mut self.bytes[self.filled..]) {
                Ok(0) => return Ok(true),
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    pub(super) const fn is_largest(&self) -> bool {
        self.bytes.len() >= LARGEST_BLOCK
    }

    /// The complete lines, and at the end of the input the rest. A line larger than the buffer counts as several.
    pub(super) fn lines(&self, end: bool) -> &[u8] {
        let filled = &self.bytes[self.from..self.filled];
        if end {
            return filled;
        }
        match memchr::memrchr(b'\n', filled) {
            Some(last) => &filled[..=last],
            None if self.is_largest() => filled,
            None => &[],
        }
    }

    pub(super) const fn used(&mut self, bytes: usize) {
        self.from += bytes;
    }
}
