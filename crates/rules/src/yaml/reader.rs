//! Reading a tree, and collecting every mistake in it.

use std::fmt;

use super::diagnostic::{Diagnostic, MOST_FINDINGS, Severity};
use super::node::{Map, Name, Node, Position, Value};
use super::source::Source;
use tidegate_core::NotationError;
use tidegate_core::limit::Limit;
use tidegate_core::notation::closest;

/// Reads one file's tree. Mistakes are recorded, and reading continues.
pub struct Reader<'s> {
    /// The file.
    pub source: &'s Source,
    /// The findings so far.
    pub findings: Vec<Diagnostic>,
    errors: usize,
    warnings: usize,
    /// The number of compiled regular expressions.
    pub(crate) expressions: usize,
}

impl<'s> Reader<'s> {
    /// Reads the tree of `source`.
    #[must_use]
    pub const fn new(source: &'s Source) -> Reader<'s> {
        Reader { source, findings: Vec::new(), errors: 0, warnings: 0, expressions: 0 }
    }

    /// The number of errors so far.
    #[must_use]
    pub const fn errors(&self) -> usize {
        self.errors
    }

    /// Records an error: what is wrong, and how to correct it.
    pub fn error(&mut self, at: Position, problem: impl fmt::Display, help: impl Into<String>) {
        self.errors += 1;
        self.note(Severity::Error, self.errors, at, problem, help.into());
    }

    /// Records a warning.
    pub fn warning(&mut self, at: Position, problem: impl fmt::Display, help: impl Into<String>) {
        self.warnings += 1;
        self.note(Severity::Warning, self.warnings, at, problem, help.into());
    }

    /// Errors and warnings are counted separately, so that many of one kind do not hide the other.
    fn note(&mut self, severity: Severity, number: usize, at: Position, problem: impl fmt::Display, help: String) {
        let finding = if number <= MOST_FINDINGS {
            let help = Some(help).filter(|help| !help.is_empty());
            self.source.finding(severity, at, problem, help)
        } else if number == MOST_FINDINGS + 1 {
            self.source.finding(severity, at, "further findings are not shown", None)
        } else {
            return;
        };
        self.findings.push(finding);
    }

    /// The fields of a map. Only `known` fields are allowed.
    pub fn fields<'n>(&mut self, node: &'n Node, what: &str, known: &[&str]) -> Option<Fields<'n>> {
        let Value::Map(map) = &node.value else {
            let help = format!("write a map with {}", one_of(known));
            self.error(node.at, format_args!("{what} must be a map, found {}", node.kind()), help);
            return None;
        };
        for (name, _) in map.iter().filter(|(name, _)| !known.contains(&name.text.as_str())) {
            self.unknown(name, what, known);
        }
        let understood = map.iter().all(|(name, _)| known.contains(&name.text.as_str()));
        Some(Fields { at: node.at, map, understood })
    }

    /// Records an unknown name, and the most similar known one.
    pub fn unknown(&mut self, name: &Name, what: &str, known: &[&str]) {
        let likely = if self.errors < MOST_FINDINGS { closest(&name.text, known.iter().copied()) } else { None };
        let help = match likely {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("{what} has {}", all_of(known)),
        };
        self.error(name.at, format_args!("{what} has no `{}`", name.text), help);
    }

    /// The text of a scalar.
    pub fn text(&mut self, node: &Node, what: &str) -> Option<String> {
        let text = node.as_text();
        if text.is_none() {
            self.error(node.at, format_args!("{what} must be text, found {}", node.kind()), "write one value");
        }
        text
    }

    /// An integer that is not negative.
    pub fn count(&mut self, node: &Node, what: &str) -> Option<u64> {
        if let Value::Integer(number) = node.value
            && let Ok(number) = u64::try_from(number)
        {
            return Some(number);
        }
        let found = node.as_text().map_or_else(|| node.kind().to_owned(), |text| format!("`{text}`"));
        self.error(node.at, format_args!("{what} must be a whole number, found {found}"), WHOLE_NUMBER);
        None
    }

    /// `true` or `false`.
    pub fn flag(&mut self, node: &Node, what: &str) -> Option<bool> {
        match (&node.value, node.as_text().as_deref()) {
            (Value::Bool(flag), _) => return Some(*flag),
            (_, Some("yes" | "on")) => return Some(true),
            (_, Some("no" | "off")) => return Some(false),
            (_, Some(text)) => self.error(node.at, format_args!("{what} cannot be `{text}`"), TRUE_OR_FALSE),
            (_, None) => self.error(node.at, format_args!("{what} is {}", node.kind()), TRUE_OR_FALSE),
        }
        None
    }

    /// One of a few words.
    pub fn choice<T: Copy>(&mut self, node: &Node, what: &str, choices: &[(&str, T)]) -> Option<T> {
        let text = self.text(node, what)?;
        if let Some((_, choice)) = choices.iter().find(|(name, _)| *name == text) {
            return Some(*choice);
        }
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let help = match closest(&text, names.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("write {}", one_of(&names)),
        };
        self.error(node.at, format_args!("{what} cannot be `{text}`"), help);
        None
    }

    /// A value, or a list of values.
    pub fn each<'n>(&mut self, node: &'n Node) -> &'n [Node] {
        match &node.value {
            Value::List(items) => items,
            _ => std::slice::from_ref(node),
        }
    }

    /// A limit in the short notation.
    pub fn limit(&mut self, node: &Node) -> Option<Limit> {
        let text = self.text(node, "a limit")?;
        match text.parse::<Limit>() {
            Ok(limit) => Some(limit),
            Err(error) => {
                self.notation(node, &text, &error);
                None
            }
        }
    }

    /// Marks the wrong characters if the file contains the text literally, and otherwise the beginning of the value.
    pub(crate) fn notation(&mut self, node: &Node, text: &str, error: &NotationError) {
        let plain = node.at.width == text.chars().count();
        let at = Position {
            column: node.at.column + if plain { error.column() - 1 } else { 0 },
            width: if plain { error.culprit().chars().count() } else { node.at.width },
            ..node.at
        };
        self.error(at, format_args!("`{text}` is not a limit"), error.problem());
    }
}

const WHOLE_NUMBER: &str = "write one such as 20 or 1_000";
const TRUE_OR_FALSE: &str = "write `true` or `false`";

/// The fields of a map.
#[derive(Clone, Copy)]
pub struct Fields<'n> {
    /// The place of the map.
    pub at: Position,
    /// All fields.
    pub map: &'n Map,
    /// Whether all names are known. If not, a field that seems to be missing may be misspelled.
    pub understood: bool,
}

impl<'n> Fields<'n> {
    /// The value of a field.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'n Node> {
        self.map.iter().find(|(known, _)| known.text == name).map(|(_, node)| node)
    }
}

/// `` `a`, `b` or `c` ``.
pub(crate) fn one_of(names: &[&str]) -> String {
    joined(names, "or")
}

/// `` `a`, `b` and `c` ``.
fn all_of(names: &[&str]) -> String {
    joined(names, "and")
}

fn joined(names: &[&str], last_by: &str) -> String {
    match names {
        [] => "nothing".to_owned(),
        [only] => format!("`{only}`"),
        [rest @ .., last] => format!("`{}` {last_by} `{last}`", rest.join("`, `")),
    }
}
