//! The parts of a limit that leases rely on: the window in which spending counts, and a lower bound on spending.

use super::bucket::{Bucket, SpendingLine};
use super::{Algorithm, Limit, State};
use crate::time::{MAX_EXACT, Timestamp};

/// The window, or the part of a sliding window, in which spending counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Distinguishes the part from all other parts of the same limit.
    pub(crate) number: u64,
    pub(crate) end: Timestamp,
}

impl Limit {
    /// Whether only the amount of spending matters, and not the instant of each request. Such spending can be leased.
    pub(crate) const fn is_leasable(&self) -> bool {
        match self.algorithm {
            Algorithm::TokenBucket(_)
            | Algorithm::Gcra(_)
            | Algorithm::Meter(_)
            | Algorithm::FixedWindow(_)
            | Algorithm::SlidingWindow(_) => true,
            Algorithm::Shaper(_) | Algorithm::SlidingLog(_) | Algorithm::Concurrency(_) => false,
        }
    }

    /// The part in which spending at `now` counts. `None` for buckets.
    pub(crate) fn part(&self, state: &State, now: Timestamp) -> Option<Part> {
        match (&self.algorithm, state) {
            (Algorithm::FixedWindow(limit), State::Window(window)) => Some(limit.part_at(window, now)),
            (Algorithm::SlidingWindow(limit), State::Sliding(sliding)) => Some(limit.part_at(sliding, now)),
            _ => None,
        }
    }

    /// Raises the spending at `at` to at least `tokens`: the debt of a bucket, or the spending in the present part of a window.
    pub(crate) fn raise(&self, state: &mut State, tokens: u64, at: Timestamp) {
        if tokens == 0 {
            return;
        }
        match (&self.algorithm, &mut *state) {
            (Algorithm::FixedWindow(limit), State::Window(window)) => limit.raise(window, tokens, at),
            (Algorithm::SlidingWindow(limit), State::Sliding(sliding)) => limit.raise(sliding, tokens, at),
            _ => match (self.bucket(), state) {
                (Some(bucket), State::Level(level)) => bucket.raise(level, tokens, at),
                (Some(bucket), State::Tat(tat)) => bucket.raise(tat, tokens, at),
                _ => {}
            },
        }
    }
}

impl Bucket {
    /// `tokens` in drops, at most the highest value of a line.
    pub(crate) fn drops_of(&self, tokens: u64) -> u64 {
        tokens.saturating_mul(self.rate().drops_per_token()).min(MAX_EXACT)
    }

    fn raise<L: SpendingLine>(&self, line: &mut L, tokens: u64, at: Timestamp) {
        let least = self.drops_of(tokens);
        if line.spent(&self.rate(), at) < least {
            *line = L::through(least, &self.rate(), at);
        }
    }
}
