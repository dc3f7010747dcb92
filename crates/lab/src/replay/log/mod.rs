//! Access logs, parsed line by line into requests.

mod columns;
mod combined;
mod csv;
mod entry;
mod json;
mod json_members;
mod text;
mod time;

use std::fmt;
use std::str::FromStr;

pub use entry::AccessEntry;

use self::columns::Columns;
use self::json::LogDialect;
use self::time::TimeParser;

/// The format of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogFormat {
    /// NCSA common and combined, as written by Apache, nginx and Caddy. A leading virtual host and trailing fields are
    /// allowed.
    Combined,
    /// JSON with members named like nginx's variables.
    NginxJson,
    /// Caddy's own JSON.
    CaddyJson,
    /// Envoy's JSON, as configured by Istio.
    EnvoyJson,
    /// Tidegate's own format as CSV with a header.
    Csv,
    /// Tidegate's own format as JSON lines.
    Jsonl,
}

impl LogFormat {
    /// All formats.
    pub const ALL: [LogFormat; 6] = [
        LogFormat::Combined,
        LogFormat::NginxJson,
        LogFormat::CaddyJson,
        LogFormat::EnvoyJson,
        LogFormat::Csv,
        LogFormat::Jsonl,
    ];

    /// The name of the format.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            LogFormat::Combined => "combined",
            LogFormat::NginxJson => "nginx-json",
            LogFormat::CaddyJson => "caddy-json",
            LogFormat::EnvoyJson => "envoy-json",
            LogFormat::Csv => "csv",
            LogFormat::Jsonl => "jsonl",
        }
    }

    /// Detects the format from the first lines of a log. `None` if it is unknown. An unknown column does not make a
    /// table unknown.
    #[must_use]
    pub fn detect<'l>(lines: impl IntoIterator<Item = &'l str>) -> Option<LogFormat> {
        let mut lines = lines.into_iter().map(str::trim).peekable();
        let first = lines.peek().copied();
        let found = lines.find_map(|line| {
            if line.starts_with('{') {
                return json::detect(line);
            }
            if combined::read(line, &TimeParser::default()).is_ok() {
                return Some(LogFormat::Combined);
            }
            Columns::read(line).ok().map(|_| LogFormat::Csv)
        });
        found.or_else(|| first.filter(|line| Columns::are_named_in(line)).map(|_| LogFormat::Csv))
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is not a format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no format `{0}`: write combined, nginx-json, caddy-json, envoy-json, csv or jsonl")]
pub struct NoSuchFormat(String);

impl FromStr for LogFormat {
    type Err = NoSuchFormat;

    fn from_str(name: &str) -> Result<LogFormat, NoSuchFormat> {
        LogFormat::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| NoSuchFormat(name.to_owned()))
    }
}

/// The reason why a line is not a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum LineError {
    /// The line has no time.
    #[error("it contains no time")]
    NoTime,
    /// The time is in no known form, or before 1970.
    #[error("its time cannot be read")]
    BadTime,
    /// The time is later than the log can have been written.
    #[error("its time is in the future")]
    InFuture,
    /// The line has no request.
    #[error("it contains no request")]
    NoRequest,
    /// The request is not a method and a target.
    #[error("its request is not a method and a target")]
    BadRequest,
    /// A quote is not closed.
    #[error("a quote is not closed")]
    OpenQuote,
    /// The line is not JSON.
    #[error("it is not a JSON object")]
    NotJson,
    /// The line has fewer cells than the header.
    #[error("it has fewer cells than the header of the table")]
    MissingCells,
    /// The cost is not a number.
    #[error("its cost is not a whole number")]
    BadCost,
    /// The line is not UTF-8.
    #[error("it is not UTF-8")]
    NotUtf8,
    /// The header of a table lacks a time.
    #[error("the header of the table has no `time` column")]
    NoTimeColumn,
    /// The header of a table has an unknown column.
    #[error(
        "the header of the table has an unknown column `{0}`: known are time, address, method, path, host, user, api_key, tier, \
         cost, duration_ms, header:NAME and claim:NAME"
    )]
    UnknownColumn(Box<str>),
}

/// Parses the lines of one log.
#[derive(Debug)]
pub struct LineReader {
    format: LogFormat,
    columns: Option<Columns>,
    stamps: TimeParser,
}

impl LineReader {
    /// A reader of a log in this format. [`begin`](LineReader::begin) takes its first line.
    #[must_use]
    pub fn new(format: LogFormat) -> LineReader {
        LineReader { format, columns: None, stamps: TimeParser::default() }
    }

    /// The format of the log.
    #[must_use]
    pub const fn format(&self) -> LogFormat {
        self.format
    }

    /// Reads the first line of the log. Returns whether it is the header of a table and not a request.
    ///
    /// # Errors
    /// The header of the table is wrong, so no line below it can be parsed.
    pub fn begin(&mut self, line: &str) -> Result<bool, LineError> {
        if self.format != LogFormat::Csv || self.columns.is_some() {
            return Ok(false);
        }
        self.columns = Some(Columns::read(line.trim_start_matches('\u{feff}'))?);
        Ok(true)
    }

    /// The request of a line.
    ///
    /// # Errors
    /// The line is not a request.
    pub fn read<'l>(&'l self, line: &'l str) -> Result<AccessEntry<'l>, LineError> {
        match self.format {
            LogFormat::Combined => combined::read(line, &self.stamps),
            LogFormat::NginxJson => json::read(line, LogDialect::Nginx),
            LogFormat::CaddyJson => json::read(line, LogDialect::Caddy),
            LogFormat::EnvoyJson => json::read(line, LogDialect::Envoy),
            LogFormat::Jsonl => json::read(line, LogDialect::Own),
            LogFormat::Csv => self.columns.as_ref().ok_or(LineError::NoTimeColumn)?.entry(line),
        }
    }
}

#[cfg(test)]
mod tests;
