//! Followers of a region's record: nodes that apply its shares.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::regions::{AppliedShares, LedgerReading, ShareLease};
use tidegate_core::{Clock, Micros, Timestamp};
use tidegate_rules::{Limiter, ShareEnd};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::control::FleetControl;
use super::error::FleetError;
use super::follower::NoRuntime;
use super::region_demand::{DemandMeter, DemandSource, NodeDemand};
use super::region_record::RegionRecord;
use super::session::FleetSession;
use crate::link::Announcements;
use crate::tier::SinceStart;

/// Time between two reports of demand.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// An event of a node in a region.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegionEvent {
    /// The shares of this version of the record are in force.
    Applied {
        /// The version.
        version: u64,
    },
    /// The node decides by the floor of its region, because it cannot read the record.
    Unconfirmed {
        /// The cause.
        reason: String,
    },
    /// The node admits nothing of what regions share, because there is no record: the whole may belong to other regions.
    Missing,
    /// The node decides by the floor of its region, because Redis has lost the record, or changes to it.
    Lost,
    /// The record belongs to another region, so the node's own region has none. A node that has read one before decides by the floor.
    Foreign {
        /// The region of the record.
        region: String,
    },
}

/// A running follower of a region's record, which stops when this is dropped.
#[derive(Debug)]
pub struct FollowingRegion {
    task: JoinHandle<()>,
    polled: watch::Receiver<bool>,
    demand: NodeDemand,
}

impl FollowingRegion {
    /// Waits for the first attempt to read the record, whether or not Redis was available. The share of the region is then in force.
    pub async fn first_poll(&self) {
        // Fails only if the task has ended.
        let _ = self.polled.clone().wait_for(|polled| *polled).await;
    }

    /// The demand that the node reports.
    #[must_use]
    pub const fn demand(&self) -> &NodeDemand {
        &self.demand
    }
}

impl Drop for FollowingRegion {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FleetControl {
    /// Keeps the shares of a limiter that is [in a region](Limiter::in_region) up to date with the record in this Redis,
    /// and passes events to `tell`. Until the record has been read, the limiter applies the floor.
    ///
    /// With a source of demand, the node reports its demand every second, so that shares can follow it.
    ///
    /// `tell` is called from a task and must not block.
    ///
    /// # Errors
    /// Fails outside a Tokio runtime.
    pub fn follow_region<S, C>(
        &self,
        limiter: Arc<Limiter<S, C>>,
        demand: Option<DemandSource>,
        tell: impl FnMut(RegionEvent) + Send + 'static,
    ) -> Result<FollowingRegion, NoRuntime>
    where
        S: Send + Sync + 'static,
        C: Clock + 'static,
    {
        let runtime = Handle::try_current().map_err(|_| NoRuntime)?;
        let shown = NodeDemand::default();
        let meter = demand.map(|source| DemandMeter::new(source, shown.clone()));
        let reader = RecordReader { control: self.clone(), session: None, meter, report_due: Instant::now() };
        let (polling, polled) = watch::channel(false);
        let follower = RegionFollower {
            limiter,
            tell,
            polling,
            lease: ShareLease::default(),
            told: None,
            clock: Arc::new(SinceStart::new()),
        };
        follower.apply();
        Ok(FollowingRegion { task: runtime.spawn(follower.run(reader)), polled, demand: shown })
    }
}

struct RegionFollower<S, C, T> {
    limiter: Arc<Limiter<S, C>>,
    tell: T,
    polling: watch::Sender<bool>,
    lease: ShareLease,
    /// The last reported event, which is not reported again.
    told: Option<RegionEvent>,
    /// The node's clock, which counts the time for which the machine was suspended. Decisions read it too.
    clock: Arc<SinceStart>,
}

struct RecordReader {
    control: FleetControl,
    session: Option<FleetSession>,
    /// The demand of this node, and when it is next reported.
    meter: Option<DemandMeter>,
    report_due: Instant,
}

impl RecordReader {
    /// Reads the record. `now` is the time of the node's clock.
    async fn read(&mut self, now: Timestamp) -> Result<RegionRecord, FleetError> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => self.control.connect(Announcements::Wanted).await?,
        };
        let record = session.region_record().await?;
        if let Some(meter) = self.meter.as_mut().filter(|_| self.report_due <= Instant::now()) {
            self.report_due = Instant::now() + REPORT_EVERY;
            meter.record(now);
            let (node, report) = meter.report(record.now);
            match session.report_demand(node, &report).await {
                // A user without permission to report can still follow.
                Ok(()) | Err(FleetError::Refused { .. }) => {}
                // The record was read, and is valid.
                Err(_) => return Ok(record),
            }
        }
        self.session = Some(session);
        Ok(record)
    }

    /// Waits until the record may have changed.
    async fn wait(&mut self) {
        let poll_interval = self.control.poll_interval;
        match &mut self.session {
            Some(session) => tokio::select! {
                () = sleep(poll_interval) => {}
                () = session.announced() => sleep(Duration::from_millis(fastrand::u64(..20))).await,
            },
            None => sleep(poll_interval.mul_f64(0.5 + fastrand::f64() / 2.0)).await,
        }
    }
}

impl<S, C, T> RegionFollower<S, C, T>
where
    S: Send + Sync + 'static,
    C: Clock + 'static,
    T: FnMut(RegionEvent) + Send + 'static,
{
    async fn run(mut self, mut reader: RecordReader) {
        loop {
            let began = self.now();
            let read = self.until_lease_ends(reader.read(began)).await;
            self.take_in(read, began);
            self.polling.send_replace(true);
            self.until_lease_ends(reader.wait()).await;
        }
    }

    /// Waits for `work`. If the lease ends before that, the floor applies from then on.
    async fn until_lease_ends<W>(&mut self, work: impl Future<Output = W>) -> W {
        let mut work = std::pin::pin!(work);
        // Decisions notice the end by themselves. This is for what is shown, and for nodes without requests.
        let left = self.lease.until().map_or(Micros::ZERO, |until| until.since(self.now()));
        tokio::select! {
            done = &mut work => return done,
            () = sleep(left.into()), if self.is_confirmed() => self.apply(),
        }
        work.await
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Whether the limiter applies a share that it must stop using at the end of the lease.
    fn is_confirmed(&self) -> bool {
        let region = self.limiter.region();
        region.is_some_and(|view| view.applied.as_ref().is_some_and(AppliedShares::is_confirmed))
    }

    fn take_in(&mut self, read: Result<RegionRecord, FleetError>, began: Timestamp) {
        let event = match read {
            Ok(RegionRecord { ledger, now }) => {
                let own = self.limiter.region().and_then(|view| view.region.clone());
                match ledger.as_ref().filter(|ledger| own.as_deref() != Some(ledger.region.as_str())) {
                    Some(foreign) => {
                        self.lease.read(None, now, began);
                        RegionEvent::Foreign { region: foreign.region.clone() }
                    }
                    None => match self.lease.read(ledger.as_ref(), now, began) {
                        LedgerReading::Confirmed => {
                            RegionEvent::Applied { version: self.lease.version().unwrap_or_default() }
                        }
                        LedgerReading::Missing => RegionEvent::Missing,
                        LedgerReading::Lost => RegionEvent::Lost,
                    },
                }
            }
            Err(error) => RegionEvent::Unconfirmed { reason: error.to_string() },
        };
        self.apply();
        // A failure is not reported as long as the lease lasts.
        let is_worth_telling = !matches!(event, RegionEvent::Unconfirmed { .. }) || !self.is_confirmed();
        let is_same_kind = self.told.as_ref().is_some_and(|told| match (told, &event) {
            (RegionEvent::Unconfirmed { .. }, RegionEvent::Unconfirmed { .. }) => true,
            (told, event) => told == event,
        });
        if is_worth_telling && !is_same_kind {
            self.told = Some(event.clone());
            (self.tell)(event);
        }
    }

    /// Applies the known shares, or the floors if the lease has ended.
    fn apply(&self) {
        let applied = self.lease.applied(self.now());
        let clock: Arc<dyn Clock> = Arc::<SinceStart>::clone(&self.clock);
        let end = self.lease.until().filter(|_| applied.is_confirmed()).map(|at| ShareEnd { clock, at });
        self.limiter.apply_shares(applied, end);
    }
}
