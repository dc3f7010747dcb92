//! Priorities of requests.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

/// The priority of a request when not all can be served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Served last.
    Low,
    /// As most.
    #[default]
    Normal,
    /// Served before most.
    High,
    /// Served as long as anything is.
    Critical,
}

/// Text that is not a priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityError;

impl fmt::Display for PriorityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a priority is `critical`, `high`, `normal` or `low`")
    }
}

impl Error for PriorityError {}

impl Priority {
    /// All, the least important one first: the order of their numbers.
    pub const ALL: [Priority; 4] = [Priority::Low, Priority::Normal, Priority::High, Priority::Critical];

    /// The word for it, as in rules and headers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Priority::Low => "low",
            Priority::Normal => "normal",
            Priority::High => "high",
            Priority::Critical => "critical",
        }
    }

    /// The priority of a request of which nothing else is known: those that read (GET, HEAD, OPTIONS) are normal, and others high.
    #[must_use]
    pub fn of_method(method: &str) -> Priority {
        let reads = ["GET", "HEAD", "OPTIONS"].iter().any(|known| method.eq_ignore_ascii_case(known));
        if reads { Priority::Normal } else { Priority::High }
    }
}

impl FromStr for Priority {
    type Err = PriorityError;

    /// Reads the word in any case.
    fn from_str(text: &str) -> Result<Priority, PriorityError> {
        let is_word = |priority: &Priority| text.trim().eq_ignore_ascii_case(priority.as_str());
        Priority::ALL.into_iter().find(is_word).ok_or(PriorityError)
    }
}
