//! The text notation of limits.
//!
//! ```text
//! 20/s burst 50              token bucket: 20 a second, up to 50 at once
//! 300/3h                     the same with a burst of 300
//! gcra 100/min burst 10      the same decisions, by one timestamp
//! meter 10/s burst 20        leaky bucket that refuses
//! shaper 10/s queue 50       leaky bucket that delays
//! fixed 1000/day             fixed window, aligned to the epoch
//! fixed 1000/month calendar  fixed window, aligned to the UTC calendar
//! sliding 300/min parts 6    sliding window counter
//! log 5/min                  sliding log, exact
//! concurrent 10 ttl 30s      at most 10 at once, in leases of 30 s
//! ```
//!
//! Numbers may be grouped (`1_000`). Periods are a unit, or a number and a unit: `us`, `ms`, `s`, `min`, `h`, `day`, `week`,
//! `month` (30 days) and `year` (365 days), or their usual other names. A printed limit parses back to the same limit.

mod edit_distance;
mod parse;
mod print;
mod unit;

use std::fmt;
use std::time::Duration;

use self::edit_distance::edit_distance;
use crate::time::Micros;

/// The error for text that is not a limit: the position of the mistake, and how to correct it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotationError {
    text: String,
    at: usize,
    width: usize,
    problem: String,
}

impl NotationError {
    fn new(text: &str, at: usize, width: usize, problem: impl fmt::Display) -> NotationError {
        NotationError { text: text.to_owned(), at, width, problem: problem.to_string() }
    }

    /// The problem, and how to correct it.
    #[must_use]
    pub fn problem(&self) -> &str {
        &self.problem
    }

    /// The number of the first wrong character, counted from 1.
    #[must_use]
    pub fn column(&self) -> usize {
        self.text[..self.at].chars().count() + 1
    }

    /// The wrong characters; empty if something is missing at that position.
    #[must_use]
    pub fn culprit(&self) -> &str {
        &self.text[self.at..self.at + self.width]
    }

    /// The text, with a second line that points at the mistake.
    #[must_use]
    pub fn pointer(&self) -> String {
        let marks = "^".repeat(self.culprit().chars().count().max(1));
        format!("{}\n{:indent$}{marks} {}", self.text, "", self.problem, indent = self.column() - 1)
    }
}

impl fmt::Display for NotationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\", character {}: {}", self.text.escape_debug(), self.column(), self.problem)
    }
}

impl std::error::Error for NotationError {}

/// Displays a span as `3h`, `90s` or `1.5ms`.
impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let minute = Micros::from_secs(60);
        if self.is_zero() {
            f.write_str("0s")
        } else if self.get().is_multiple_of(minute.get()) {
            f.write_str(&write_span(*self))
        } else {
            fmt::Debug::fmt(&Duration::from(*self), f)
        }
    }
}

/// Parses a span of time: `30s`, `20ms`, `3h`.
impl std::str::FromStr for Micros {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Micros, NotationError> {
        span(text)
    }
}

/// A span of time, such as `30s`.
pub(crate) fn span(text: &str) -> Result<Micros, NotationError> {
    parse::span(text)
}

/// Writes a span of time in the notation that [`Micros`] parses, such as `30s`.
#[must_use]
pub fn write_span(span: Micros) -> String {
    let (number, unit) = unit::TimeUnit::measuring(span);
    format!("{number}{}", unit.names[0])
}

/// The known word that is most similar to `word`. `None` if none is similar enough.
#[must_use]
pub fn closest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    // Short words resemble many others, so they permit fewer edits than long ones.
    let furthest = |known: &str| (1 + known.len() / 4).min(known.len().saturating_sub(1));
    let near = |known: &&str| word.len().abs_diff(known.len()) <= 4 * furthest(known);
    let distance = |known: &str| edit_distance(&word, known);
    let (distance, best) = known.into_iter().filter(near).map(|known| (distance(known), known)).min()?;
    (distance <= furthest(best)).then_some(best)
}

#[cfg(test)]
mod tests;
