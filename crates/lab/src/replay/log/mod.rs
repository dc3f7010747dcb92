//! Lines of access logs, read as requests.

mod columns;
mod combined;
mod entry;
mod json;
mod text;
mod time;

use std::fmt;
use std::str::FromStr;

pub use entry::Entry;

use self::columns::Columns;
use self::json::Dialect;
use self::time::Stamps;

/// How a log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogFormat {
    /// NCSA common and combined, as Apache, nginx and Caddy write them; a virtual host in front and more behind are allowed.
    Combined,
    /// JSON whose members are called as nginx's variables are.
    NginxJson,
    /// Caddy's own JSON.
    CaddyJson,
    /// Envoy's JSON, as Istio sets it up.
    EnvoyJson,
    /// Our own, as a table with a head.
    Csv,
    /// Our own, as one JSON object a line.
    Jsonl,
}

impl LogFormat {
    /// All of them.
    pub const ALL: [LogFormat; 6] = [
        LogFormat::Combined,
        LogFormat::NginxJson,
        LogFormat::CaddyJson,
        LogFormat::EnvoyJson,
        LogFormat::Csv,
        LogFormat::Jsonl,
    ];

    /// Its name.
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

    /// What the first lines look like. `None` if they look like nothing that is known.
    #[must_use]
    pub fn detect<'l>(lines: impl IntoIterator<Item = &'l str>) -> Option<LogFormat> {
        lines.into_iter().find_map(|line| {
            let line = line.trim();
            if line.starts_with('{') {
                return json::detect(line);
            }
            if combined::read(line, &Stamps::default()).is_ok() {
                return Some(LogFormat::Combined);
            }
            Columns::read(line).ok().map(|_| LogFormat::Csv)
        })
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no format has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no format `{0}`: write combined, nginx-json, caddy-json, envoy-json, csv or jsonl")]
pub struct NoSuchFormat(String);

impl FromStr for LogFormat {
    type Err = NoSuchFormat;

    fn from_str(name: &str) -> Result<LogFormat, NoSuchFormat> {
        LogFormat::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| NoSuchFormat(name.to_owned()))
    }
}

/// Why a line is not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum LineError {
    /// It has none.
    #[error("there is no time in it")]
    NoTime,
    /// It is not one that is known, or before 1970.
    #[error("its time cannot be read")]
    BadTime,
    /// It has none.
    #[error("there is no request in it")]
    NoRequest,
    /// It is not a method and a target.
    #[error("its request is not a method and a target")]
    BadRequest,
    /// A quote is not closed.
    #[error("a quote is not closed")]
    OpenQuote,
    /// It is not JSON.
    #[error("it is not a JSON object")]
    NotJson,
    /// It has fewer cells than the head.
    #[error("it has fewer cells than the head of the table")]
    MissingCells,
    /// Its cost is not a number.
    #[error("its cost is not a whole number")]
    BadCost,
    /// It is not UTF-8.
    #[error("it is not UTF-8")]
    NotUtf8,
    /// It is too long.
    #[error("it is longer than a line may be")]
    TooLong,
    /// The head of a table lacks a time.
    #[error("the head of the table has no `time`")]
    NoTimeColumn,
    /// The head of a table has a name that is not known.
    #[error("the head of the table has a name that is not known")]
    UnknownColumn,
}

/// Reads the lines of one log.
#[derive(Debug)]
pub struct LineReader {
    format: LogFormat,
    columns: Option<Columns>,
    stamps: Stamps,
}

impl LineReader {
    /// Of a log in this format. A table's head is the first line that it is [told](LineReader::begin).
    #[must_use]
    pub fn new(format: LogFormat) -> LineReader {
        LineReader { format, columns: None, stamps: Stamps::default() }
    }

    /// The format.
    #[must_use]
    pub const fn format(&self) -> LogFormat {
        self.format
    }

    /// Shows the first line of the log. Says whether it was the head of a table, and no request.
    ///
    /// # Errors
    /// If the table's head is wrong: no line below it can be read.
    pub fn begin(&mut self, line: &str) -> Result<bool, LineError> {
        if self.format != LogFormat::Csv || self.columns.is_some() {
            return Ok(false);
        }
        self.columns = Some(Columns::read(line.trim_start_matches('\u{feff}'))?);
        Ok(true)
    }

    /// The request that a line tells of.
    ///
    /// # Errors
    /// Why it tells of none.
    pub fn read<'l>(&'l self, line: &'l str) -> Result<Entry<'l>, LineError> {
        match self.format {
            LogFormat::Combined => combined::read(line, &self.stamps),
            LogFormat::NginxJson => json::read(line, Dialect::Nginx),
            LogFormat::CaddyJson => json::read(line, Dialect::Caddy),
            LogFormat::EnvoyJson => json::read(line, Dialect::Envoy),
            LogFormat::Jsonl => json::read(line, Dialect::Own),
            LogFormat::Csv => self.columns.as_ref().ok_or(LineError::NoTimeColumn)?.entry(line),
        }
    }
}

#[cfg(test)]
mod tests;
