//! A log from its first byte to its last, in constant memory.
//!
//! The log is read in blocks, and a block is cut into lines where it lies. Times never go back: a line that is older than
//! one before it counts as of that one's time. Where the log knows only the second, its lines are spread evenly over it;
//! taking all of them for one instant would make a burst of every second.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;
use serde::Serialize;
use tidegate_core::{Micros, Timestamp};

use super::log::{Entry, LineError, LineReader, LogFormat};

const BLOCK: usize = 1 << 18;
/// A second of a log that is larger than this is not spread evenly as a whole, but piece by piece.
const LARGEST_BLOCK: usize = 1 << 26;
/// Malformed lines that are shown.
const SHOWN: usize = 5;
/// Of a malformed line, this much is shown.
const SHOWN_TEXT: usize = 160;

/// A log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The operating system says so.
    #[error("`{name}` cannot be read: {error}")]
    Unreadable {
        /// Which log.
        name: String,
        /// What it says.
        error: io::Error,
    },
    /// None of the first lines looks like anything that is known.
    #[error(
        "`{name}` is in no format that is known; say which it is: combined, nginx-json, caddy-json, envoy-json, csv or jsonl"
    )]
    UnknownFormat {
        /// Which log.
        name: String,
    },
    /// The head of a table is wrong.
    #[error("`{name}`, line 1: {error}")]
    Head {
        /// Which log.
        name: String,
        /// What is wrong.
        error: LineError,
    },
}

/// A log to read.
pub struct Input {
    name: String,
    reader: Box<dyn Read + Send>,
    read: Arc<AtomicU64>,
    size: Option<u64>,
}

/// Counts what passes through it.
struct Counting<R> {
    inner: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

impl Input {
    /// A file, compressed by gzip or not.
    ///
    /// # Errors
    /// If it cannot be opened.
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

    /// Anything that can be read, compressed by gzip or not.
    ///
    /// # Errors
    /// If its first bytes cannot be read.
    pub fn from_reader(name: &str, reader: impl Read + Send + 'static) -> io::Result<Input> {
        const GZIP: [u8; 2] = [0x1f, 0x8b];
        let read = Arc::new(AtomicU64::new(0));
        let mut reader = Counting { inner: reader, read: Arc::clone(&read) };
        let mut first = Vec::with_capacity(2);
        reader.by_ref().take(2).read_to_end(&mut first)?;
        let zipped = first == GZIP;
        let whole = io::Cursor::new(first).chain(reader);
        let reader: Box<dyn Read + Send> = if zipped { Box::new(MultiGzDecoder::new(whole)) } else { Box::new(whole) };
        Ok(Input { name: name.to_owned(), reader, read, size: None })
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many bytes it has, compressed ones if it is, where that is known.
    #[must_use]
    pub const fn size(&self) -> Option<u64> {
        self.size
    }
}

/// A line that is no request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Malformed {
    /// Of which log.
    pub log: String,
    /// Which line, counted from 1.
    pub line: u64,
    /// What is wrong with it.
    pub problem: String,
    /// The beginning of it.
    pub text: String,
}

/// What there was to read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reading {
    /// The logs and what they are written in.
    pub logs: Vec<(String, String)>,
    /// Lines, empty ones left out.
    pub lines: u64,
    /// Bytes, compressed ones where they were.
    pub bytes: u64,
    /// Lines that were no requests.
    pub malformed: u64,
    /// The first few of those.
    pub shown: Vec<Malformed>,
    /// Lines that were older than one before them.
    pub out_of_order: u64,
    /// The furthest that one of them lay back, in microseconds.
    pub furthest_back: u64,
    /// Requests without an address of the client.
    pub without_address: u64,
    /// Requests of which the log knows only the second.
    pub whole_seconds: u64,
}

/// Reads logs one after the other.
#[derive(Debug)]
pub struct Reader {
    format: Option<LogFormat>,
    spread: bool,
    reading: Reading,
    latest: Timestamp,
}

/// How far reading has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Bytes of all logs so far, compressed ones where they are.
    pub bytes: u64,
    /// Lines so far.
    pub lines: u64,
}

impl Reader {
    /// Of logs in this format, or in whichever each one's first lines are.
    #[must_use]
    pub fn new(format: Option<LogFormat>) -> Reader {
        Reader { format, spread: true, reading: Reading::default(), latest: Timestamp::EPOCH }
    }

    /// Takes times as they are written, even if only the second is.
    #[must_use]
    pub fn without_spreading(self) -> Reader {
        Reader { spread: false, ..self }
    }

    /// What there was to read so far.
    #[must_use]
    pub const fn reading(&self) -> &Reading {
        &self.reading
    }

    /// Reads a log to its end, and shows each request with its instant.
    ///
    /// # Errors
    /// If the log cannot be read, or is in no format that is known.
    pub fn read(
        &mut self,
        input: Input,
        mut each: impl FnMut(&Entry<'_>, Timestamp),
        mut progress: impl FnMut(Progress),
    ) -> Result<(), ReadError> {
        let Input { name, mut reader, read, .. } = input;
        let before = self.reading.bytes;
        let mut buffer = Buffer::new();
        let mut log: Option<Log> = None;
        loop {
            let end = buffer.fill(&mut *reader).map_err(|error| ReadError::Unreadable { name: name.clone(), error })?;
            let lines = buffer.lines(end);
            if lines.is_empty() && !end {
                // The buffer grows until it holds a whole line.
                continue;
            }
            let log = match &mut log {
                Some(log) => log,
                None => log.insert(self.begin(&name, lines)?),
            };
            let used = self.block(log, lines, end || buffer.is_largest(), &mut each);
            if end {
                break;
            }
            buffer.used(used);
            self.reading.bytes = before + read.load(Ordering::Relaxed);
            progress(Progress { bytes: self.reading.bytes, lines: self.reading.lines });
        }
        self.reading.bytes = before + read.load(Ordering::Relaxed);
        progress(Progress { bytes: self.reading.bytes, lines: self.reading.lines });
        Ok(())
    }

    /// Finds out what a log is written in.
    fn begin(&mut self, name: &str, lines: &[u8]) -> Result<Log, ReadError> {
        let texts =
            || lines.split(|&byte| byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok()).map(str::trim);
        let found = self.format.or_else(|| LogFormat::detect(texts().filter(|line| !line.is_empty()).take(20)));
        // Nothing can be said of an empty log, and nothing need be.
        let empty = texts().all(str::is_empty);
        let format = match found {
            Some(format) => format,
            None if empty => LogFormat::Combined,
            None => return Err(ReadError::UnknownFormat { name: name.to_owned() }),
        };
        let mut reader = LineReader::new(format);
        let head = texts().next().filter(|_| !empty).unwrap_or_default();
        let skip = match reader.begin(head) {
            Ok(skip) => skip,
            Err(_) if empty => false,
            Err(error) => return Err(ReadError::Head { name: name.to_owned(), error }),
        };
        self.reading.logs.push((name.to_owned(), format.to_string()));
        Ok(Log { name: name.to_owned(), reader, line: 0, skip_head: skip })
    }

    /// Reads the lines of a block. Says how many bytes were used: the lines of the last second stay until it is known to be
    /// over, unless `all` are wanted.
    fn block(&mut self, log: &mut Log, lines: &[u8], all: bool, each: &mut impl FnMut(&Entry<'_>, Timestamp)) -> usize {
        let Log { name, reader, line: number, skip_head } = log;
        let mut second = Second { entries: Vec::new(), at: Timestamp::EPOCH, from: 0, line: *number, malformed: 0 };
        let mut at = 0;
        while at < lines.len() {
            let end = memchr::memchr(b'\n', &lines[at..]).map_or(lines.len(), |end| at + end);
            let from = std::mem::replace(&mut at, end + 1);
            *number += 1;
            if std::mem::take(skip_head) {
                continue;
            }
            let line = match std::str::from_utf8(&lines[from..end]) {
                Ok(line) => line.strip_suffix('\r').unwrap_or(line),
                Err(_) => {
                    self.malformed(name, *number, LineError::NotUtf8, &lines[from..end]);
                    continue;
                }
            };
            if line.bytes().all(|byte| byte == b' ') {
                continue;
            }
            let entry = match reader.read(line) {
                Ok(entry) => entry,
                Err(problem) => {
                    self.malformed(name, *number, problem, line.as_bytes());
                    continue;
                }
            };
            if !entry.whole_second || !self.spread {
                second.flush(self, each);
                let instant = self.in_order(entry.at);
                self.tell(&entry, instant, each);
                continue;
            }
            let instant = entry.at.max(self.latest);
            let of = Timestamp::from_secs(instant.as_micros() / 1_000_000);
            if of != second.at || second.entries.is_empty() {
                second.flush(self, each);
                let malformed = self.reading.malformed;
                second = Second { entries: second.entries, at: of, from, line: *number - 1, malformed };
            }
            second.entries.push(entry);
        }
        if all {
            second.flush(self, each);
        }
        if second.entries.is_empty() {
            return at.min(lines.len());
        }
        // Its lines are read again with those that follow, and so are the malformed ones among them.
        *number = second.line;
        let again = self.reading.malformed - second.malformed;
        self.reading.lines -= again;
        self.reading.malformed = second.malformed;
        self.reading.shown.truncate(usize::try_from(second.malformed).unwrap_or(usize::MAX));
        second.from
    }

    fn tell(&mut self, entry: &Entry<'_>, instant: Timestamp, each: &mut impl FnMut(&Entry<'_>, Timestamp)) {
        self.reading.lines += 1;
        self.reading.without_address += u64::from(entry.address.is_none());
        self.reading.whole_seconds += u64::from(entry.whole_second);
        each(entry, instant);
    }

    /// An instant that is not before the latest.
    fn in_order(&mut self, at: Timestamp) -> Timestamp {
        if at < self.latest {
            self.reading.out_of_order += 1;
            self.reading.furthest_back = self.reading.furthest_back.max(self.latest.since(at).get());
        } else {
            self.latest = at;
        }
        self.latest
    }

    #[cold]
    fn malformed(&mut self, log: &str, line: u64, problem: LineError, text: &[u8]) {
        let shown = &mut self.reading.shown;
        self.reading.lines += 1;
        self.reading.malformed += 1;
        if shown.len() < SHOWN {
            let cut = String::from_utf8_lossy(&text[..text.len().min(SHOWN_TEXT)]).into_owned();
            let text = if text.len() > SHOWN_TEXT { format!("{cut}…") } else { cut };
            shown.push(Malformed { log: log.to_owned(), line, problem: problem.to_string(), text });
        }
    }
}

/// A log that is being read.
struct Log {
    name: String,
    reader: LineReader,
    /// Lines so far.
    line: u64,
    skip_head: bool,
}

/// The requests of one second, until it is over.
struct Second<'l> {
    entries: Vec<Entry<'l>>,
    at: Timestamp,
    /// Where its first line begins, and how many lines there were before it.
    from: usize,
    line: u64,
    /// Malformed lines before it.
    malformed: u64,
}

impl Second<'_> {
    fn flush(&mut self, reader: &mut Reader, each: &mut impl FnMut(&Entry<'_>, Timestamp)) {
        let count = self.entries.len() as u64;
        for (entry, number) in self.entries.iter().zip(0..) {
            // Within a second that has been spread already, late lines come at its end.
            let written = entry.at;
            let spread = self.at + Micros::new(number * 1_000_000 / count.max(1));
            if Timestamp::from_secs(written.as_micros() / 1_000_000) < self.at {
                reader.reading.out_of_order += 1;
                let back = self.at.since(written).get();
                reader.reading.furthest_back = reader.reading.furthest_back.max(back);
            }
            reader.latest = reader.latest.max(spread);
            let instant = reader.latest;
            reader.tell(entry, instant, each);
        }
        self.entries.clear();
    }
}

/// What was read and not used yet.
struct Buffer {
    bytes: Vec<u8>,
    filled: usize,
    from: usize,
}

impl Buffer {
    fn new() -> Buffer {
        Buffer { bytes: vec![0; BLOCK], filled: 0, from: 0 }
    }

    /// Reads until the buffer is full. Says whether that was the end.
    fn fill(&mut self, reader: &mut dyn Read) -> io::Result<bool> {
        if self.from > 0 {
            self.bytes.copy_within(self.from..self.filled, 0);
            self.filled -= self.from;
            self.from = 0;
        }
        // What was kept fills half of it: make room for more to come.
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

    const fn is_largest(&self) -> bool {
        self.bytes.len() >= LARGEST_BLOCK
    }

    /// The whole lines; at the end, whatever is left. A line that is larger than the buffer counts as several.
    fn lines(&self, end: bool) -> &[u8] {
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

    const fn used(&mut self, bytes: usize) {
        self.from += bytes;
    }
}
