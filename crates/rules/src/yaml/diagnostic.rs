//! Findings in a file, with their places.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

/// Whether a finding prevents the file from being used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used, but probably contains a mistake.
    Warning,
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Place {
    /// The name of the file.
    pub file: Arc<str>,
    /// The line, counted from 1.
    pub line: usize,
    /// The character in the line, counted from 1.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// Maximum number of findings that are reported for one file.
pub(crate) const MOST_FINDINGS: usize = 100;

/// A finding: what is wrong, where, and how to correct it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// Whether the finding prevents the file from being used.
    pub severity: Severity,
    /// The place.
    #[serde(flatten)]
    pub place: Place,
    /// The problem, in one line.
    pub problem: String,
    /// The text to write instead, or the place to check.
    pub help: Option<String>,
    /// The line of the file, truncated around the fault.
    pub excerpt: String,
    /// The start of the fault in the excerpt, in characters from 0, and its length.
    pub mark: (usize, usize),
}

impl Diagnostic {
    /// An error about a file without an excerpt.
    pub fn bare(place: Place, problem: String, help: &str) -> Diagnostic {
        let help = Some(help.to_owned()).filter(|help| !help.is_empty());
        Diagnostic { severity: Severity::Error, place, problem, help, excerpt: String::new(), mark: (0, 0) }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        writeln!(f, "{severity}: {}", self.problem)?;
        let gutter = self.place.line.to_string().len();
        writeln!(f, "{:gutter$}--> {}", "", self.place)?;
        if !self.excerpt.is_empty() {
            let (from, width) = self.mark;
            writeln!(f, "{:gutter$} |", "")?;
            writeln!(f, "{} | {}", self.place.line, self.excerpt)?;
            writeln!(f, "{:gutter$} | {:from$}{}", "", "", "^".repeat(width.max(1)))?;
        }
        match &self.help {
            Some(help) => writeln!(f, "{:gutter$} = {help}", ""),
            None => Ok(()),
        }
    }
}

/// All findings about one or several files, ordered by place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl Diagnostics {
    /// The number of errors.
    #[must_use]
    pub fn errors(&self) -> usize {
        self.0.iter().filter(|finding| finding.severity == Severity::Error).count()
    }

    /// The number of warnings.
    #[must_use]
    pub fn warnings(&self) -> usize {
        self.0.len() - self.errors()
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.0 {
            writeln!(f, "{finding}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}
