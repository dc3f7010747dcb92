//! The way to one server: calls go in at one end, a task of its own sends them at the other.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::address::Address;
use super::batch::Composer;
use super::breaker::{Breaker, BreakerSettings, BreakerState, Draw, Evidence, Refusal, Transition, spread};
use super::call::{Berth, Call, Deadline, GivenUp, Outcome};
use super::error::{Cause, LinkError, Unreachable};
use super::queue::Queue;
use super::sentinel::Sentinels;
use super::session::{Connector, Session};
use super::settings::Settings;
use super::stats::{Counts, ServerStats};
use super::wire::{End, Wire};
use crate::frame::Frame;

/// The way to one server. Clones are the same way; when the last is dropped, the connection ends.
#[derive(Clone)]
pub(super) struct Line {
    shared: Arc<Shared>,
    _task: Arc<Task>,
}

/// A task that ends when this is dropped.
pub(super) struct Task(pub(super) AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What callers and the sending task share.
pub(super) struct Shared {
    pub(super) queue: Queue,
    pub(super) counts: Counts,
    health: Mutex<Health>,
    /// Whom to tell that something is wrong with the server, if it is one of a cluster.
    trouble: Option<Arc<Notify>>,
}

struct Health {
    breaker: Breaker,
    address: Option<Address>,
    connected: bool,
    /// What went wrong last.
    trouble: Option<Cause>,
}

/// How to find the server.
pub(super) enum Way {
    Fixed(Address),
    Sentinel(Sentinels),
}

/// What every line of a link has in common.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) settings: Arc<Settings>,
    pub(super) connector: Connector,
    pub(super) composer: Composer,
    pub(super) runtime: Handle,
}

impl Line {
    pub(super) fn open(plan: &Plan, way: Way, trouble: Option<Arc<Notify>>) -> Line {
        let address = match &way {
            Way::Fixed(address) => Some(address.clone()),
            Way::Sentinel(_) => None,
        };
        let breaker = Breaker::new(plan.settings.breaker, plan.settings.deadline, Instant::now());
        let shared = Arc::new(Shared {
            queue: Queue::new(plan.settings.queue),
            counts: Counts::default(),
            health: Mutex::new(Health { breaker, address, connected: false, trouble: None }),
            trouble,
        });
        let sender = Sender { shared: shared.clone(), plan: plan.clone(), way };
        let task = plan.runtime.spawn(sender.run());
        Line { shared, _task: Arc::new(Task(task.abort_handle())) }
    }

    /// Sends a call and waits for what becomes of it, but not past its deadline.
    pub(super) async fn call(&self, frame: Frame, berth: Berth, deadline: Deadline) -> Outcome {
        let (call, waiting) = Call::new(frame, berth, deadline);
        if let Err(cause) = self.shared.queue.push(call, Instant::now()) {
            self.shared.counts.not_run();
            return Outcome::Failed(LinkError::NotRun(cause));
        }
        let answered = timeout_at(deadline.at, poll_fn(|cx| waiting.poll(cx))).await;
        let outcome = answered.unwrap_or_else(|_| match waiting.give_up() {
            GivenUp::Done(outcome) => outcome,
            GivenUp::Sent => Outcome::Failed(LinkError::Unknown(Cause::Deadline)),
            GivenUp::NotSent => {
                self.shared.failed(1, Evidence::Slow(deadline.allowed), Cause::Deadline, Instant::now());
                Outcome::Failed(LinkError::NotRun(Cause::Deadline))
            }
        });
        match &outcome {
            Outcome::Answered(_) => self.shared.counts.answered(),
            Outcome::Redirected(..) => self.shared.counts.redirected(),
            Outcome::Failed(LinkError::NotRun(_)) => self.shared.counts.not_run(),
            Outcome::Failed(LinkError::Unknown(_)) => self.shared.counts.unknown(),
        }
        outcome
    }

    pub(super) fn is_connected(&self) -> bool {
        self.shared.health().connected
    }

    /// The host of the server, if it has one.
    pub(super) fn host(&self) -> Option<Arc<str>> {
        match self.shared.health().address.as_ref()? {
            Address::Tcp { host, .. } => Some(host.clone()),
            Address::Unix(_) => None,
        }
    }

    pub(super) fn stats(&self) -> ServerStats {
        let (health, now) = (self.shared.health(), Instant::now());
        ServerStats {
            address: health.address.clone(),
            breaker: health.breaker.state(),
            refuses_up_to: health.breaker.refusal().map(|refusal| refusal.up_to(now)),
            lasting: now.duration_since(health.breaker.turned()),
            opened: health.breaker.opened(),
            connected: health.connected,
            last_trouble: health.trouble.as_ref().map(Cause::to_string),
            waiting: self.shared.queue.len(),
            counts: self.shared.counts.snapshot(),
        }
    }
}

fn draw() -> Draw {
    Draw(fastrand::u16(..))
}

impl Shared {
    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) const fn in_cluster(&self) -> bool {
        self.trouble.is_some()
    }

    /// The breaker's state, and when it wants to probe.
    pub(super) fn breaker_state(&self) -> (BreakerState, Option<Instant>) {
        let health = self.health();
        (health.breaker.state(), health.breaker.probe_at())
    }

    /// A batch was answered after this long.
    pub(super) fn succeeded(&self, round_trip: Duration, now: Instant) {
        let mut health = self.health();
        let transition = health.breaker.succeeded(round_trip, now);
        self.follow(&health, transition, now);
    }

    /// Since when the server owes its oldest answer.
    pub(super) fn owes(&self, since: Option<Instant>, now: Instant) {
        let mut health = self.health();
        health.breaker.owes(since);
        self.adjust(&health, now);
    }

    /// Calls were not answered in time, or the server says that it cannot serve anybody.
    pub(super) fn failed(&self, calls: usize, evidence: Evidence, why: Cause, now: Instant) {
        let mut health = self.health();
        let calls = u32::try_from(calls).unwrap_or(u32::MAX);
        let transition = health.breaker.failed(calls, evidence, now, draw());
        health.trouble = Some(why);
        self.follow(&health, transition, now);
    }

    pub(super) fn probing(&self, now: Instant) {
        let mut health = self.health();
        let transition = health.breaker.probe(now);
        self.follow(&health, transition, now);
    }

    /// The server did not answer a probe in time, or with an error. One that is late may still be answered.
    pub(super) fn probe_failed(&self, why: Cause, now: Instant) {
        let mut health = self.health();
        let transition = match &why {
            Cause::Refused(_) => health.breaker.probe_refused(now, draw()),
            _ => health.breaker.probe_failed(now, draw()),
        };
        health.trouble = Some(why);
        self.follow(&health, transition, now);
        drop(health);
        self.look_around();
    }

    /// The server answers a probe after this long.
    pub(super) fn answers_probe(&self, round_trip: Duration, now: Instant) {
        let refused = self.queue.last_refused();
        let mut health = self.health();
        let transition = health.breaker.probe_answered(round_trip, refused, now, draw());
        self.follow(&health, transition, now);
    }

    /// It may be time to ask another server.
    pub(super) fn look_around(&self) {
        if let Some(trouble) = &self.trouble {
            trouble.notify_one();
        }
    }

    /// Lets calls that certainly did not run wait for another turn, if this was their first.
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

    fn connected(&self, address: Address, now: Instant) {
        self.counts.connection();
        let mut health = self.health();
        health.connected = true;
        health.address = Some(address);
        let transition = health.breaker.recovered(now);
        self.follow(&health, transition, now);
    }

    fn disconnected(&self, end: End, now: Instant) {
        let mut health = self.health();
        health.connected = false;
        health.breaker.disconnected(now);
        let transition = match end {
            // Who answers like that is not to be trusted with the next call either.
            End::Malformed | End::TooLarge => {
                health.trouble = Some(end.cause());
                health.breaker.trip(now, draw())
            }
            End::Lost | End::Stalled => {
                health.trouble = Some(end.cause());
                let transition = health.breaker.probe_failed(now, draw());
                transition.or_else(|| health.breaker.failed(1, Evidence::Down, now, draw()))
            }
            End::Elsewhere => None,
        };
        self.follow(&health, transition, now);
        drop(health);
        self.look_around();
    }

    fn unreachable(&self, why: Unreachable, now: Instant) {
        let mut health = self.health();
        let transition = match why {
            Unreachable::Silent(_) => health.breaker.connecting_timed_out(now, draw()),
            _ => health.breaker.trip(now, draw()),
        };
        health.trouble = Some(Cause::Unreachable(Arc::new(why)));
        self.follow(&health, transition, now);
        drop(health);
        self.look_around();
    }

    /// Does what a change of the breaker's state asks for, while nobody else can change it, and says so once.
    fn follow(&self, health: &Health, transition: Option<Transition>, now: Instant) {
        let Some(Transition { from, to, after }) = transition else {
            self.adjust(health, now);
            return;
        };
        let address = health.address.as_ref().map_or_else(|| "the primary".to_owned(), Address::to_string);
        let trouble = health.trouble.clone().unwrap_or(Cause::ConnectionLost);
        let Some(refusal) = health.breaker.refusal() else {
            self.queue.admit();
            tracing::info!(%address, ?after, "breaker closes: calls are sent again");
            return;
        };
        match (from, to) {
            (BreakerState::Closed, _) => {
                match refusal {
                    Refusal::Everybody => {
                        tracing::warn!(%address, %trouble, ?after, "breaker opens: calls fail at once");
                    }
                    Refusal::Hasty { .. } => {
                        let deadline = refusal.up_to(now);
                        tracing::warn!(
                            %address, %trouble, ?after, ?deadline,
                            "breaker opens: the server is slow, calls with no longer a deadline fail at once"
                        );
                    }
                }
                self.queue.refuse(refusal, Cause::BreakerOpen(Arc::new(trouble)), now);
                // Whoever sends must know that it is time to probe.
                self.queue.nudge();
            }
            (BreakerState::HalfOpen, _) => {
                tracing::debug!(%address, %trouble, "breaker open: the probe failed");
                self.queue.refuse(refusal, Cause::BreakerOpen(Arc::new(trouble)), now);
            }
            (BreakerState::Open, _) => {
                tracing::debug!(%address, "breaker half open: probing");
                self.queue.adjust(refusal);
            }
        }
    }

    /// While the breaker is not closed, whom it refuses changes with every answer.
    fn adjust(&self, health: &Health, now: Instant) {
        match health.breaker.refusal() {
            None => {}
            Some(refusal @ Refusal::Hasty { .. }) => self.queue.adjust(refusal),
            Some(refusal @ Refusal::Everybody) => {
                let trouble = health.trouble.clone().unwrap_or(Cause::ConnectionLost);
                self.queue.refuse(refusal, Cause::BreakerOpen(Arc::new(trouble)), now);
            }
        }
    }
}

/// The task that owns the connection.
struct Sender {
    shared: Arc<Shared>,
    plan: Plan,
    way: Way,
}

impl Sender {
    async fn run(mut self) {
        // How many connections in a row have ended before anything was heard on them.
        let mut in_vain = 0;
        loop {
            self.wait_for_probe().await;
            let (session, address) = match self.connect().await {
                Ok(connected) => connected,
                Err(why) => {
                    self.shared.unreachable(why, Instant::now());
                    continue;
                }
            };
            self.shared.connected(address.clone(), Instant::now());
            let (end, was_of_use) = self.serve(session, &address).await;
            self.shared.disconnected(end, Instant::now());
            in_vain = if was_of_use { 0 } else { in_vain + 1 };
            if in_vain > 0 {
                let BreakerSettings { first_wait, longest_wait, .. } = self.plan.settings.breaker;
                sleep(spread(first_wait, longest_wait, in_vain - 1, draw())).await;
            }
        }
    }

    /// While the breaker is open, connecting is the probe, and has to wait until one is due.
    async fn wait_for_probe(&self) {
        while let (BreakerState::Open, Some(at)) = self.shared.breaker_state() {
            if at <= Instant::now() {
                break;
            }
            sleep_until(at).await;
        }
        self.shared.probing(Instant::now());
    }

    async fn connect(&mut self) -> Result<(Session, Address), Unreachable> {
        let (address, must_be_primary) = match &mut self.way {
            Way::Fixed(address) => (address.clone(), false),
            Way::Sentinel(sentinels) => (sentinels.find().await?, true),
        };
        let Plan { settings, connector, composer, .. } = &self.plan;
        let connect = async {
            let mut session = connector.connect(&address).await?;
            session.greet_for_calls(&settings.login, &composer.script, must_be_primary).await?;
            Ok(session)
        };
        let session = connector.in_time(connect).await?;
        Ok((session, address))
    }

    /// Says why the connection ended, and whether it was of any use.
    async fn serve(&mut self, session: Session, address: &Address) -> (End, bool) {
        let mut wire = Wire::new(session, &self.shared, &self.plan.composer, &self.plan.settings);
        let end = match &mut self.way {
            Way::Fixed(_) => wire.serve().await,
            Way::Sentinel(sentinels) => {
                tokio::select! {
                    end = wire.serve() => end,
                    () = sentinels.named_another(address) => {
                        tracing::info!(from = %address, "sentinels name another primary");
                        wire.retire().await
                    }
                }
            }
        };
        (end, wire.end(end))
    }
}

impl Drop for Sender {
    /// Nobody sends what is left: the link was dropped, or its runtime was.
    fn drop(&mut self) {
        self.shared.queue.refuse(Refusal::Everybody, Cause::Closed, Instant::now());
    }
}
