//! Time, randomness and the hosts, passed to the logic of all parts.

use std::sync::Arc;

use crate::budget::BudgetTerms;
use crate::clock::{Clock, SystemClock};
use crate::counters::Snapshot;
use crate::hosts::Hosts;

/// The accepts multiplier of Google's SRE book.
pub(crate) const USUAL_K: f64 = 2.0;

#[derive(Clone)]
pub(crate) struct Environment {
    pub(crate) clock: Arc<dyn Clock>,
    /// A number from 0 up to, but not including, 1.
    pub(crate) random: Arc<dyn Fn() -> f64 + Send + Sync>,
    pub(crate) hosts: Arc<Hosts>,
}

impl Environment {
    pub(crate) fn new() -> Environment {
        Environment {
            clock: Arc::new(SystemClock),
            random: Arc::new(fastrand::f64),
            hosts: Arc::new(Hosts::new(BudgetTerms::default(), USUAL_K)),
        }
    }

    /// The state of each host at this instant.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.hosts.snapshot(self.clock.now())
    }
}
