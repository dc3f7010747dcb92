//! A rate that adapts, at nodes that lease its limit. Each step of the rate is another limit, under which nodes return what they held.

use std::sync::Arc;

use tidegate_core::adaptive::ServiceHealth;
use tidegate_core::{ManualClock, MemoryStore, Micros, Store};
use tidegate_redis::tier::LeaseStats;
use tidegate_rules::{Limiter, Request, RuleSet};

use crate::tier::nodes::{Common, Node, drive, node};
use crate::tier::support::{finish, start};

const RULES: &str = "
rules:
  - id: api
    limit: 1000/s burst 1000
    adapt: { between: 100/s..1000/s, on: [errors > 5%] }
";
const NODES: usize = 4;
/// A node follows the others this much later than the one before it: the last one after 0.6 s.
const APART: u64 = 200;

fn rules() -> RuleSet {
    RuleSet::parse("rules.yaml", RULES).unwrap().rules
}

/// Moves the rate of a node, once in each second.
async fn follow<S: Store>(limiter: &Limiter<S, ManualClock>, health: ServiceHealth) {
    let generation = limiter.rules();
    limiter.move_rate(generation.rules.adaptive_rates().next().unwrap(), health).await;
}

/// The admissions of one second, with leases and without.
#[derive(Clone, Copy, Debug, Default)]
struct Second {
    leased: u64,
    alone: u64,
    /// The rate at its end, in tokens a second.
    rate: u64,
}

/// The same arrivals at two fleets, one of which leases. The first node sees its service overloaded in some seconds.
struct Fleets {
    clock: ManualClock,
    leasing: Vec<Limiter<Node, ManualClock>>,
    alone: Vec<Limiter<Common, ManualClock>>,
}

impl Fleets {
    fn new() -> Fleets {
        let clock = start();
        let store = || Common(Arc::new(MemoryStore::with_clock(clock.clone())));
        let (shared, other) = (store(), store());
        let leasing =
            (0..NODES).map(|_| Limiter::with_clock(rules(), node(&shared, &clock, 0, None), clock.clone())).collect();
        let alone = (0..NODES).map(|_| Limiter::with_clock(rules(), other.clone(), clock.clone())).collect();
        Fleets { clock, leasing, alone }
    }

    /// A second with a request at each node in each of so many milliseconds.
    fn second(&self, every: u64, is_overloaded: bool) -> Second {
        let (request, mut second) = (Request::new("GET", "/"), Second::default());
        for milli in 0..1_000 {
            self.clock.advance(Micros::from_millis(1));
            for (number, (leasing, alone)) in self.leasing.iter().zip(&self.alone).enumerate() {
                finish(leasing.store().renew_leases());
                if milli == number as u64 * APART {
                    let health = match (number, is_overloaded) {
                        (0, true) => ServiceHealth::Overloaded(0),
                        _ => ServiceHealth::Healthy,
                    };
                    drive(leasing.store(), follow(leasing, health));
                    finish(follow(alone, health));
                }
                if milli.is_multiple_of(every) {
                    let ruling = drive(leasing.store(), leasing.check(&request));
                    second.leased += u64::from(ruling.is_allowed());
                    second.alone += u64::from(finish(alone.check(&request)).is_allowed());
                }
            }
        }
        second.rate =
            self.leasing[0].with_rules(|generation| generation.rules.adaptive_rates().next().unwrap().tokens());
        second
    }

    fn leases(&self) -> Vec<LeaseStats> {
        self.leasing.iter().map(|node| node.store().stats().leases.unwrap()).collect()
    }
}

/// Half of the highest burst: the most that nodes hold at a time.
const HELD: u64 = 500;

/// Asserts that in no interval the nodes have admitted more with leases than without, but for what they held at its beginning.
fn assert_bound(seconds: &[Second]) {
    for begin in 0..seconds.len() {
        for end in begin + 1..=seconds.len() {
            let sum = |of: fn(&Second) -> u64| seconds[begin..end].iter().map(of).sum::<u64>();
            let (leased, alone) = (sum(|second| second.leased), sum(|second| second.alone));
            assert!(leased <= alone + HELD, "{begin}..{end}: {leased} of {alone} in {seconds:?}");
        }
    }
}

#[test]
fn nodes_return_and_earn_leases_at_each_step_of_a_rate_and_keep_to_it() {
    let fleets = Fleets::new();
    let seconds: Vec<Second> = (0..20).map(|second| fleets.second(1, (5..8).contains(&second))).collect();
    assert_eq!((seconds[4].rate, seconds[7].rate, seconds[19].rate), (1_000, 235, 775));
    assert_bound(&seconds);
    let sum = |of: fn(&Second) -> u64| seconds.iter().map(of).sum::<u64>();
    let (leased, alone) = (sum(|second| second.leased), sum(|second| second.alone));
    assert!(10 * leased >= 9 * alone, "{leased} of {alone}: {seconds:?}");
    let by_leases: u64 = fleets.leases().iter().map(|leases| leases.admitted).sum();
    assert!(10 * by_leases >= 7 * leased, "{by_leases} of {leased} by leases");
}

/// Nodes hold more than the lowered limit when the rate falls, and then there are more requests than it allows.
#[test]
fn what_nodes_hold_when_a_rate_falls_is_admitted_once() {
    let fleets = Fleets::new();
    let mut seconds: Vec<Second> = (0..5).map(|_| fleets.second(10, false)).collect();
    let held: u64 = fleets.leases().iter().map(|leases| leases.outstanding).sum();
    assert!((1..=HELD).contains(&held), "{held}");
    seconds.extend((0..4).map(|_| fleets.second(1, true)));
    seconds.extend((0..4).map(|_| fleets.second(1, false)));
    assert_bound(&seconds);
}
