//! The state of one server that is shared by callers and the connection's task: queue, counters, breaker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::address::Address;
use super::breaker::{Breaker, BreakerRefusal, BreakerState, Evidence, Jitter, Transition};
use super::call::Call;
use super::error::{Cause, Unreachable};
use super::queue::Queue;
use super::settings::Settings;
use super::stats::{AtomicLinkCounts, ServerStats};

/// The state of one server, shared by callers and the task that sends.
pub(super) struct Shared {
    pub(super) queue: Queue,
    pub(super) counts: AtomicLinkCounts,
    health: Mutex<LinkHealth>,
    /// Starts a query of the topology, if the server is a node of a cluster.
    topology_query: Option<Arc<Notify>>,
}

struct LinkHealth {
    breaker: Breaker,
    address: Option<Address>,
    connected: bool,
    last_failure: Option<Cause>,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndReason {
    /// The connection broke, or the server closed it.
    Lost,
    /// The oldest command was not answered in time.
    Stalled,
    /// The received bytes are not the Redis protocol.
    Malformed,
    /// A reply was larger than any valid reply to the commands.
    TooLarge,
    /// The server is no longer the primary.
    Elsewhere,
}

impl EndReason {
    pub(super) const fn cause(self) -> Cause {
        match self {
            EndReason::Lost | EndReason::Stalled | EndReason::Elsewhere => Cause::ConnectionLost,
            EndReason::Malformed => Cause::Malformed,
            EndReason::TooLarge => Cause::TooLarge,
        }
    }
}

pub(super) fn jitter() -> Jitter {
    Jitter(fastrand::u16(..))
}

impl Shared {
    /// The state of a server before the first connection.
    pub(super) fn new(settings: &Settings, address: Option<Address>, topology_query: Option<Arc<Notify>>) -> Shared {
        let breaker = Breaker::new(settings.breaker, settings.deadline, Instant::now());
        Shared {
            queue: Queue::new(settings.queue),
            counts: AtomicLinkCounts::default(),
            health: Mutex::new(LinkHealth { breaker, address, connected: false, last_failure: None }),
            topology_query,
        }
    }

    fn health(&self) -> MutexGuard<'_, LinkHealth> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_connected(&self) -> bool {
        self.health().connected
    }

    /// The host of the server, if it has one.
    pub(super) fn host(&self) -> Option<Arc<str>> {
        match self.health().address.as_ref()? {
            Address::Tcp { host, .. } => Some(host.clone()),
            Address::Unix(_) => None,
        }
    }

    pub(super) fn stats(&self) -> ServerStats {
        let (health, now) = (self.health(), Instant::now());
        ServerStats {
            address: health.address.clone(),
            breaker: health.breaker.state(),
            refuses_up_to: health.breaker.refusal().map(|refusal| refusal.up_to(now)),
            lasting: now.duration_since(health.breaker.turned()),
            opened: health.breaker.opened(),
            connected: health.connected,
            last_failure: health.last_failure.as_ref().map(Cause::to_string),
            waiting: self.queue.len(),
            counts: self.counts.snapshot(),
        }
    }

    pub(super) const fn in_cluster(&self) -> bool {
        self.topology_query.is_some()
    }

    /// The breaker's state, and when its next probe is due.
    pub(super) fn breaker_state(&self) -> (BreakerState, Option<Instant>) {
        let health = self.health();
        (health.breaker.state(), health.breaker.probe_at())
    }

    /// Records that a batch was answered after `round_trip`.
    pub(super) fn succeeded(&self, round_trip: Duration, now: Instant) {
        let mut health = self.health();
        let transition = health.breaker.succeeded(round_trip, now);
        self.follow(&health, transition, now);
    }

    /// Records when the oldest unanswered command was sent.
    pub(super) fn set_unanswered_since(&self, since: Option<Instant>, now: Instant) {
        let mut health = self.health();
        health.breaker.set_unanswered_since(since);
        self.adjust(&health, now);
    }

    /// Records calls that were not answered in time, or a server that refuses all calls.
    pub(super) fn failed(&self, calls: usize, evidence: Evidence, why: Cause, now: Instant) {
        let mut health = self.health();
        let calls = u32::try_from(calls).unwrap_or(u32::MAX);
        let transition = health.breaker.failed(calls, evidence, now, jitter());
        health.last_failure = Some(why);
        self.follow(&health, transition, now);
    }

    pub(super) fn probing(&self, now: Instant) {
        let mut health = self.health();
        let transition = health.breaker.probe(now);
        self.follow(&health, transition, now);
    }

    /// Records a failed probe: not answered in time, or answered with an error. A late answer is still counted when it
    /// arrives.
    pub(super) fn probe_failed(&self, why: Cause, now: Instant) {
        let mut health = self.health();
        let transition = match &why {
            Cause::Refused(_) => health.breaker.probe_refused(now, jitter()),
            _ => health.breaker.probe_failed(now, jitter()),
        };
        health.last_failure = Some(why);
        self.follow(&health, transition, now);
        drop(health);
        self.discover_topology();
    }

    /// Records that a probe was answered after `round_trip`.
    pub(super) fn answers_probe(&self, round_trip: Duration, now: Instant) {
        let refused = self.queue.last_refused();
        let mut health = self.health();
        let transition = health.breaker.probe_answered(round_trip, refused, now, jitter());
        self.follow(&health, transition, now);
    }

    /// Starts a discovery of the cluster's topology.
    pub(super) fn discover_topology(&self) {
        if let Some(query) = &self.topology_query {
            query.notify_one();
        }
    }

    /// Queues calls again that certainly did not run, each at most once.
    pub(super) fn send_again(&self, calls: Vec<Call>, cause: &Cause, now: Instant) {
        let mut again = Vec::with_capacity(calls.len());
        for mut call in calls {
            if call.resent {
                call.not_run(cause.clone());
            } else if call.unsend() {
                call.resent = true;
                self.counts.resent();
                again.push(call);
            }
        }
        self.queue.put_back(again, now);
    }

    pub(super) fn connected(&self, address: Address, now: Instant) {
        self.counts.connection();
        let mut health = self.health();
        health.connected = true;
        health.address = Some(address);
        let transition = health.breaker.recovered(now);
        self.follow(&health, transition, now);
    }

    pub(super) fn disconnected(&self, end: EndReason, now: Instant) {
        let mut health = self.health();
        health.connected = false;
        health.breaker.disconnected(now);
        let transition = match end {
            // A server with such replies gets no further calls.
            EndReason::Malformed | EndReason::TooLarge => {
                health.last_failure = Some(end.cause());
                health.breaker.trip(now, jitter())
            }
            EndReason::Lost | EndReason::Stalled => {
                health.last_failure = Some(end.cause());
                let transition = health.breaker.probe_failed(now, jitter());
                transition.or_else(|| health.breaker.failed(1, Evidence::Down, now, jitter()))
            }
            EndReason::Elsewhere => None,
        };
        self.follow(&health, transition, now);
        drop(health);
        self.discover_topology();
    }

    pub(super) fn unreachable(&self, why: Unreachable, now: Instant) {
        let mut health = self.health();
        let transition = match why {
            Unreachable::Silent(_) => health.breaker.connecting_timed_out(now, jitter()),
            _ => health.breaker.trip(now, jitter()),
        };
        health.last_failure = Some(Cause::Unreachable(Arc::new(why)));
        self.follow(&health, transition, now);
        drop(health);
        self.discover_topology();
    }

    /// Applies a change of the breaker's state to the queue, and logs it. The caller must hold the lock on `health`.
    fn follow(&self, health: &LinkHealth, transition: Option<Transition>, now: Instant) {
        let Some(Transition { from, to, after }) = transition else {
            self.adjust(health, now);
            return;
        };
        let address = health.address.as_ref().map_or_else(|| "the primary".to_owned(), Address::to_string);
        let last_failure = health.last_failure.clone().unwrap_or(Cause::ConnectionLost);
        let Some(refusal) = health.breaker.refusal() else {
            self.queue.admit();
            tracing::info!(%address, ?after, "breaker closes: calls are sent again");
            return;
        };
        match (from, to) {
            (BreakerState::Closed, _) => {
                match refusal {
                    BreakerRefusal::All => {
                        tracing::warn!(%address, %last_failure, ?after, "breaker opens: calls fail at once");
                    }
                    BreakerRefusal::ShortDeadlines { .. } => {
                        let deadline = refusal.up_to(now);
                        tracing::warn!(
                            %address, %last_failure, ?after, ?deadline,
                            "breaker opens: the server is slow, and calls whose deadlines are too short fail at once"
                        );
                    }
                }
                self.queue.refuse(refusal, Cause::BreakerOpen(Arc::new(last_failure)), now);
                // The sending task must schedule the probe.
                self.queue.wake_consumer();
            }
            (BreakerState::HalfOpen, _) => {
                tracing::debug!(%address, %last_failure, "breaker open: the probe failed");
                self.queue.refuse(refusal, Cause::BreakerOpen(Arc::new(last_failure)), now);
            }
            (BreakerState::Open, _) => {
                tracing::debug!(%address, "breaker half open: probing");
                self.queue.adjust(refusal);
            }
        }
    }

    /// Updates which calls the queue refuses. While the breaker is not closed, they change with every answer.
    fn adjust(&self, health: &LinkHealth, now: Instant) {
        match health.breaker.refusal() {
            None => {}
            Some(refusal @ BreakerRefusal::ShortDeadlines { .. }) => self.queue.adjust(refusal),
            Some(refusal @ BreakerRefusal::All) => {
                let last_failure = health.last_failure.clone().unwrap_or(Cause::ConnectionLost);
                self.queue.refuse(refusal, Cause::BreakerOpen(Arc::new(last_failure)), now);
            }
        }
    }
}
