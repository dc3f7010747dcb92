//! Faults of a file's syntax.

use granit_parser::{ErrorKind, ScanError};

use super::node::{Name, Position};

/// Maximum length of a scalar, in bytes.
pub(super) const LONGEST_SCALAR: usize = 16 << 10;
/// Maximum nesting of lists and maps. A rules file needs only a few levels.
pub(super) const DEEPEST: usize = 24;
/// Maximum number of nodes of a file, including those that its aliases repeat.
pub(super) const MOST_NODES: usize = 2_000_000;

/// A syntax error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct YamlFault {
    pub(super) at: Position,
    pub(super) problem: String,
    pub(super) help: String,
}

impl YamlFault {
    fn new(at: Position, problem: impl Into<String>, help: impl Into<String>) -> YamlFault {
        YamlFault { at, problem: problem.into(), help: help.into() }
    }

    pub(super) fn second_document(at: Position) -> YamlFault {
        let help = "put what follows into a file of its own, and remove the line `---`";
        YamlFault::new(at, "a second YAML document begins here", help)
    }

    /// A value that is too long; `is_root` if it is the whole content of the file.
    pub(super) fn long_scalar(at: Position, is_root: bool) -> YamlFault {
        let help = match is_root {
            true => "this does not look like a rules file, which begins with `rules:`: name another file",
            false => "shorten it",
        };
        YamlFault::new(at, format!("a value of more than {LONGEST_SCALAR} bytes"), help)
    }

    pub(super) fn deep(at: Position) -> YamlFault {
        let problem = format!("lists and maps are nested more than {DEEPEST} deep");
        YamlFault::new(at, problem, "a rules file needs a handful of levels")
    }

    pub(super) fn endless(at: Position) -> YamlFault {
        YamlFault::new(at, "this alias refers to itself", "write it out")
    }

    pub(super) fn too_much(at: Position) -> YamlFault {
        let problem = format!("more than {MOST_NODES} values, or too much text, once aliases are expanded");
        YamlFault::new(at, problem, "aliases that repeat large parts are the usual cause: write less, or write it out")
    }

    pub(super) fn tag(at: Position, tag: &str) -> YamlFault {
        YamlFault::new(at, format!("the tag `{tag}` is not supported"), "remove it")
    }

    pub(super) fn key(at: Position, kind: &str) -> YamlFault {
        YamlFault::new(
            at,
            format!("expected a key, found {kind}"),
            "write a word and a colon; quote what is not a word",
        )
    }

    pub(super) fn repeated(name: &Name) -> YamlFault {
        let problem = format!("`{}` is set twice", name.text);
        YamlFault::new(name.at, problem, "keep one of them")
    }

    /// Rewords the parser's message.
    pub(super) fn of_yaml(error: &ScanError, text: &str) -> YamlFault {
        let at = Position::at(*error.marker());
        match error.kind() {
            ErrorKind::RecursionLimitExceeded => YamlFault::deep(at),
            ErrorKind::UnknownAnchor => {
                let help = "define it above with `&`, or quote the text if it begins with a literal `*`";
                YamlFault::new(at, "this alias has no anchor", help)
            }
            ErrorKind::UnclosedFlowCollection { open } => {
                let close = if *open == '[' { ']' } else { '}' };
                YamlFault::new(at, format!("not YAML: a `{open}` is never closed"), format!("close it with `{close}`"))
            }
            ErrorKind::TabNotAllowed | ErrorKind::TabInBlockIndentation => {
                // The parser stops after the tabs.
                let before = error.marker().byte_offset().and_then(|end| text.get(..end)).unwrap_or_default();
                let tabs = before.len() - before.trim_end_matches('\t').len();
                let at = Position { column: at.column - tabs, width: tabs, ..at };
                YamlFault::new(at, "YAML does not allow tabs as indentation", "indent with spaces")
            }
            _ => {
                let help = "look at this line and the one above: indentation, a missing colon, a quote left open?";
                YamlFault::new(at, format!("not YAML: {}", error.info()), help)
            }
        }
    }
}
