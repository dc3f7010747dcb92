//! Errors of a configuration, with their positions.

use std::fmt;

use tidegate_rules::yaml::{Diagnostic, Diagnostics};

use super::setting::SettingKind;
use super::table::SETTINGS;

/// Error of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// In the file.
    InFile(Box<Diagnostic>),
    /// In a flag or a variable.
    Given {
        /// `--api-listen` or `TIDEGATE_API_LISTEN`.
        by: String,
        /// Description of the error.
        problem: String,
        /// Suggested fix.
        help: String,
    },
}

/// All errors of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl ConfigError {
    /// Error in a line of the file. The line is not quoted if it may contain a secret.
    pub(super) fn in_file(mut finding: Diagnostic) -> ConfigError {
        if may_hold_secret(&finding.excerpt) {
            (finding.excerpt, finding.mark) = (String::new(), (0, 0));
        }
        ConfigError::InFile(Box::new(finding))
    }
}

/// Shortest run of hexadecimal digits that is treated as a secret under any setting name, because the name may be
/// misspelled.
const SHORTEST_SECRET: usize = 16;

fn may_hold_secret(line: &str) -> bool {
    let is_secret = |word: &str| {
        SETTINGS.iter().any(|setting| match setting.kind {
            SettingKind::Secret | SettingKind::Logins => setting.name.rsplit('.').next() == Some(word),
            SettingKind::One | SettingKind::Many | SettingKind::Urls => false,
        })
    };
    let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
    let is_long = |run: &str| run.len() >= SHORTEST_SECRET;
    words.any(is_secret)
        || line.split(|c: char| !c.is_ascii_hexdigit()).any(is_long)
        // The login of a URL, or its parameters, such as `pass` of a socket.
        || line.split_once("://").is_some_and(|(_, rest)| rest.contains(['@', '?']))
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::InFile(diagnostic) => diagnostic.fmt(f),
            ConfigError::Given { by, problem, help } => {
                writeln!(f, "error: {problem}")?;
                writeln!(f, " --> {by}")?;
                if help.is_empty() { Ok(()) } else { writeln!(f, "  = {help}") }
            }
        }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|error| writeln!(f, "{error}"))
    }
}

impl std::error::Error for ConfigErrors {}

impl From<Diagnostics> for ConfigErrors {
    fn from(findings: Diagnostics) -> ConfigErrors {
        ConfigErrors(findings.0.into_iter().map(ConfigError::in_file).collect())
    }
}

/// Invalid value: the problem, and a suggested fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvalidValue {
    pub(crate) problem: String,
    pub(crate) help: String,
}

impl InvalidValue {
    pub(super) fn new(problem: impl Into<String>, help: impl Into<String>) -> InvalidValue {
        InvalidValue { problem: problem.into(), help: help.into() }
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
            ("    urls: unix:///run/redis.sock?pass=hunter2", true),
            ("    urls: unix:///run/redis.sock", false),
            ("    urls: redis://10.0.0.1:port", false),
            ("  keys: many", false),
            ("  api_key_header: 'X Key'", false),
            ("headers: { ietf: maybe }", false),
        ] {
            assert_eq!(may_hold_secret(line), is_hidden, "{line}");
        }
    }
}
