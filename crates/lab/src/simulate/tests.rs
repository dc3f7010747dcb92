use tidegate_core::{Gate, ManualClock, MemoryStore};

use super::*;
use crate::traffic::Traffic;

const LIMITS: [&str; 7] = [
    "5/s burst 12",
    "gcra 5/s burst 12",
    "meter 5/s",
    "shaper 5/s queue 9",
    "fixed 7/s",
    "sliding 6/s parts 4",
    "log 6/s",
];

fn limits() -> Vec<Limit> {
    LIMITS.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn a_fleet_that_leases_a_limit_stands_beside_the_limit_itself() {
    let limit: Limit = "2000/s burst 2000".parse().unwrap();
    let traffic: Traffic = "poisson 4000/s".parse().unwrap();
    let mut simulation = Simulation::new(&[limit, limit]).leasing(&[Some(10), None], 1);
    let mut least = u64::MAX;
    for arrival in traffic.arrivals(Micros::from_secs(5), 1) {
        simulation.take(&arrival);
        least = least.min(simulation.decisions()[0].remaining);
    }
    let (fleet, alone) = (simulation.totals()[0], simulation.totals()[1]);
    assert!(fleet.admitted <= alone.admitted && 100 * fleet.admitted >= 90 * alone.admitted, "{fleet:?} {alone:?}");
    assert!(fleet.denied > 0 && fleet.longest_wait > 0 && least == 0, "{fleet:?}");
    let nodes = simulation.fleet(0).unwrap();
    assert_eq!((nodes.admitted_cost, nodes.excess_cost), (fleet.admitted_cost, 0));
    assert!(simulation.is_leased(0) && !simulation.is_leased(1) && simulation.fleet(1).is_none());
}

#[test]
fn the_store_decides_the_same() {
    let traffic: Traffic = "square 40/s 3/s every 4s random clients 3 zipf 1 + spike 30 at 5s cost 2".parse().unwrap();
    let clock = ManualClock::default();
    let store = std::sync::Arc::new(MemoryStore::with_clock(clock.clone()));
    let gates: Vec<_> =
        limits().iter().map(|limit| Gate::in_store(store.clone(), &limit.to_string(), *limit)).collect();
    let mut simulation = Simulation::new(&limits());
    for arrival in traffic.arrivals(Micros::from_secs(30), 5) {
        clock.set(arrival.at);
        let client = arrival.client.to_string();
        let stored: Vec<_> = gates.iter().map(|gate| gate.check_cost(&client, arrival.cost)).collect();
        assert_eq!(simulation.take(&arrival), stored);
    }
    assert!(simulation.totals().iter().all(|totals| totals.admitted > 100 && totals.denied > 100));
}

#[test]
fn a_run_is_the_same_every_time_and_can_be_left() {
    let traffic: Traffic = "poisson 50/s clients 20 zipf 1.2".parse().unwrap();
    let run = |until: u64| {
        let mut simulation = Simulation::new(&limits());
        simulation.run(traffic.arrivals(Micros::from_secs(60), 9), |simulation, _| {
            if simulation.totals()[0].arrivals == until { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        simulation.totals().to_vec()
    };
    assert_eq!(run(u64::MAX), run(u64::MAX));
    assert_eq!(run(500)[0].arrivals, 500);
}

#[test]
fn slots_come_back_when_the_work_is_done() {
    let limit: Limit = "concurrent 2 ttl 1min".parse().unwrap();
    let traffic: Traffic = "steady 10/s".parse().unwrap();
    let mut held = Simulation::new(&[limit]).holding(Micros::from_millis(250));
    let mut leased = Simulation::new(&[limit]);
    for arrival in traffic.arrivals(Micros::from_secs(9), 1) {
        held.take(&arrival);
        leased.take(&arrival);
    }
    // Two slots, each held for a quarter of a second: two of three arrivals are admitted.
    assert_eq!((held.totals()[0].admitted, held.totals()[0].denied), (60, 30));
    assert_eq!(leased.totals()[0].admitted, 2);
}
