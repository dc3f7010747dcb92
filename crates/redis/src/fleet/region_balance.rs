//! Shares that follow the demand reported by nodes.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::regions::{BALANCE_EVERY, Move, RegionDemand, ShareLedger, Transfer, next_moves};
use tidegate_core::{Micros, Timestamp};
use tokio::time::Instant;

use super::error::FleetError;
use super::region_driver::{RegionsControl, check_all_current, readable};
use super::region_outcome::Resumption;

/// The time within which an earlier share has to settle, so that a further one may follow it. By the time the further one has arrived and
/// settled, the earlier one counts.
const SETTLES_WITHIN: Micros = Micros::from_secs(10);

/// One step of shares that follow demand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "transfers may be parked, and regions unreadable"]
pub struct BalanceStep {
    /// The outcome of the transfers.
    pub resumed: Resumption,
    /// The rules whose shares are off their targets, and wait until the last ones have settled.
    pub settling: Vec<String>,
}

/// The data of a region.
struct RegionReading {
    /// Requests a second, by rule.
    demand: BTreeMap<String, f64>,
    /// The clock of its store.
    now: Timestamp,
}

impl RegionsControl {
    /// The demand in each region, in requests per second, by rule, or the reason why it cannot be read.
    pub async fn demand(&self) -> BTreeMap<String, Result<BTreeMap<String, f64>, FleetError>> {
        let mut demand = BTreeMap::new();
        for (region, control) in &self.regions {
            demand.insert(region.clone(), control.region_demand().await);
        }
        demand
    }

    /// Moves shares one step by demand ([`next_moves`]), between the regions that answer, and continues what is outgoing between
    /// them.
    ///
    /// Shares of a rule are not moved while others of it are on their way between these regions, nor while earlier ones need more than
    /// ten seconds to settle. Nothing is moved within [`BALANCE_EVERY`] of the last time.
    pub async fn balance(&self) -> BalanceStep {
        let mut records = self.records().await;
        let clocks: BTreeMap<String, Timestamp> =
            records.iter().filter_map(|(region, record)| Some((region.clone(), record.as_ref().ok()?.now))).collect();
        let mut all_known = BTreeMap::new();
        for (region, now) in clocks {
            match self.regions[&region].region_demand().await {
                Ok(demand) => drop(all_known.insert(region, RegionReading { demand, now })),
                Err(error) => drop(records.insert(region, Err(error))),
            }
        }
        let (ledgers, mut problems) = readable(records);
        let (mut transfers, mut settling) = (Vec::new(), Vec::new());
        match check_all_current(&ledgers) {
            Ok(()) => {
                let outgoing = ledgers.values().flat_map(|ledger| &ledger.outgoing);
                transfers.extend(outgoing.filter(|transfer| ledgers.contains_key(&transfer.to)).cloned());
                for (rule, moves) in moves(&ledgers, &all_known, &transfers) {
                    if self.settles_for_long(rule, &ledgers, &all_known) {
                        settling.push(rule.clone());
                        continue;
                    }
                    for (from, to, amount) in moves {
                        match self.begin_known(from, to, rule, amount, &ledgers).await {
                            Ok(transfer) => transfers.push(transfer),
                            Err(problem) => problems.push(problem),
                        }
                    }
                }
            }
            Err(problem) => problems.push(problem),
        }
        let outcomes = self.continue_transfers(transfers, Instant::now()).await;
        problems.extend(self.tell_taken_back(&ledgers).await);
        BalanceStep { resumed: Resumption { outcomes, problems }, settling }
    }

    /// Whether a share of a rule has arrived in a region that settles for a while yet, for any limit of the rule.
    fn settles_for_long(
        &self,
        rule: &str,
        ledgers: &BTreeMap<String, ShareLedger>,
        all_known: &BTreeMap<String, RegionReading>,
    ) -> bool {
        let Some(limits) = self.limits.get(rule) else { return false };
        ledgers.iter().any(|(region, ledger)| {
            let (share, known) = (ledger.shares.get(rule), all_known.get(region));
            let Some((share, known)) = share.zip(known) else { return false };
            limits.iter().any(|(id, limit)| !share.is_settled(id, limit, known.now + SETTLES_WITHIN))
        })
    }
}

/// A share that should be moved, from a region to another.
type NamedMove<'l> = (&'l str, &'l str, tidegate_core::regions::Share);

/// The next moves of each rule of which no share is on its way.
fn moves<'l>(
    ledgers: &'l BTreeMap<String, ShareLedger>,
    all_known: &BTreeMap<String, RegionReading>,
    on_their_way: &[Transfer],
) -> Vec<(&'l String, Vec<NamedMove<'l>>)> {
    let is_early = |ledger: &ShareLedger| {
        let now = all_known.get(&ledger.region).map(|known| known.now);
        now.zip(ledger.moved_at).is_some_and(|(now, moved_at)| now.since(moved_at) < BALANCE_EVERY)
    };
    if ledgers.values().any(is_early) {
        return Vec::new();
    }
    let rules: BTreeSet<&String> = ledgers.values().flat_map(|ledger| ledger.shares.keys()).collect();
    let is_free = |rule: &&String| on_their_way.iter().all(|transfer| transfer.rule != **rule);
    let of_rule = |rule: &'l String| {
        let with_share = ledgers.iter().filter_map(|(name, ledger)| {
            let (share, known) = (ledger.shares.get(rule)?, all_known.get(name)?);
            let per_second = known.demand.get(rule).copied().unwrap_or(0.0);
            let floor = share.floor + ledger.reserved(rule);
            Some((name.as_str(), RegionDemand { share: share.share, floor, per_second }))
        });
        let (names, regions): (Vec<&str>, Vec<RegionDemand>) = with_share.unzip();
        let named = |Move { from, to, amount }: Move| (names[from], names[to], amount);
        let moves: Vec<NamedMove<'l>> = next_moves(&regions).into_iter().map(named).collect();
        (!moves.is_empty()).then_some((rule, moves))
    };
    rules.into_iter().filter(is_free).filter_map(of_rule).collect()
}

#[cfg(test)]
mod tests {
    use tidegate_core::Limit;
    use tidegate_core::regions::{RegionShare, Share};

    use super::*;
    use crate::fleet::FleetControl;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    fn world() -> (BTreeMap<String, ShareLedger>, BTreeMap<String, RegionReading>) {
        let region = |(name, percent, per_second): (&str, u32, f64)| {
            let share = RegionShare::new(Share::percent(percent), Share::percent(5));
            let shares = ["", "own"].map(|rule| (rule.to_owned(), share.clone())).into();
            let demand = ["", "own"].map(|rule| (rule.to_owned(), per_second)).into();
            let known = RegionReading { demand, now: NOW };
            ((name.to_owned(), ShareLedger::new(name, shares, NOW)), (name.to_owned(), known))
        };
        [("eu", 60, 0.0), ("us", 40, 100.0)].map(region).into_iter().unzip()
    }

    fn rules(found: &[(&String, Vec<NamedMove<'_>>)]) -> Vec<String> {
        found.iter().map(|(rule, _)| (*rule).clone()).collect()
    }

    #[test]
    fn a_rule_waits_for_its_own_transfers_alone() {
        let (mut ledgers, known) = world();
        assert_eq!(rules(&moves(&ledgers, &known, &[])), ["", "own"]);
        let parked = ledgers.get_mut("eu").unwrap().begin("us", "own", Share::POINT, Timestamp::EPOCH).unwrap();
        assert_eq!(rules(&moves(&ledgers, &known, &[parked])), [""]);
        ledgers.get_mut("eu").unwrap().begin("us", "own", Share::POINT, NOW).unwrap();
        assert_eq!(rules(&moves(&ledgers, &known, &[])), [""; 0], "it is too early");
    }

    #[test]
    fn shares_of_a_limit_that_settles_for_an_hour_do_not_run_ahead() {
        let (mut ledgers, known) = world();
        let transfer = ledgers.get_mut("eu").unwrap().begin("us", "", Share::percent(10), NOW).unwrap();
        let offered = ledgers.get_mut("eu").unwrap().offer(&transfer, NOW, NOW).unwrap();
        ledgers.get_mut("us").unwrap().apply(&offered, NOW).unwrap();
        let settles = |limit: &str, minutes: u64| {
            let limits = BTreeMap::from([(String::new(), vec![("api".to_owned(), limit.parse::<Limit>().unwrap())])]);
            let control = RegionsControl::new(BTreeMap::<String, FleetControl>::new()).with_limits(limits);
            let later = |known: &RegionReading| RegionReading {
                demand: BTreeMap::new(),
                now: known.now + Micros::from_secs(60 * minutes),
            };
            let known = known.iter().map(|(name, known)| (name.clone(), later(known))).collect();
            control.settles_for_long("", &ledgers, &known)
        };
        assert!(!settles("1000/s", 0) && settles("1000/h", 0) && settles("1000/h", 59) && !settles("1000/h", 60));
        assert!(settles("fixed 10/day", 60));
    }
}
