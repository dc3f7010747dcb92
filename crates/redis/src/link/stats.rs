//! What a link has done, and how it is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::address::Address;
use super::breaker::BreakerState;

/// How a link is, and what it has done since it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkStats {
    /// One for each server that calls go to: a single one if it is standalone or behind sentinels; in a cluster the
    /// primaries, and nodes that were primaries before and still answer.
    pub servers: Vec<ServerStats>,
}

/// How the way to one server is, and what has gone over it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStats {
    /// Where it is; `None` if sentinels have not named it yet.
    pub address: Option<Address>,
    /// Whether calls are sent.
    pub breaker: BreakerState,
    /// Calls with no longer a deadline than this fail at once: none while the breaker is closed, those that would probably
    /// be answered too late while the server is slow, and all ([`Duration::MAX`]) while it is out of reach.
    pub refuses_up_to: Option<Duration>,
    /// For how long they have been, or have not been. Probes in between do not count.
    pub lasting: Duration,
    /// How many times the breaker has opened.
    pub opened: u64,
    /// Whether there is a connection.
    pub connected: bool,
    /// What the last trouble was, if there was any.
    pub last_trouble: Option<String>,
    /// How many calls wait for their turn.
    pub waiting: usize,
    /// What has been counted.
    pub counts: LinkCounts,
}

macro_rules! counts {
    ($($(#[doc = $doc:literal])* $name:ident => $count:ident,)*) => {
        /// What has been counted on the way to one server.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct LinkCounts {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(super) struct Counts {
            $($name: AtomicU64,)*
        }

        impl Counts {
            $(pub(super) fn $count(&self) {
                self.$name.fetch_add(1, Ordering::Relaxed);
            })*

            pub(super) fn snapshot(&self) -> LinkCounts {
                LinkCounts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counts! {
    /// Calls that were answered.
    answered => answered,
    /// Calls that certainly did not run.
    not_run => not_run,
    /// Calls of which it is not known whether they ran.
    unknown => unknown,
    /// Calls that belonged to another server of the cluster.
    redirected => redirected,
    /// Calls that were sent a second time, after they certainly did not run.
    resent => resent,
    /// Batches sent.
    batches => batch,
    /// Connections made.
    connections => connection,
}
