//! Followers: nodes that apply published rules and modes.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Clock;
use tidegate_rules::{Limiter, Mode};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::applied::AppliedState;
use super::control::FleetControl;
use super::error::FleetError;
use super::mode_change::ModeChange;
use super::report::{NodeIdentity, NodeReport};
use super::session::FleetSession;
use super::size::FleetSize;
use crate::link::Announcements;

/// Interval of reports while nothing changes. Reports expire after [`REMEMBERED`](super::report::REMEMBERED).
const REPORT_EVERY: Duration = Duration::from_secs(3);
/// Maximum delay after an announcement. Random, so that the nodes of a fleet do not all read at the same instant.
const SPREAD: Duration = Duration::from_millis(40);
/// First backoff after a failure. Doubles with every further failure, up to the polling interval.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// An event of a follower.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A published version is in force.
    Applied {
        /// The published version.
        version: u64,
        /// The version that published the rules; 0 if they are the node's own.
        rules: u64,
        /// The limiter's generation.
        generation: u64,
        /// Ids of switched rules that do not exist on this node.
        unknown: Vec<String>,
    },
    /// A published switch was applied or reverted.
    Switched(ModeChange),
    /// A published switch has ended and was reverted.
    Ended {
        /// The rule; `None` if it was a switch of all rules.
        rule: Option<String>,
        /// The mode of the switch.
        mode: Mode,
    },
    /// The published version is refused. The present rules stay in force. Modes are applied if they can be read.
    Refused {
        /// The version, if it can be read.
        version: Option<u64>,
        /// The error.
        reason: String,
    },
    /// Redis has lost what was published. Rules and modes stay in force.
    Forgotten {
        /// The version that stays in force.
        version: u64,
    },
    /// Redis is unavailable. Rules and modes stay in force.
    Lost {
        /// The cause.
        reason: String,
    },
    /// Redis is available, for the first time or again.
    Found,
    /// The number of nodes in the fleet has changed, or has become known.
    Counted {
        /// The number of nodes, including this one.
        nodes: u32,
    },
    /// The node cannot count the fleet, possibly because it lacks permission for `ZCARD`.
    Uncounted {
        /// The cause.
        reason: String,
    },
    /// The node can read what is published, but cannot write its report.
    Unreported {
        /// The cause.
        reason: String,
    },
}

/// There is no Tokio runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("following published rules needs a Tokio runtime")]
pub struct NoRuntime;

/// A running follower, which stops when this is dropped.
#[derive(Debug)]
pub struct Following {
    stop: Option<oneshot::Sender<()>>,
    polled: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

impl Following {
    /// Waits for the first poll, whether or not Redis was available. What is published, if anything, is then in force.
    pub async fn first_poll(&self) {
        // Fails only if the task has ended.
        let _ = self.polled.clone().wait_for(|polled| *polled).await;
    }

    /// Stops the follower and removes the node's report, so that the node is no longer listed.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        let _ = (&mut self.task).await;
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FleetControl {
    /// Keeps a limiter up to date with what is published, as the node `node`, and passes events to `tell`.
    ///
    /// A change is in force within two seconds. Redis announces it; because announcements can be lost, the node also polls
    /// every second. Rules are checked before they are used; if they have errors, the limiter keeps its rules. Rules and
    /// modes of a version are applied together, as one generation. They replace switches that were made at the limiter
    /// itself. At the next poll, they also replace rules that have replaced published ones: do not reload a file once
    /// [`Event::Applied`] has reported published rules. While Redis is unavailable, or if it has lost what was published,
    /// rules and modes stay in force.
    ///
    /// `tell` is called from a task and must not block.
    ///
    /// # Errors
    /// Fails outside a Tokio runtime.
    pub fn follow<S, C>(
        &self,
        limiter: Arc<Limiter<S, C>>,
        node: NodeIdentity,
        tell: impl FnMut(Event) + Send + 'static,
    ) -> Result<Following, NoRuntime>
    where
        S: Send + Sync + 'static,
        C: Clock + 'static,
    {
        let runtime = Handle::try_current().map_err(|_| NoRuntime)?;
        let (stop, stopped) = oneshot::channel();
        let (polling, polled) = watch::channel(false);
        let follower = Follower {
            control: self.clone(),
            limiter,
            node,
            tell,
            poll_again: false,
            session: None,
            applied: AppliedState::default(),
            trouble: ReportedTrouble::default(),
            report_due: Instant::now(),
            size: FleetSize::default(),
            polling,
        };
        Ok(Following { stop: Some(stop), polled, task: runtime.spawn(follower.run(stopped)) })
    }
}

struct Follower<S, C, T> {
    control: FleetControl,
    limiter: Arc<Limiter<S, C>>,
    node: NodeIdentity,
    tell: T,
    /// Whether to poll again immediately.
    poll_again: bool,
    session: Option<FleetSession>,
    applied: AppliedState,
    trouble: ReportedTrouble,
    report_due: Instant,
    size: FleetSize,
    polling: watch::Sender<bool>,
}

/// Conditions that still hold and were already reported.
#[derive(Default)]
struct ReportedTrouble {
    /// Whether Redis answered the last poll; `None` before the first.
    reached: Option<bool>,
    forgotten: bool,
    unreadable: Option<String>,
    unreported: bool,
    uncounted: bool,
}

impl<S, C, T> Follower<S, C, T>
where
    S: Send + Sync + 'static,
    C: Clock + 'static,
    T: FnMut(Event) + Send + 'static,
{
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        let mut failures = 0;
        loop {
            for (rule, mode) in self.applied.expire(&self.limiter) {
                (self.tell)(Event::Ended { rule, mode });
            }
            let round = tokio::select! {
                _ = &mut stopped => break,
                round = self.round() => round,
            };
            self.polling.send_replace(true);
            let wait = match round {
                Ok(()) => {
                    failures = 0;
                    self.control.poll_interval
                }
                Err(error) => {
                    failures += 1;
                    self.lost(&error);
                    backoff(failures, self.control.poll_interval)
                }
            };
            tokio::select! {
                _ = &mut stopped => break,
                () = sleep(wait) => {}
                () = self.reason_to_poll() => sleep(SPREAD.mul_f64(fastrand::f64())).await,
            }
        }
        if self.trouble.reached == Some(true) {
            // A report that is not removed expires soon.
            let _ = timeout(self.control.timeout, self.remove_report()).await;
        }
    }

    /// Waits until a change is announced or the connection ends.
    async fn reason_to_poll(&mut self) {
        if std::mem::take(&mut self.poll_again) {
            return;
        }
        match &mut self.session {
            Some(session) => session.announced().await,
            None => pending().await,
        }
    }

    async fn remove_report(&mut self) -> Result<(), FleetError> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => self.control.connect(Announcements::Unwanted).await?,
        };
        session.remove_report(&self.node).await
    }

    /// Polls once: reads what is published, applies it, and reports.
    async fn round(&mut self) -> Result<(), FleetError> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => {
                // A restarted server has lost the report too.
                self.report_due = Instant::now();
                self.control.connect(Announcements::Wanted).await?
            }
        };
        match self.poll(&mut session).await {
            Ok(()) => self.trouble.unreadable = None,
            Err(error @ FleetError::Unreadable { .. }) => {
                self.found();
                self.unreadable(&error);
            }
            Err(error) => return Err(error),
        }
        if self.report_due <= Instant::now() {
            match self.report(&mut session).await {
                Ok(()) => {
                    self.trouble.unreported = false;
                    self.count(&mut session).await?;
                }
                Err(error @ FleetError::Unreachable { .. }) => return Err(error),
                Err(error) => self.unreported(&error),
            }
            self.report_due = Instant::now() + REPORT_EVERY;
        }
        self.session = Some(session);
        Ok(())
    }

    async fn poll(&mut self, session: &mut FleetSession) -> Result<(), FleetError> {
        let head = session.head().await?;
        self.found();
        self.applied.notice(&self.limiter);
        let Some(head) = head else {
            self.forgotten();
            return Ok(());
        };
        self.trouble.forgotten = false;
        if self.applied.has(&head) {
            return Ok(());
        }
        // A version published in the meantime is found by the next poll.
        let Some(contents) = session.contents(self.applied.wants_rules(&head)).await? else { return Ok(()) };
        let (version, now) = (contents.head.edition.version, session.time().await?);
        if !self.applied.apply(contents, now, &self.limiter).await {
            self.poll_again = true;
            return Ok(());
        }
        self.report_due = Instant::now();
        self.applied(version);
        Ok(())
    }

    async fn report(&mut self, session: &mut FleetSession) -> Result<(), FleetError> {
        let now = session.time().await?;
        let report = NodeReport::new(&self.node, &self.applied, self.trouble.unreadable.as_deref(), now);
        let present = self.limiter.rules();
        session.report(&report.with_rules(present.number, &present.rules.unknown_switches())).await
    }

    /// Counts the nodes of the fleet, including this one.
    async fn count(&mut self, session: &mut FleetSession) -> Result<(), FleetError> {
        match session.count_nodes().await {
            Ok(counted) => {
                self.trouble.uncounted = false;
                if let Some(nodes) = self.size.record(counted, Instant::now()) {
                    (self.tell)(Event::Counted { nodes });
                }
            }
            Err(error @ FleetError::Unreachable { .. }) => return Err(error),
            Err(error) => {
                if !std::mem::replace(&mut self.trouble.uncounted, true) {
                    (self.tell)(Event::Uncounted { reason: error.to_string() });
                }
            }
        }
        Ok(())
    }

    fn applied(&mut self, version: u64) {
        let event = match self.applied.refused() {
            Some(reason) => Event::Refused { version: Some(version), reason: reason.to_owned() },
            None => {
                let present = self.limiter.rules();
                let unknown = present.rules.unknown_switches().into_iter().map(str::to_owned).collect();
                Event::Applied { version, rules: self.applied.rules_version(), generation: present.number, unknown }
            }
        };
        (self.tell)(event);
        for change in self.applied.take_changes() {
            (self.tell)(Event::Switched(change));
        }
    }

    fn found(&mut self) {
        if self.trouble.reached.replace(true) != Some(true) {
            (self.tell)(Event::Found);
        }
    }

    fn lost(&mut self, error: &FleetError) {
        self.session = None;
        if self.trouble.reached.replace(false) != Some(false) {
            (self.tell)(Event::Lost { reason: error.to_string() });
        }
    }

    fn forgotten(&mut self) {
        let Some(edition) = &self.applied.edition else { return };
        if !std::mem::replace(&mut self.trouble.forgotten, true) {
            (self.tell)(Event::Forgotten { version: edition.version });
        }
    }

    fn unreadable(&mut self, error: &FleetError) {
        let reason = error.to_string();
        if self.trouble.unreadable.as_ref() != Some(&reason) {
            self.report_due = Instant::now();
            self.trouble.unreadable = Some(reason.clone());
            (self.tell)(Event::Refused { version: None, reason });
        }
    }

    fn unreported(&mut self, error: &FleetError) {
        if !std::mem::replace(&mut self.trouble.unreported, true) {
            (self.tell)(Event::Unreported { reason: error.to_string() });
        }
    }
}

/// The backoff after `failures` consecutive failures: random, between half of its maximum and all of it.
fn backoff(failures: u32, longest: Duration) -> Duration {
    let doubled = FIRST_WAIT.saturating_mul(1 << failures.saturating_sub(1).min(10));
    doubled.min(longest).mul_f64(0.5 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_time_between_two_polls() {
        let longest = Duration::from_secs(1);
        for (failures, most) in [(1, 100), (2, 200), (3, 400), (4, 800), (5, 1_000), (40, 1_000), (u32::MAX, 1_000)] {
            let (wait, most) = (backoff(failures, longest), Duration::from_millis(most));
            assert!(most / 2 <= wait && wait <= most, "{failures}: {wait:?}");
        }
    }
}
