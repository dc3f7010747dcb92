//! What is wrong with a configuration, and where.

use std::fmt;

use tidegate_core::yaml::{Diagnostic, Diagnostics};

/// Something wrong with a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// In the file.
    InFile(Box<Diagnostic>),
    /// In a flag or a variable.
    Given {
        /// `--api-listen` or `TIDEGATE_API_LISTEN`.
        by: String,
        /// What is wrong.
        problem: String,
        /// What to write instead.
        help: String,
    },
}

/// Everything that is wrong with a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::InFile(diagnostic) => diagnostic.fmt(f),
            Fault::Given { by, problem, help } => {
                writeln!(f, "error: {problem}")?;
                writeln!(f, " --> {by}")?;
                if help.is_empty() { Ok(()) } else { writeln!(f, "  = {help}") }
            }
        }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|fault| writeln!(f, "{fault}"))
    }
}

impl std::error::Error for Faults {}

impl From<Diagnostics> for Faults {
    fn from(findings: Diagnostics) -> Faults {
        Faults(findings.0.into_iter().map(|finding| Fault::InFile(Box::new(finding))).collect())
    }
}

/// A value that makes no sense: what is wrong, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) problem: String,
    pub(super) help: String,
}

impl Wrong {
    pub(super) fn new(problem: impl Into<String>, help: impl Into<String>) -> Wrong {
        Wrong { problem: problem.into(), help: help.into() }
    }
}
