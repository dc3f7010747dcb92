//! What is wrong with a configuration, and where.

use std::fmt;

use tidegate_rules::yaml::{Diagnostic, Diagnostics};

use super::setting::Kind;
use super::table::SETTINGS;

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

impl Fault {
    /// What is wrong with a line of the file. The line is not repeated if it may hold a secret.
    pub(super) fn in_file(mut finding: Diagnostic) -> Fault {
        if may_hold_secret(&finding.excerpt) {
            (finding.excerpt, finding.mark) = (String::new(), (0, 0));
        }
        Fault::InFile(Box::new(finding))
    }
}

/// The shortest run of hexadecimal digits that is taken for a secret, whatever the setting is called: its name may be
/// misspelled.
const SHORTEST_SECRET: usize = 16;

fn may_hold_secret(line: &str) -> bool {
    let is_secret = |word: &str| {
        SETTINGS.iter().any(|setting| match setting.kind {
            Kind::Secret | Kind::Logins => setting.name.rsplit('.').next() == Some(word),
            Kind::One | Kind::Many | Kind::Urls => false,
        })
    };
    let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
    let is_long = |run: &str| run.len() >= SHORTEST_SECRET;
    words.any(is_secret)
        || line.split(|c: char| !c.is_ascii_hexdigit()).any(is_long)
        || line.split_once("://").is_some_and(|(_, rest)| rest.contains('@'))
}

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
        Faults(findings.0.into_iter().map(Fault::in_file).collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_may_hold_a_secret_is_not_repeated() {
        for (line, is_hidden) in [
            ("  key: hunter2", true),
            ("secrets: { \"previous\" : hunter2, listn: 1 }", true),
            ("  kye: 00112233445566778899aabbccddeeff", true),
            ("  users: [ann:tea, bob]", true),
            ("    urls: redis://me:hunter2@10.0.0.1:6379", true),
            ("    urls: redis://10.0.0.1:port", false),
            ("  keys: many", false),
            ("  api_key_header: 'X Key'", false),
            ("headers: { ietf: maybe }", false),
        ] {
            assert_eq!(may_hold_secret(line), is_hidden, "{line}");
        }
    }
}
