//! One file's text, and findings about it.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use super::LARGEST_FILE;
use super::diagnostic::{Diagnostic, Place, Severity};
use super::fault::YamlFault;
use super::node::{Node, Position};
use super::tree::YamlTree;

const LONGEST_EXCERPT: usize = 100;

/// A file's name and text.
pub struct Source {
    /// The name used in messages.
    pub name: Arc<str>,
    text: String,
    /// The number and the offset of the last line that was looked up. Findings come mostly in order, so the next search
    /// begins here.
    last_line: Cell<(usize, usize)>,
}

impl Source {
    /// Takes the bytes of a file.
    ///
    /// # Errors
    /// Fails if they are not text, or if there are too many of them.
    pub fn new(name: &str, bytes: Vec<u8>) -> Result<Source, Box<Diagnostic>> {
        let name: Arc<str> = name.into();
        let fault = |(line, column), problem: String, help: &str| {
            Box::new(Diagnostic::bare(Place { file: Arc::clone(&name), line, column }, problem, help))
        };
        if bytes.len() > LARGEST_FILE {
            let problem = format!("the file is larger than the {LARGEST_FILE} bytes that are read");
            return Err(fault((1, 1), problem, "split it into several files in one folder"));
        }
        let mut text = match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                let problem = format!("byte 0x{:02X} here is not UTF-8 text", error.as_bytes()[at]);
                let valid = std::str::from_utf8(&error.as_bytes()[..at]).unwrap_or_default();
                return Err(fault(end_of(valid), problem, "save the file as UTF-8"));
            }
        };
        if let Some(at) = text.find('\0') {
            return Err(fault(end_of(&text[..at]), "a NUL byte".to_owned(), "remove it"));
        }
        if text.starts_with(BYTE_ORDER_MARK) {
            text.drain(..BYTE_ORDER_MARK.len_utf8());
        }
        Ok(Source { name, text, last_line: Cell::new((1, 0)) })
    }

    /// Parses the text; null if the file is empty. Mistakes are added to `findings`.
    pub fn parse(&self, findings: &mut Vec<Diagnostic>) -> Option<Node> {
        let mut note = |fault: YamlFault| {
            findings.push(self.finding(Severity::Error, fault.at, fault.problem, Some(fault.help)));
        };
        match YamlTree::grow(&self.text) {
            Ok(tree) => {
                tree.faults.into_iter().for_each(note);
                Some(tree.root.unwrap_or_else(|| Node::plain(Position::default(), String::new())))
            }
            Err(fault) => {
                note(fault);
                None
            }
        }
    }

    /// The place of a position in this file.
    pub fn place(&self, at: Position) -> Place {
        Place { file: Arc::clone(&self.name), line: at.line.max(1), column: at.column.max(1) }
    }

    /// A finding about a position in this file.
    pub fn finding(
        &self,
        severity: Severity,
        at: Position,
        problem: impl fmt::Display,
        help: Option<String>,
    ) -> Diagnostic {
        let place = self.place(at);
        let line = self.line(place.line);
        let length = line.chars().count();
        let from = (place.column - 1).min(length);
        let skipped = if length > LONGEST_EXCERPT { from.saturating_sub(LONGEST_EXCERPT / 2) } else { 0 };
        let excerpt: String = line.chars().skip(skipped).take(LONGEST_EXCERPT).map(printable).collect();
        let width = at.width.min(excerpt.chars().count().saturating_sub(from - skipped));
        Diagnostic { severity, place, problem: problem.to_string(), help, excerpt, mark: (from - skipped, width) }
    }

    /// A line by its number, without its line ending.
    fn line(&self, wanted: usize) -> &str {
        let (mut number, mut from) = self.last_line.get();
        if number > wanted {
            (number, from) = (1, 0);
        }
        while number < wanted {
            let Some(next) = next_line(&self.text[from..]) else { return "" };
            (number, from) = (number + 1, from + next);
        }
        self.last_line.set((number, from));
        let rest = &self.text[from..];
        &rest[..rest.find(['\n', '\r']).unwrap_or(rest.len())]
    }
}

const BYTE_ORDER_MARK: char = '\u{feff}';

/// The offset of the next line. As in YAML, a line ends with a line feed, a carriage return, or both.
fn next_line(text: &str) -> Option<usize> {
    let end = text.find(['\n', '\r'])?;
    Some(end + if text[end..].starts_with("\r\n") { 2 } else { 1 })
}

/// The line and the column that come after `text`.
fn end_of(text: &str) -> (usize, usize) {
    let (mut line, mut rest) = (1, text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text));
    while let Some(next) = next_line(rest) {
        line += 1;
        rest = &rest[next..];
    }
    (line, 1 + rest.chars().count())
}

fn printable(c: char) -> char {
    match c {
        '\t' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}
