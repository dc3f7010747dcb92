//! One file's text, and findings about it.

use std::fmt;
use std::sync::Arc;

use serde_saphyr::{Budget, Location, Options, Spanned};

use super::node::{Node, Position};
use crate::rules::diagnostic::{Diagnostic, Place, Severity};

/// The largest file that is read, in bytes.
pub(in crate::rules) const LARGEST_FILE: usize = 16 << 20;
/// The longest scalar that means anything, in bytes.
const LONGEST_SCALAR: usize = 16 << 10;
const DEEPEST: usize = 24;
const LONGEST_EXCERPT: usize = 100;

/// A file's name and text.
pub(in crate::rules) struct Source {
    pub(in crate::rules) name: Arc<str>,
    text: String,
}

impl Source {
    /// Takes the bytes of a file, if they are text.
    pub(in crate::rules) fn new(name: &str, bytes: Vec<u8>) -> Result<Source, Diagnostic> {
        let name: Arc<str> = name.into();
        let fault = |line, column, problem: String, help: &str| {
            let place = Place { file: Arc::clone(&name), line, column };
            let help = Some(help.to_owned());
            Diagnostic { severity: Severity::Error, place, problem, help, excerpt: String::new(), mark: (0, 0) }
        };
        if bytes.len() > LARGEST_FILE {
            let problem = format!("the file has {} bytes; at most {LARGEST_FILE} are read", bytes.len());
            return Err(fault(1, 1, problem, "split it into several files in one folder"));
        }
        let position = |at: usize| {
            let line = 1 + bytes[..at].iter().filter(|&&byte| byte == b'\n').count();
            let start = bytes[..at].iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
            (line, 1 + String::from_utf8_lossy(&bytes[start..at]).chars().count())
        };
        if let Err(error) = std::str::from_utf8(&bytes) {
            let (line, column) = position(error.valid_up_to());
            let problem = format!("byte 0x{:02X} here is not UTF-8 text", bytes[error.valid_up_to()]);
            return Err(fault(line, column, problem, "save the file as UTF-8"));
        }
        if let Some(at) = bytes.iter().position(|&byte| byte == 0) {
            let (line, column) = position(at);
            return Err(fault(line, column, "a NUL byte stands here".to_owned(), "remove it"));
        }
        let mut text = String::from_utf8(bytes).unwrap_or_default();
        if text.starts_with('\u{feff}') {
            text.drain(..'\u{feff}'.len_utf8());
        }
        Ok(Source { name, text })
    }

    /// The tree that the text stands for. An empty file is an empty map's worth of nothing: a null.
    pub(in crate::rules) fn parse(&self) -> Result<Node, Diagnostic> {
        let mut budget = Budget::default();
        budget.max_depth = DEEPEST;
        budget.max_aliases = 1_000;
        budget.max_anchors = 1_000;
        budget.max_total_scalar_bytes = LARGEST_FILE;
        budget.max_nodes = 2_000_000;
        budget.max_events = 5_000_000;
        let mut options = Options::default();
        options.budget = Some(budget);
        options.with_snippet = false;
        let node = serde_saphyr::from_str_with_options::<Spanned<Node>>(&self.text, options);
        let node = node.map(Node::located).map_err(|error| {
            let at = error.location().unwrap_or(Location::UNKNOWN);
            let (problem, help) = in_our_words(&error.to_string());
            self.finding(Severity::Error, Position::of(&at), problem, help)
        })?;
        match node.longer_than(LONGEST_SCALAR) {
            Some(long) => {
                let problem = format!("a value of more than {LONGEST_SCALAR} bytes");
                Err(self.finding(Severity::Error, long.at, problem, Some("shorten it".to_owned())))
            }
            None => Ok(node),
        }
    }

    pub(in crate::rules) fn place(&self, at: Position) -> Place {
        Place { file: Arc::clone(&self.name), line: at.line.max(1), column: at.column.max(1) }
    }

    pub(in crate::rules) fn finding(
        &self,
        severity: Severity,
        at: Position,
        problem: impl fmt::Display,
        help: Option<String>,
    ) -> Diagnostic {
        let place = self.place(at);
        let line = self.text.lines().nth(place.line - 1).unwrap_or("");
        let length = line.chars().count();
        let from = (place.column - 1).min(length);
        let skipped = if length > LONGEST_EXCERPT { from.saturating_sub(LONGEST_EXCERPT / 2) } else { 0 };
        let excerpt: String = line.chars().skip(skipped).take(LONGEST_EXCERPT).map(printable).collect();
        let width = at.width.min(excerpt.chars().count().saturating_sub(from - skipped));
        Diagnostic { severity, place, problem: problem.to_string(), help, excerpt, mark: (from - skipped, width) }
    }
}

fn printable(c: char) -> char {
    match c {
        '\t' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}

/// The parser's message in the words of this project's errors.
fn in_our_words(message: &str) -> (String, Option<String>) {
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let message = match message.strip_prefix("line ") {
        Some(rest) => rest.split_once(": ").map_or(message, |(_, message)| message),
        None => message,
    };
    let message = message.lines().next().unwrap_or(message);
    if let Some(key) = message.strip_prefix("duplicate mapping key: ") {
        let key = key.split(", set ").next().unwrap_or(key);
        return (format!("`{key}` stands here for the second time"), Some("keep one of them".to_owned()));
    }
    if message.starts_with("multiple YAML documents") {
        let help = "put the second document into a file of its own, and remove the line `---`";
        return ("a second YAML document begins here".to_owned(), Some(help.to_owned()));
    }
    if message.starts_with("budget breached: Depth") || message.starts_with("recursion limit") {
        return (format!("nested more than {DEEPEST} levels deep"), Some("a rules file needs a handful".to_owned()));
    }
    if message.starts_with("budget breached") {
        let help = "aliases that repeat large parts, or a file far larger than rules need; write it out plainly";
        return (format!("the file asks for too much: {message}"), Some(help.to_owned()));
    }
    if message.starts_with("cannot deserialize null into string") || message.starts_with("expected string scalar") {
        return ("a key that is not a word".to_owned(), Some("write the key as plain text, or quoted".to_owned()));
    }
    (format!("not YAML: {message}"), None)
}
