//! State and counters of a link.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::address::Address;
use super::breaker::BreakerState;

/// The state of a link, and its counters since it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkStats {
    /// The servers. If standalone or behind sentinels, one server; in a cluster, the primaries, and former primaries that
    /// still answer.
    pub servers: Vec<ServerStats>,
    /// Why no node describes the cluster. `None` if a node does, if none was asked yet, or without a cluster.
    pub topology_failure: Option<String>,
}

/// The state of one server, and its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStats {
    /// The address; `None` if the sentinels have not named the server yet.
    pub address: Option<Address>,
    /// The state of the circuit breaker.
    pub breaker: BreakerState,
    /// The longest deadline with which calls fail immediately. `None` while the breaker is closed, and [`Duration::MAX`]
    /// while the server is unreachable.
    pub refuses_up_to: Option<Duration>,
    /// The time since the breaker last opened or closed. Probes in between do not count.
    pub lasting: Duration,
    /// Number of times that the breaker has opened.
    pub opened: u64,
    /// Whether the server is connected.
    pub connected: bool,
    /// The last failure.
    pub last_failure: Option<String>,
    /// Number of queued calls.
    pub waiting: usize,
    /// The counters.
    pub counts: LinkCounts,
}

macro_rules! counts {
    ($($(#[doc = $doc:literal])* $name:ident => $count:ident,)*) => {
        /// Counters of one server.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct LinkCounts {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(super) struct AtomicLinkCounts {
            $($name: AtomicU64,)*
        }

        impl AtomicLinkCounts {
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
    /// Calls that may have run, without an answer.
    unknown => unknown,
    /// Calls that were redirected to another node of the cluster.
    redirected => redirected,
    /// Calls that were sent a second time, because they certainly did not run the first time.
    resent => resent,
    /// Batches sent.
    batches => batch,
    /// Connections made.
    connections => connection,
}
