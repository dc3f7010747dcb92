//! The demand of a region: every node reports its own to the region's Redis.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tidegate_core::regions::Demand;
use tidegate_core::{Micros, Timestamp};

use super::control::FleetControl;
use super::error::FleetError;
use super::session::FleetSession;
use crate::link::{Announcements, Bound, Commands};

/// The age at which a report no longer counts.
const STALE_AFTER: Micros = Micros::from_secs(5);
/// Time after which reports of stopped nodes are removed, unless other nodes report.
const KEPT_MILLIS: &str = "60000";
/// Maximum size of a report in bytes, followed by the maximum number of reports.
const LARGEST_REPORT: usize = 16 << 10;
const MOST_NODES: usize = 10_000;

/// Counts the requests of a node since its start, by the names of shares in records.
pub struct DemandSource {
    /// The [id](super::NodeIdentity::id) of the node, by which its reports are told from those of other nodes.
    pub node: String,
    /// Returns the sums.
    pub requests: Box<dyn FnMut() -> BTreeMap<String, u64> + Send>,
}

/// The demand of one node, in requests per second, by rule. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct NodeDemand(Arc<Mutex<BTreeMap<String, f64>>>);

impl NodeDemand {
    /// The averages at the last report. Empty before the first one.
    #[must_use]
    pub fn per_second(&self) -> BTreeMap<String, f64> {
        self.rules().clone()
    }

    fn rules(&self) -> MutexGuard<'_, BTreeMap<String, f64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The demand of one node, as reported.
#[derive(Debug, Serialize, Deserialize)]
struct ReportedDemand {
    /// The clock of Redis, in microseconds.
    at: u64,
    /// Requests per second, by rule.
    rules: BTreeMap<String, f64>,
}

/// The averages of a node.
pub(super) struct DemandMeter {
    source: DemandSource,
    /// The last sum and the average of each rule.
    averages: BTreeMap<String, (u64, Demand)>,
    shown: NodeDemand,
}

impl DemandMeter {
    pub(super) const fn new(source: DemandSource, shown: NodeDemand) -> DemandMeter {
        DemandMeter { source, averages: BTreeMap::new(), shown }
    }

    /// Reads the counters. `now` is the time of the node's clock.
    pub(super) fn record(&mut self, now: Timestamp) {
        for (rule, sum) in (self.source.requests)() {
            let (before, average) = self.averages.entry(rule).or_insert((sum, Demand::default()));
            average.record(sum.saturating_sub(*before), now);
            *before = sum;
        }
        *self.shown.rules() = self.per_second();
    }

    fn per_second(&self) -> BTreeMap<String, f64> {
        self.averages.iter().map(|(rule, (_, average))| (rule.clone(), average.per_second())).collect()
    }

    /// The id of the node, and its report at the time `at` of Redis.
    pub(super) fn report(&self, at: Timestamp) -> (&str, String) {
        let report = ReportedDemand { at: at.as_micros(), rules: self.per_second() };
        (&self.source.node, serde_json::to_string(&report).unwrap_or_default())
    }
}

impl FleetControl {
    /// The demand of all nodes of the region, in requests per second, by rule. Excludes nodes that have not reported for
    /// five seconds.
    ///
    /// # Errors
    /// Fails if Redis does not answer.
    pub async fn region_demand(&self) -> Result<BTreeMap<String, f64>, FleetError> {
        let mut session = self.connect(Announcements::Unwanted).await?;
        let (key, now) = (session.keys.demand(), session.time().await?);
        let bound = Bound::strings(MOST_NODES, MOST_NODES * LARGEST_REPORT / 16);
        let commands = Commands::new().with(&[b"HVALS", key.as_bytes()], bound);
        let reports = session.values(&commands, |reply| {
            Some(reply.items()?.iter().filter_map(|item| item.text().map(<[u8]>::to_vec)).collect::<Vec<_>>())
        });
        let reports = reports.await?.map_err(|(_, fault)| fault)?;
        let mut sums: BTreeMap<String, f64> = BTreeMap::new();
        for report in reports.into_iter().flatten() {
            // An invalid report does not come from a known node.
            let Ok(ReportedDemand { at, rules }) = serde_json::from_slice(&report) else { continue };
            if now.since(Timestamp::from_micros(at)) < STALE_AFTER {
                for (rule, per_second) in rules.into_iter().filter(|(_, per_second)| per_second.is_finite()) {
                    *sums.entry(rule).or_default() += per_second.max(0.0);
                }
            }
        }
        Ok(sums)
    }
}

impl FleetSession {
    pub(super) async fn report_demand(&mut self, node: &str, report: &str) -> Result<(), FleetError> {
        let key = self.keys.demand();
        let commands = Commands::new()
            .with(&[b"HSET", key.as_bytes(), node.as_bytes(), report.as_bytes()], Bound::string(0))
            .with(&[b"PEXPIRE", key.as_bytes(), KEPT_MILLIS.as_bytes()], Bound::string(0));
        self.values(&commands, |_| Some(())).await?.map_err(|(_, fault)| fault)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_the_average_of_each_rule() {
        let mut sum = 0;
        let requests = Box::new(move || {
            sum += 200;
            BTreeMap::from([(String::new(), sum)])
        });
        let shown = NodeDemand::default();
        let mut meter = DemandMeter::new(DemandSource { node: "n-1".to_owned(), requests }, shown.clone());
        meter.record(Timestamp::from_secs(1));
        meter.record(Timestamp::from_secs(3));
        let (node, report) = meter.report(Timestamp::from_micros(7));
        assert_eq!((node, report.as_str()), ("n-1", r#"{"at":7,"rules":{"":50.0}}"#));
        assert_eq!(shown.per_second(), BTreeMap::from([(String::new(), 50.0)]));
    }
}
