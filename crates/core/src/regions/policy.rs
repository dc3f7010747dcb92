//! Shares that follow demand.

use super::Share;
use crate::shares::divide;
use crate::time::{Micros, Timestamp};

/// The least distance of a region from its target at which shares are moved.
const LEAST_GAP: Share = Share::percent(5);
/// The largest share that is moved in one step, if all regions are at their targets then. A larger one is moved by halves.
const LAST_STEP: Share = Share::percent(15);
/// A gap that is too small to be worth a transfer: a tenth of a point.
const SMALLEST_GAP: u64 = Share::POINT.parts_per_million() as u64 / 10;

/// The demand of a region for one rule: an average of requests per second, admitted or not. The weight of a second halves
/// after [`Demand::HALF_LIFE`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    per_second: f64,
    at: Option<Timestamp>,
}

impl Demand {
    /// Time after which the weight of a reading has halved.
    pub const HALF_LIFE: Micros = Micros::from_secs(2);

    /// Adds the number of requests since the last reading.
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

    /// The average, in requests per second.
    #[must_use]
    pub const fn per_second(&self) -> f64 {
        self.per_second
    }
}

/// The share of a region, and its demand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegionDemand {
    /// The share.
    pub share: Share,
    /// The share below which the region must not sink.
    pub floor: Share,
    /// The demand, in requests per second.
    pub per_second: f64,
}

/// A share that should be moved from one region to another. Regions are indexes into the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The giving region.
    pub from: usize,
    /// The receiving region.
    pub to: usize,
    /// The share.
    pub amount: Share,
}

/// The next step towards shares in proportion to demand, above the floors: half of what all regions are off their targets, or all
/// of it if that is 15 points or less together. Empty if no region is off by five points.
#[must_use]
pub fn next_moves(regions: &[RegionDemand]) -> Vec<Move> {
    let Some(targets) = targets(regions) else { return Vec::new() };
    let pairs = || regions.iter().map(|region| parts(region.share)).zip(&targets).enumerate();
    let mut givers: Vec<Gap> = pairs().filter_map(|(place, (share, target))| Gap::of(place, share, *target)).collect();
    let mut takers: Vec<Gap> = pairs().filter_map(|(place, (share, target))| Gap::of(place, *target, share)).collect();
    if givers.iter().chain(&takers).all(|gap| gap.parts < parts(LEAST_GAP)) {
        return Vec::new();
    }
    if takers.iter().map(|gap| gap.parts).sum::<u64>() > parts(LAST_STEP) {
        givers.iter_mut().chain(&mut takers).for_each(|gap| gap.parts /= 2);
    }
    // Large ones first, so that there are few transfers.
    givers.sort_by_key(|gap| std::cmp::Reverse(gap.parts));
    takers.sort_by_key(|gap| gap.parts);
    let mut moves = Vec::new();
    for mut giver in givers {
        while let Some(taker) = takers.last_mut().filter(|_| giver.parts > 0) {
            let amount = giver.parts.min(taker.parts);
            let share = u32::try_from(amount).ok().and_then(Share::of_million).unwrap_or_default();
            moves.push(Move { from: giver.place, to: taker.place, amount: share });
            (giver.parts, taker.parts) = (giver.parts - amount, taker.parts - amount);
            if taker.parts == 0 {
                takers.pop();
            }
        }
    }
    moves
}

/// The surplus or deficit of a region, in parts per million.
struct Gap {
    place: usize,
    parts: u64,
}

impl Gap {
    fn of(place: usize, more: u64, less: u64) -> Option<Gap> {
        let parts = more.checked_sub(less).filter(|parts| *parts >= SMALLEST_GAP)?;
        Some(Gap { place, parts })
    }
}

fn parts(share: Share) -> u64 {
    u64::from(share.parts_per_million())
}

/// The shares that the regions should have: their floors, and parts of the rest in proportion to demand. `None` if there is no demand.
fn targets(regions: &[RegionDemand]) -> Option<Vec<u64>> {
    let shares: u64 = regions.iter().map(|region| parts(region.share)).sum();
    let floors: u64 = regions.iter().map(|region| parts(region.floor)).sum();
    let free = shares.checked_sub(floors)?;
    let weights: Vec<u64> = regions.iter().map(|region| thousandths(region.per_second)).collect();
    if weights.iter().all(|&weight| weight == 0) {
        return None;
    }
    Some(divide(free, &weights).into_iter().zip(regions).map(|(part, region)| part + parts(region.floor)).collect())
}

/// A demand in thousandths of a request per second. Negative numbers and NaN become 0.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast of floats saturates")]
fn thousandths(per_second: f64) -> u64 {
    (per_second * 1e3) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::regions::{BALANCE_EVERY, CONFIRMED_AFTER, RegionShare, SETTLING_MARGIN, ShareLedger};

    fn regions(all: &[(u32, f64)]) -> Vec<RegionDemand> {
        let region = |&(percent, per_second): &(u32, f64)| RegionDemand {
            share: Share::percent(percent),
            floor: Share::percent(5),
            per_second,
        };
        all.iter().map(region).collect()
    }

    fn percent(moves: &[Move]) -> Vec<(usize, usize, String)> {
        moves.iter().map(|found| (found.from, found.to, found.amount.to_string())).collect()
    }

    #[test]
    fn half_of_the_gap_is_moved_and_all_of_a_small_one() {
        let moves = |all: &[(u32, f64)]| percent(&next_moves(&regions(all)));
        let one = |from, to, amount: &str| vec![(from, to, amount.to_owned())];
        // The target is 95% for the region with all of the demand.
        assert_eq!(moves(&[(60, 0.0), (40, 100.0)]), one(0, 1, "27.5%"));
        assert_eq!(moves(&[(20, 0.0), (80, 100.0)]), one(0, 1, "15%"));
        assert_eq!(moves(&[(10, 0.0), (90, 100.0)]), one(0, 1, "5%"));
        for settled in [&[(60, 60.0), (40, 40.0)], &[(60, 0.0), (40, 0.0)], &[(9, 0.0), (91, 50.0)]] {
            assert_eq!(moves(settled), [], "{settled:?}");
        }
        assert_eq!((moves(&[]), moves(&[(50, f64::NAN), (50, -1.0)])), (vec![], vec![]));
    }

    #[test]
    fn all_regions_that_have_too_much_give() {
        let moves = |all: &[(u32, f64)]| percent(&next_moves(&regions(all)));
        let half = |from, amount: &str| (from, 0, amount.to_owned());
        assert_eq!(moves(&[(34, 9.0), (33, 0.0), (33, 0.0)]), [half(1, "14%"), half(2, "14%")]);
        // No single one of them is off by five points, but the busy one is.
        assert_eq!(moves(&[(82, 9.0), (9, 0.0), (9, 0.0)]), [half(1, "4%"), half(2, "4%")]);
        // One region gives to two, and two give to one.
        let spread = moves(&[(60, 0.0), (20, 5.0), (20, 5.0)]);
        assert_eq!(spread, [(0, 2, "13.75%".to_owned()), (0, 1, "13.75%".to_owned())]);
    }

    /// A driver and nodes in virtual time. Returns the instant at which all nodes of the last region decide by a share of at least `goal`, in
    /// seconds after its load has begun.
    fn reached(limit: &str, shares: &[u32], floor: u32, goal: u32, has_rights: bool) -> f64 {
        /// Of the command, between two looks.
        const PAUSE: Micros = Micros::from_millis(500);
        let (limit, start): (crate::Limit, _) = (limit.parse().unwrap(), Timestamp::from_secs(1_000));
        let ledger = |(number, percent): (usize, &u32)| {
            let share = RegionShare::new(Share::percent(*percent), Share::percent(floor));
            ShareLedger::new(&number.to_string(), BTreeMap::from([(String::new(), share)]), start)
        };
        let mut ledgers: Vec<ShareLedger> = shares.iter().enumerate().map(ledger).collect();
        let busy = ledgers.len() - 1;
        // A node has reported its first second.
        let mut now = start + Micros::from_secs(1) + PAUSE;
        for _ in 0..1_000 {
            // A node reads the record once a second.
            let seen = now - Micros::from_secs(1);
            if ledgers[busy].shares[""].settled("", &limit, seen) >= Share::percent(goal) {
                break;
            }
            let demand = |(place, ledger): (usize, &ShareLedger)| {
                let RegionShare { share, floor, .. } = ledger.shares[""];
                RegionDemand { share, floor, per_second: if place == busy { 1_000.0 } else { 0.0 } }
            };
            let is_early = ledgers.iter().any(|ledger| ledger.moved_at.is_some_and(|at| now.since(at) < BALANCE_EVERY));
            let regions: Vec<RegionDemand> = ledgers.iter().enumerate().map(demand).collect();
            let moves = if is_early { Vec::new() } else { next_moves(&regions) };
            let begin = |found: &Move| ledgers[found.from].begin(&found.to.to_string(), "", found.amount, now).unwrap();
            let begun: Vec<_> = moves.iter().map(begin).collect();
            for transfer in &begun {
                let (from, arrives) = (transfer.from.parse::<usize>().unwrap(), now + CONFIRMED_AFTER);
                let offered = ledgers[from].offer(transfer, arrives, arrives).unwrap();
                ledgers[busy].apply(&offered, arrives).unwrap();
                ledgers.iter_mut().for_each(|ledger| {
                    ledger.finish(transfer);
                });
            }
            if !begun.is_empty() {
                now = now + if has_rights { SETTLING_MARGIN } else { CONFIRMED_AFTER };
            }
            now = now + PAUSE;
        }
        now.since(start).get() as f64 / 1e6
    }

    #[test]
    fn one_sided_load_has_nine_tenths_of_the_limit_within_thirty_seconds() {
        for (shares, floor) in [
            // At the floor, and in even parts.
            (vec![95, 5], 5),
            (vec![60, 40], 5),
            (vec![50, 50], 5),
            (vec![48, 47, 5], 5),
            (vec![34, 33, 33], 5),
            (vec![33, 33, 33], 2),
            (vec![32, 32, 33, 3], 3),
            (vec![25, 25, 25, 25], 3),
            (vec![40, 30, 20, 10], 3),
        ] {
            for has_rights in [false, true] {
                let seconds = reached("1000/s", &shares, floor, 90, has_rights);
                println!("{shares:?} with a floor of {floor}%: {seconds} s");
                assert!(seconds <= 30.0, "{shares:?} with a floor of {floor}%: {seconds} s");
            }
        }
    }

    /// The table of the guide, `docs/regions.md`.
    #[test]
    fn the_figures_of_the_guide_are_those_of_the_model() {
        let figures: [(&[u32], u32, u32, f64); 6] = [
            (&[60, 40], 5, 95, 23.0),
            (&[95, 5], 5, 95, 28.5),
            (&[34, 33, 33], 5, 90, 23.0),
            (&[48, 47, 5], 5, 90, 28.5),
            (&[25, 25, 25, 25], 3, 91, 28.5),
            // Floors of 5% leave 85%.
            (&[25, 25, 25, 25], 5, 85, 23.0),
        ];
        for (shares, floor, end, seconds) in figures {
            let found = reached("1000/s", shares, floor, end, true);
            assert!((found - seconds).abs() < 1e-9, "{shares:?} with a floor of {floor}%: {found} s");
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
