//! Reading a log in constant memory.
//!
//! The log is read in blocks, which are split into lines in place. Times never go back: a line that is older than a
//! previous one takes that one's time. If times are known only to the second, the lines of a second are spread evenly over
//! it, because at one instant they would be a burst. A line from the future is malformed: all later ones would take its time.

use std::sync::atomic::Ordering;

use serde::Serialize;
use tidegate_core::{Micros, Timestamp};

use super::input::{Buffer, Input, ReadError};
use super::log::{AccessEntry, LineError, LineReader, LogFormat};

/// The number of malformed lines that are shown.
const SHOWN: usize = 5;
/// The maximum length of a malformed line that is shown, in bytes.
const SHOWN_TEXT: usize = 160;

/// A line that is not a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MalformedLine {
    /// The name of the log.
    pub log: String,
    /// The line number, from 1.
    pub line: u64,
    /// The problem.
    pub problem: String,
    /// The beginning of the line.
    pub text: String,
}

/// A summary of the logs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogSummary {
    /// The logs with their formats.
    pub logs: Vec<(String, String)>,
    /// Lines, without empty ones.
    pub lines: u64,
    /// Bytes as stored, before decompression.
    pub bytes: u64,
    /// Lines that are not requests.
    pub malformed: u64,
    /// Those of them whose time is in the future.
    pub in_future: u64,
    /// The first few malformed lines.
    pub shown: Vec<MalformedLine>,
    /// Lines that are older than a previous one.
    pub out_of_order: u64,
    /// The largest such difference, in microseconds.
    pub furthest_back: u64,
    /// Requests without a client address.
    pub without_address: u64,
    /// Requests whose time is known only to the second.
    pub whole_seconds: u64,
}

/// Reads logs in order.
#[derive(Debug)]
pub struct LogReader {
    format: Option<LogFormat>,
    spread: bool,
    not_after: Option<Timestamp>,
    summary: LogSummary,
    latest: Timestamp,
}

/// Progress of reading.
#[derive(Clone, Copy, Debug)]
pub struct LogProgress {
    /// Bytes of all logs so far, before decompression.
    pub bytes: u64,
    /// Lines so far.
    pub lines: u64,
}

impl LogReader {
    /// A reader of logs in this format. `None` detects each log's format from its first lines.
    #[must_use]
    pub fn new(format: Option<LogFormat>) -> LogReader {
        LogReader { format, spread: true, not_after: None, summary: LogSummary::default(), latest: Timestamp::EPOCH }
    }

    /// Takes lines that are later than this instant for malformed.
    #[must_use]
    pub fn not_after(self, instant: Timestamp) -> LogReader {
        LogReader { not_after: Some(instant), ..self }
    }

    /// Takes times as written, without spreading the lines of a second.
    #[must_use]
    pub fn without_spreading(self) -> LogReader {
        LogReader { spread: false, ..self }
    }

    /// The summary so far.
    #[must_use]
    pub const fn summary(&self) -> &LogSummary {
        &self.summary
    }

    /// Reads a log to its end, and calls `each` with each request and its instant.
    ///
    /// # Errors
    /// The log cannot be read, or its format is unknown.
    pub fn read(
        &mut self,
        input: Input,
        mut each: impl FnMut(&AccessEntry<'_>, Timestamp),
        mut progress: impl FnMut(LogProgress),
    ) -> Result<(), ReadError> {
        let Input { name, mut reader, read, .. } = input;
        let before = self.summary.bytes;
        let mut buffer = Buffer::new();
        let mut log: Option<OpenLog> = None;
        loop {
            let end = buffer.fill(&mut *reader).map_err(|error| ReadError::Unreadable { name: name.clone(), error })?;
            let lines = buffer.lines(end);
            if lines.is_empty() && !end {
                // The buffer grows until it holds a complete line.
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
            self.summary.bytes = before + read.load(Ordering::Relaxed);
            progress(LogProgress { bytes: self.summary.bytes, lines: self.summary.lines });
        }
        self.summary.bytes = before + read.load(Ordering::Relaxed);
        progress(LogProgress { bytes: self.summary.bytes, lines: self.summary.lines });
        Ok(())
    }

    /// Detects the format of a log.
    fn begin(&mut self, name: &str, lines: &[u8]) -> Result<OpenLog, ReadError> {
        let texts =
            || lines.split(|&byte| byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok()).map(str::trim);
        let found = self.format.or_else(|| LogFormat::detect(texts().filter(|line| !line.is_empty()).take(20)));
        // An empty log has no format and needs none.
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
        self.summary.logs.push((name.to_owned(), format.to_string()));
        Ok(OpenLog { name: name.to_owned(), reader, line: 0, skip_head: skip })
    }

    /// Reads the lines of a block. Returns the number of consumed bytes: the lines of the last second are kept until
    /// the second has ended, unless `all`.
    fn block(
        &mut self,
        log: &mut OpenLog,
        lines: &[u8],
        all: bool,
        each: &mut impl FnMut(&AccessEntry<'_>, Timestamp),
    ) -> usize {
        let OpenLog { name, reader, line: number, skip_head } = log;
        let mut second = LogSecond::default();
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
                Ok(entry) if self.not_after.is_some_and(|last| entry.at > last) => {
                    self.summary.in_future += 1;
                    self.malformed(name, *number, LineError::InFuture, line.as_bytes());
                    continue;
                }
                Ok(entry) => entry,
                Err(problem) => {
                    self.malformed(name, *number, problem, line.as_bytes());
                    continue;
                }
            };
            if !entry.whole_second || !self.spread {
                second.flush(self, each);
                let instant = self.in_order(entry.at);
                self.emit(&entry, instant, each);
                continue;
            }
            // A late line joins the second that is being collected.
            let latest = if second.entries.is_empty() { self.latest } else { self.latest.max(second.at) };
            let instant = entry.at.max(latest);
            let of = Timestamp::from_secs(instant.as_micros() / 1_000_000);
            if of != second.at || second.entries.is_empty() {
                second.flush(self, each);
                let LogSummary { malformed, in_future, .. } = self.summary;
                let entries = second.entries;
                second = LogSecond { entries, at: of, from, line: *number - 1, malformed, in_future };
            }
            second.entries.push(entry);
        }
        if all {
            second.flush(self, each);
        }
        if second.entries.is_empty() {
            return at.min(lines.len());
        }
        // These lines, including malformed ones, are read again with the next block.
        *number = second.line;
        let again = self.summary.malformed - second.malformed;
        self.summary.lines -= again;
        self.summary.malformed = second.malformed;
        self.summary.in_future = second.in_future;
        self.summary.shown.truncate(usize::try_from(second.malformed).unwrap_or(usize::MAX));
        second.from
    }

    fn emit(
        &mut self,
        entry: &AccessEntry<'_>,
        instant: Timestamp,
        each: &mut impl FnMut(&AccessEntry<'_>, Timestamp),
    ) {
        self.summary.lines += 1;
        self.summary.without_address += u64::from(entry.address.is_none());
        self.summary.whole_seconds += u64::from(entry.whole_second);
        each(entry, instant);
    }

    /// The instant, or the latest previous one if that is later.
    fn in_order(&mut self, at: Timestamp) -> Timestamp {
        if at < self.latest {
            self.summary.out_of_order += 1;
            self.summary.furthest_back = self.summary.furthest_back.max(self.latest.since(at).get());
        } else {
            self.latest = at;
        }
        self.latest
    }

    #[cold]
    fn malformed(&mut self, log: &str, line: u64, problem: LineError, text: &[u8]) {
        let shown = &mut self.summary.shown;
        self.summary.lines += 1;
        self.summary.malformed += 1;
        if shown.len() < SHOWN {
            let text = String::from_utf8_lossy(text);
            let cut = &text[..text.floor_char_boundary(SHOWN_TEXT)];
            let text = if cut.len() < text.len() { format!("{cut}…") } else { text.into_owned() };
            shown.push(MalformedLine { log: log.to_owned(), line, problem: problem.to_string(), text });
        }
    }
}

/// A log that is being read.
struct OpenLog {
    name: String,
    reader: LineReader,
    /// Lines so far.
    line: u64,
    skip_head: bool,
}

/// The requests of one second, collected until it ends.
#[derive(Default)]
struct LogSecond<'l> {
    entries: Vec<AccessEntry<'l>>,
    at: Timestamp,
    /// The offset of its first line.
    from: usize,
    /// The number of lines before it.
    line: u64,
    /// Malformed lines before it.
    malformed: u64,
    /// Those of them whose time is in the future.
    in_future: u64,
}

impl LogSecond<'_> {
    fn flush(&mut self, reader: &mut LogReader, each: &mut impl FnMut(&AccessEntry<'_>, Timestamp)) {
        let count = self.entries.len() as u64;
        for (entry, number) in self.entries.iter().zip(0..) {
            // Late lines of a second that was already spread are placed at its end.
            let written = entry.at;
            let spread = self.at + Micros::new(number * 1_000_000 / count.max(1));
            if Timestamp::from_secs(written.as_micros() / 1_000_000) < self.at {
                reader.summary.out_of_order += 1;
                let back = self.at.since(written).get();
                reader.summary.furthest_back = reader.summary.furthest_back.max(back);
            }
            reader.latest = reader.latest.max(spread);
            let instant = reader.latest;
            reader.emit(entry, instant, each);
        }
        self.entries.clear();
    }
}
