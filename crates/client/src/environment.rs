//! Time, randomness and the hosts, passed to the logic of all parts.

use std::sync::Arc;

use http::{HeaderMap, Uri};

use crate::budget::BudgetTerms;
use crate::clock::{Clock, SystemClock};
use crate::counters::Snapshot;
use crate::hosts::{self, Host, Hosts};

/// The accepts multiplier in Google's SRE book.
pub(crate) const USUAL_K: f64 = 2.0;

#[derive(Clone)]
pub(crate) struct Environment {
    pub(crate) clock: Arc<dyn Clock>,
    /// A number from 0 up to, but not including, 1.
    pub(crate) random: Arc<dyn Fn() -> f64 + Send + Sync>,
    pub(crate) hosts: Arc<Hosts>,
    /// The name of the host for requests that do not name one.
    pub(crate) host: Arc<str>,
}

impl Environment {
    pub(crate) fn new() -> Environment {
        Environment {
            clock: Arc::new(SystemClock),
            random: Arc::new(fastrand::f64),
            hosts: Arc::new(Hosts::new(BudgetTerms::default(), USUAL_K)),
            host: Arc::default(),
        }
    }

    /// The host of a request.
    pub(crate) fn host_of(&self, uri: &Uri, headers: &HeaderMap) -> Arc<Host> {
        let name = hosts::name_of(uri, headers);
        self.hosts.get(if name.is_empty() { &self.host } else { &name })
    }

    /// Forgets the limits of a host.
    pub(crate) fn forget(&self, host: &str) {
        if let Some(host) = self.hosts.known(&host.to_ascii_lowercase()) {
            host.pace.forget();
        }
    }

    /// The state of each host at this instant.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.hosts.snapshot(self.clock.now())
    }
}
