//! Following what is published.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Clock;
use tidegate_rules::{Limiter, Mode};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::Steering;
use super::applying::Standing;
use super::error::SteeringError;
use super::report::{Node, NodeReport};
use super::session::FleetSession;
use crate::link::Announcements;

/// How often a node reports when nothing has changed. A report is remembered for three times as long.
const REPORT_EVERY: Duration = Duration::from_secs(3);
/// The nodes of a fleet do not all ask at the same instant when a change is announced.
const SPREAD: Duration = Duration::from_millis(40);
/// The first wait after a failure. It doubles with every further one, up to the time between two looks.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// What happens to a node that follows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// What is published is in force.
    Applied {
        /// Its version.
        version: u64,
        /// The version that brought the rules; 0 if they are the node's own.
        rules: u64,
        /// The generation of the limiter.
        generation: u64,
        /// Rules that are switched and do not exist here.
        unknown: Vec<String>,
    },
    /// A published switch has come to its end, and is taken back here.
    Ended {
        /// The rule; `None` if all were switched.
        rule: Option<String>,
        /// The mode that it was switched to.
        mode: Mode,
    },
    /// What is published cannot be used. The rules stay as they were; modes are switched all the same, if they can be
    /// read.
    Refused {
        /// Its version, if that can be read.
        version: Option<u64>,
        /// What is wrong with it.
        reason: String,
    },
    /// Redis has nothing published any more. All stays as it was.
    Forgotten {
        /// The version that stays in force.
        version: u64,
    },
    /// Redis cannot be asked. All stays as it was.
    Lost {
        /// Why not.
        reason: String,
    },
    /// Redis can be asked, for the first time or again.
    Found,
    /// The node cannot say what it has, though it can see what is published.
    Unreported {
        /// Why not.
        reason: String,
    },
}

/// There is nothing to follow on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("to follow what is published takes a Tokio runtime")]
pub struct NoRuntime;

/// Follows until it is dropped.
#[derive(Debug)]
pub struct Following {
    stop: Option<oneshot::Sender<()>>,
    looked: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

impl Following {
    /// Waits until the node has looked for the first time, whether or not Redis could be asked: what is published is in
    /// force then, if there is anything.
    pub async fn looked(&self) {
        // It fails if the task has ended, and then there is nothing to wait for.
        let _ = self.looked.clone().wait_for(|looked| *looked).await;
    }

    /// Stops, and takes the node's report back, so that nobody waits for it.
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

impl Steering {
    /// Lets a limiter follow what is published, as the node `node`, and tells what happens.
    ///
    /// A change is in force within two seconds of being published: Redis announces it, and because an announcement can
    /// be lost, the node looks every second as well. Rules are checked before they are used; if they have errors, the
    /// limiter keeps those that it has. Rules and modes of a publication come into force at once, as one generation.
    /// What was switched at the limiter itself is replaced by what is published, and so are rules that somebody puts in the
    /// place of published ones, at the next look: whoever reads a file again should not, once an [`Event::Applied`] has
    /// told that the rules are published ones. While Redis is away, or if it has lost
    /// what was published, everything stays as it is.
    ///
    /// `tell` is called from a task, and should not take long.
    ///
    /// # Errors
    /// Outside a Tokio runtime.
    pub fn follow<S, C>(
        &self,
        limiter: Arc<Limiter<S, C>>,
        node: Node,
        tell: impl FnMut(Event) + Send + 'static,
    ) -> Result<Following, NoRuntime>
    where
        S: Send + Sync + 'static,
        C: Clock + 'static,
    {
        let runtime = Handle::try_current().map_err(|_| NoRuntime)?;
        let (stop, stopped) = oneshot::channel();
        let (looking, looked) = watch::channel(false);
        let follower = Follower {
            steering: self.clone(),
            limiter,
            node,
            tell,
            look_again: false,
            session: None,
            standing: Standing::default(),
            trouble: Trouble::default(),
            report_due: Instant::now(),
            looking,
        };
        Ok(Following { stop: Some(stop), looked, task: runtime.spawn(follower.run(stopped)) })
    }
}

struct Follower<S, C, T> {
    steering: Steering,
    limiter: Arc<Limiter<S, C>>,
    node: Node,
    tell: T,
    /// Whether to look again at once.
    look_again: bool,
    session: Option<FleetSession>,
    standing: Standing,
    trouble: Trouble,
    report_due: Instant,
    looking: watch::Sender<bool>,
}

/// What has been told and is still so: nothing is told twice.
#[derive(Default)]
struct Trouble {
    /// Whether Redis was asked with success the last time; `None` if it was never asked.
    reached: Option<bool>,
    forgotten: bool,
    unreadable: Option<String>,
    unreported: bool,
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
            for (rule, mode) in self.standing.expire(&self.limiter) {
                (self.tell)(Event::Ended { rule, mode });
            }
            let round = tokio::select! {
                _ = &mut stopped => break,
                round = self.round() => round,
            };
            self.looking.send_replace(true);
            let wait = match round {
                Ok(()) => {
                    failures = 0;
                    self.steering.look_every
                }
                Err(error) => {
                    failures += 1;
                    self.lost(&error);
                    after(failures, self.steering.look_every)
                }
            };
            tokio::select! {
                _ = &mut stopped => break,
                () = sleep(wait) => {}
                () = self.reason_to_look() => sleep(SPREAD.mul_f64(fastrand::f64())).await,
            }
        }
        if self.trouble.reached == Some(true) {
            // What does not arrive is forgotten soon enough.
            let _ = timeout(self.steering.timeout, self.take_leave()).await;
        }
    }

    /// Waits until a change is announced or the connection ends.
    async fn reason_to_look(&mut self) {
        if std::mem::take(&mut self.look_again) {
            return;
        }
        match &mut self.session {
            Some(session) => session.announced().await,
            None => pending().await,
        }
    }

    async fn take_leave(&mut self) -> Result<(), SteeringError> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => self.steering.connect(Announcements::Unwanted).await?,
        };
        session.take_leave(&self.node).await
    }

    /// Looks what is published, takes it in, and reports.
    async fn round(&mut self) -> Result<(), SteeringError> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => {
                // Whoever has forgotten what was published has forgotten our report too.
                self.report_due = Instant::now();
                self.steering.connect(Announcements::Wanted).await?
            }
        };
        match self.look(&mut session).await {
            Ok(()) => self.trouble.unreadable = None,
            Err(error @ SteeringError::Unreadable { .. }) => {
                self.found();
                self.unreadable(&error);
            }
            Err(error) => return Err(error),
        }
        if self.report_due <= Instant::now() {
            match self.report(&mut session).await {
                Ok(()) => self.trouble.unreported = false,
                Err(error @ SteeringError::Unreachable { .. }) => return Err(error),
                Err(error) => self.unreported(&error),
            }
            self.report_due = Instant::now() + REPORT_EVERY;
        }
        self.session = Some(session);
        Ok(())
    }

    async fn look(&mut self, session: &mut FleetSession) -> Result<(), SteeringError> {
        let head = session.head().await?;
        self.found();
        self.standing.notice(&self.limiter);
        let Some(head) = head else {
            self.forgotten();
            return Ok(());
        };
        self.trouble.forgotten = false;
        if self.standing.has(&head) {
            return Ok(());
        }
        // If something else is published while we read, the next look finds it.
        let Some(contents) = session.contents(self.standing.wants_rules(&head)).await? else { return Ok(()) };
        let (version, now) = (contents.head.edition.version, session.time().await?);
        if !self.standing.take_in(contents, now, &self.limiter).await {
            self.look_again = true;
            return Ok(());
        }
        self.report_due = Instant::now();
        self.taken_in(version);
        Ok(())
    }

    async fn report(&mut self, session: &mut FleetSession) -> Result<(), SteeringError> {
        let now = session.time().await?;
        let report = NodeReport::new(&self.node, &self.standing, self.trouble.unreadable.as_deref(), now);
        let present = self.limiter.rules();
        session.report(&report.with_rules(present.number, &present.rules.unknown_switches())).await
    }

    fn taken_in(&mut self, version: u64) {
        let event = match self.standing.refused() {
            Some(reason) => Event::Refused { version: Some(version), reason: reason.to_owned() },
            None => {
                let present = self.limiter.rules();
                let unknown = present.rules.unknown_switches().into_iter().map(str::to_owned).collect();
                Event::Applied { version, rules: self.standing.rules_version(), generation: present.number, unknown }
            }
        };
        (self.tell)(event);
    }

    fn found(&mut self) {
        if self.trouble.reached.replace(true) != Some(true) {
            (self.tell)(Event::Found);
        }
    }

    fn lost(&mut self, error: &SteeringError) {
        self.session = None;
        if self.trouble.reached.replace(false) != Some(false) {
            (self.tell)(Event::Lost { reason: error.to_string() });
        }
    }

    fn forgotten(&mut self) {
        let Some(edition) = &self.standing.edition else { return };
        if !std::mem::replace(&mut self.trouble.forgotten, true) {
            (self.tell)(Event::Forgotten { version: edition.version });
        }
    }

    fn unreadable(&mut self, error: &SteeringError) {
        let reason = error.to_string();
        if self.trouble.unreadable.as_ref() != Some(&reason) {
            self.report_due = Instant::now();
            self.trouble.unreadable = Some(reason.clone());
            (self.tell)(Event::Refused { version: None, reason });
        }
    }

    fn unreported(&mut self, error: &SteeringError) {
        if !std::mem::replace(&mut self.trouble.unreported, true) {
            (self.tell)(Event::Unreported { reason: error.to_string() });
        }
    }
}

/// How long to wait after so many failures in a row: somewhere between half of it and all of it.
fn after(failures: u32, longest: Duration) -> Duration {
    let doubled = FIRST_WAIT.saturating_mul(1 << failures.saturating_sub(1).min(10));
    doubled.min(longest).mul_f64(0.5 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_time_between_two_looks() {
        let longest = Duration::from_secs(1);
        for (failures, most) in [(1, 100), (2, 200), (3, 400), (4, 800), (5, 1_000), (40, 1_000), (u32::MAX, 1_000)] {
            let (wait, most) = (after(failures, longest), Duration::from_millis(most));
            assert!(most / 2 <= wait && wait <= most, "{failures}: {wait:?}");
        }
    }
}
