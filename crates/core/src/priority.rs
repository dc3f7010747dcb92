//! Priorities of requests.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

/// The priority of a request when not all requests can be served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Served last.
    Low,
    /// The usual priority.
    #[default]
    Normal,
    /// Served before requests of normal priority.
    High,
    /// Served as long as any request is served.
    Critical,
}

/// The error for text that is not a priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityError;

impl fmt::Display for PriorityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a priority is `critical`, `high`, `normal` or `low`")
    }
}

impl Error for PriorityError {}

impl Priority {
    /// All priorities, least important first, which is the order of their numbers.
    pub const ALL: [Priority; 4] = [Priority::Low, Priority::Normal, Priority::High, Priority::Critical];

    /// The name of the priority in rules and headers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Priority::Low => "low",
            Priority::Normal => "normal",
            Priority::High => "high",
            Priority::Critical => "critical",
        }
    }

    /// The default priority for a method: normal for requests that read (GET, HEAD, OPTIONS), high for all others.
    #[must_use]
    pub fn of_method(method: &str) -> Priority {
        let reads = ["GET", "HEAD", "OPTIONS"].iter().any(|known| method.eq_ignore_ascii_case(known));
        if reads { Priority::Normal } else { Priority::High }
    }
}

impl FromStr for Priority {
    type Err = PriorityError;

    /// Parses the name, in any case.
    fn from_str(text: &str) -> Result<Priority, PriorityError> {
        let is_word = |priority: &Priority| text.trim().eq_ignore_ascii_case(priority.as_str());
        Priority::ALL.into_iter().find(is_word).ok_or(PriorityError)
    }
}
