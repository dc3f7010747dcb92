//! Requests at a host: their places, their turns, and the answers to them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::limit_key::Named;
use super::routes::RouteKey;
use crate::limits::ServerLimit;

/// A request in flight.
#[derive(Debug)]
pub(crate) struct Sent {
    /// It was the nth request that was sent.
    pub(super) order: u64,
    pub(super) limits: Named,
    /// Its cost for each of the limits: 0 for those that are not known any more.
    pub(super) costs: Vec<u64>,
    /// Its costs count only towards limits that were not forgotten since.
    pub(super) epoch: u64,
    /// Whether it is to see if a limit with nothing left still holds.
    pub(super) is_probe: bool,
}

/// A place in the queues of its limits.
#[derive(Debug)]
pub(crate) struct QueuePlace {
    pub(crate) number: u64,
    pub(crate) turn: Arc<Notify>,
}

#[derive(Debug)]
pub(crate) enum Entry {
    Sent(Sent),
    Queued(QueuePlace),
}

#[derive(Debug)]
pub(crate) enum Turn {
    Sent(Sent),
    /// First in line, but not before this instant.
    At(Instant),
    /// After another request has been sent or answered.
    Behind(Behind),
}

/// The place of a request that waits for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Behind {
    /// It cannot be sent before this instant.
    pub(crate) not_before: Instant,
    /// At this instant it is checked again, though no other request was sent or answered.
    pub(crate) recheck_at: Option<Instant>,
}

/// The time of a request by all of its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Earliest {
    Now,
    At(Instant),
    Behind(Behind),
}

/// The parts of an answer that the pace learns from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObservedAnswer<'a> {
    pub(crate) route: RouteKey,
    pub(crate) limits: &'a [ServerLimit],
    /// The wait that it asks for if it was denied.
    pub(crate) denied_for: Option<Duration>,
    /// Whether the denial is for all routes.
    pub(crate) is_host_wide: bool,
    /// Whether the answer says that its route has no other limits.
    pub(crate) is_complete: bool,
}
