//! One limit by itself, which all admissions of the fleet are held against.

use tidegate_core::limit::State;
use tidegate_core::{Limit, Timestamp};

/// The time in milliseconds by which a node can learn of an admission later than the server decided it: the deadline of requests, and
/// a step of the simulation.
pub(crate) const LATE: u64 = 22;

/// A limit of a rule in a simulation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sample {
    Bucket { text: &'static str, rate: u64, burst: u64 },
    Window { text: &'static str, most: u64, seconds: u64 },
}

impl Sample {
    pub(crate) const fn text(&self) -> &'static str {
        match self {
            Sample::Bucket { text, .. } | Sample::Window { text, .. } => text,
        }
    }
}

/// The limit without leases, charged with every admission. Faults that let more be admitted add to it.
pub(crate) struct Ideal {
    sample: Sample,
    limit: Limit,
    state: State,
    /// What is allowed beyond the limit.
    more: u64,
    /// The number of the present window, and the admissions that are certainly in it.
    window: (u64, u64),
    /// Admissions since the server was copied.
    since_copy: u64,
}

impl Ideal {
    pub(crate) fn new(sample: Sample) -> Ideal {
        let limit: Limit = sample.text().parse().unwrap();
        Ideal { sample, limit, state: limit.fresh(), more: 0, window: (0, 0), since_copy: 0 }
    }

    /// A request was admitted at some instant between these, which are at most [`LATE`] apart. Returns whether that is too many.
    pub(crate) fn exceeds(&mut self, asked: Timestamp, answered: Timestamp) -> bool {
        self.since_copy += 1;
        match self.sample {
            Sample::Bucket { rate, burst, .. } => {
                let limit = self.limit.burst(burst + self.more + (rate * LATE).div_ceil(1_000));
                !limit.decide(&mut self.state, 1, answered).is_allowed()
            }
            Sample::Window { most, seconds, .. } => {
                let window = |instant: Timestamp| instant.as_micros() / (1_000_000 * seconds);
                if window(asked) != window(answered) {
                    return false;
                }
                if window(answered) != self.window.0 {
                    self.window = (window(answered), 0);
                }
                self.window.1 += 1;
                self.window.1 > most + self.more
            }
        }
    }

    /// A replica knows of everything up to now.
    pub(crate) const fn copied(&mut self) {
        self.since_copy = 0;
    }

    /// The replica takes over: what was admitted since is admitted once more, and what nodes hold is not known to it.
    pub(crate) const fn replaced(&mut self, held: u64) {
        self.more += self.since_copy + held;
    }

    /// The server's clock steps ahead: a bucket recovers by that much, and leases end that nodes still hold.
    pub(crate) fn stepped_ahead(&mut self, millis: u64, held: u64) {
        if let Sample::Bucket { rate, burst, .. } = self.sample {
            self.more += burst.min((rate * millis).div_ceil(1_000)) + held;
        }
    }
}
