//! Shares that follow demand.

use super::Share;
use crate::shares::divide;
use crate::time::{Micros, Timestamp};

/// The least distance from the target at which a share is moved.
const LEAST_GAP: Share = Share::percent(5);

/// The demand of a region for one rule: an average of requests a second, admitted or not, in which a second counts half as much
/// after [`Demand::HALF_LIFE`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    per_second: f64,
    at: Option<Timestamp>,
}

impl Demand {
    /// The time after which a reading counts half as much.
    pub const HALF_LIFE: Micros = Micros::from_secs(2);

    /// Takes in the number of requests since the last reading.
    pub fn record(&mut self, requests: u64, now: Timestamp) {
        let Some(before) = self.at.replace(now) else { return };
        let seconds = now.since(before).get() as f64 / 1e6;
        if seconds <= 0.0 {
            self.at = Some(before);
            return;
        }
        let kept = 0.5_f64.powf(seconds * 1e6 / Demand::HALF_LIFE.get() as f64);
        self.per_second = self.per_second * kept + requests as f64 / seconds * (1.0 - kept);
    }

    /// The average, in requests a second.
    #[must_use]
    pub const fn per_second(&self) -> f64 {
        self.per_second
    }
}

/// The share of a region beside its demand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegionDemand {
    /// The share.
    pub share: Share,
    /// The share below which it does not sink.
    pub floor: Share,
    /// The demand, in requests a second.
    pub per_second: f64,
}

/// A share that should be moved from one region to another, by their places in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The region that gives it.
    pub from: usize,
    /// The region that receives it.
    pub to: usize,
    /// The share, in whole points.
    pub amount: Share,
}

/// The next move towards shares in proportion to demand, above the floors: half of the gap between the two regions that are furthest
/// from their targets. `None` if no region is off by five points.
#[must_use]
pub fn next_move(regions: &[RegionDemand]) -> Option<Move> {
    let parts = |share: Share| u64::from(share.parts_per_million());
    let shares: u64 = regions.iter().map(|region| parts(region.share)).sum();
    let floors: u64 = regions.iter().map(|region| parts(region.floor)).sum();
    let free = shares.checked_sub(floors)?;
    let weights: Vec<u64> = regions.iter().map(|region| thousandths(region.per_second)).collect();
    if weights.iter().all(|&weight| weight == 0) {
        return None;
    }
    let targets: Vec<u64> =
        divide(free, &weights).into_iter().zip(regions).map(|(part, region)| part + parts(region.floor)).collect();
    let over = |place: usize| parts(regions[place].share).saturating_sub(targets[place]);
    let under = |place: usize| targets[place].saturating_sub(parts(regions[place].share));
    let from = (0..regions.len()).max_by_key(|&place| over(place))?;
    let to = (0..regions.len()).max_by_key(|&place| under(place))?;
    let gap = over(from).min(under(to));
    if gap < parts(LEAST_GAP) {
        return None;
    }
    let points = u32::try_from(gap / 2 / parts(Share::POINT)).ok()?;
    Some(Move { from, to, amount: Share::percent(points) })
}

/// A demand in thousandths of a request a second. Negative and undefined numbers become 0.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast of floats saturates")]
fn thousandths(per_second: f64) -> u64 {
    (per_second * 1e3) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::regions::{BALANCE_EVERY, CONFIRMED_AFTER, RegionShare, ShareLedger};

    fn regions(all: &[(u32, f64)]) -> Vec<RegionDemand> {
        let region = |&(percent, per_second): &(u32, f64)| RegionDemand {
            share: Share::percent(percent),
            floor: Share::percent(5),
            per_second,
        };
        all.iter().map(region).collect()
    }

    #[test]
    fn half_of_the_gap_is_moved() {
        let amount = |all: &[(u32, f64)]| next_move(&regions(all));
        // The target is 95% for the region with all of the demand.
        assert_eq!(amount(&[(60, 0.0), (40, 100.0)]), Some(Move { from: 0, to: 1, amount: Share::percent(27) }));
        assert_eq!(amount(&[(60, 60.0), (40, 40.0)]), None);
        assert_eq!(amount(&[(60, 0.0), (40, 0.0)]), None);
        assert_eq!(amount(&[(9, 0.0), (91, 50.0)]), None);
        assert_eq!(amount(&[(34, 10.0), (33, 90.0), (33, 0.0)]).map(|found| (found.from, found.to)), Some((2, 1)));
        assert_eq!((amount(&[]), amount(&[(50, f64::NAN), (50, -1.0)])), (None, None));
    }

    #[test]
    fn one_sided_load_reaches_nine_tenths_in_four_moves() {
        for start in [5, 20, 40, 50] {
            let mut all = regions(&[(100 - start, 0.0), (start, 1_000.0)]);
            let mut moves = 0;
            while let Some(found) = next_move(&all) {
                all[found.from].share = all[found.from].share - found.amount;
                all[found.to].share = all[found.to].share + found.amount;
                moves += 1;
                if all[1].share >= Share::percent(90) {
                    break;
                }
            }
            assert!(all[1].share >= Share::percent(90) && moves <= 5, "{start}: {:?} after {moves}", all[1].share);
        }
    }

    /// Moves in virtual time: a driver that looks every second, and the share that counts at the nodes of the busy region.
    #[test]
    fn one_sided_load_has_nine_tenths_of_the_limit_within_thirty_seconds() {
        let limit: crate::Limit = "1000/s".parse().unwrap();
        for start in [20, 40, 50] {
            let ledger = |region: &str, percent| {
                let share = RegionShare::new(Share::percent(percent), Share::percent(5));
                ShareLedger::new(region, BTreeMap::from([(String::new(), share)]), Timestamp::from_secs(1_000))
            };
            let (mut eu, mut us) = (ledger("eu", 100 - start), ledger("us", start));
            let (mut demand, mut on_its_way) = (Demand::default(), None);
            let mut reached = None;
            for second in 0_u64..60 {
                let now = Timestamp::from_secs(1_000 + second);
                demand.record(1_000 * u64::from(second > 0), now);
                if us.shares[""].settled("", &limit, now) >= Share::percent(90) {
                    reached = Some(second);
                    break;
                }
                if let Some((transfer, since)) = on_its_way.take_if(|(_, since)| now.since(*since) >= CONFIRMED_AFTER) {
                    let _: Timestamp = since;
                    us.apply(&transfer, now).unwrap();
                    eu.finish(&transfer);
                }
                let is_early = eu.moved_at.is_some_and(|at| now.since(at) < BALANCE_EVERY);
                if on_its_way.is_none() && !is_early {
                    let of = |ledger: &ShareLedger, per_second| {
                        let RegionShare { share, floor, .. } = ledger.shares[""];
                        RegionDemand { share, floor, per_second }
                    };
                    if let Some(found) = next_move(&[of(&eu, 0.0), of(&us, demand.per_second())]) {
                        on_its_way = eu.begin("us", "", found.amount, now).ok().map(|transfer| (transfer, now));
                    }
                }
            }
            assert!(reached.is_some_and(|second| second <= 30), "from {start}%: {reached:?}");
        }
    }

    #[test]
    fn demand_is_an_average_that_forgets() {
        let mut demand = Demand::default();
        let at = |seconds: u64| Timestamp::from_secs(1_000 + seconds);
        demand.record(1_000_000, at(0));
        assert!(demand.per_second() == 0.0, "the first reading has no length");
        demand.record(200, at(2));
        assert!((demand.per_second() - 50.0).abs() < 1e-9, "{demand:?}");
        demand.record(0, at(2));
        demand.record(0, at(4));
        assert!((demand.per_second() - 25.0).abs() < 1e-9, "{demand:?}");
    }
}
