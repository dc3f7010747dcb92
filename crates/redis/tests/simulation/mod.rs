//! Fleets with leases in virtual time: the real limiter, tier, store and link of each node, over a simulated network, with
//! a server that runs the real script in this process.
//!
//! A seed determines everything that happens. [`trace`] draws the steps, [`world`] performs them, [`node`] is a node, and
//! [`request`] is the life of a request. [`ideal`] checks whether the fleet has admitted more than a bucket or a window,
//! and [`slots`] whether more requests hold slots than there are. A failure prints its seed; `TIDEGATE_TEST_SEED` runs only
//! that one. In [`scenes`], each safety rule is disabled, and must be missed.

mod ideal;
mod node;
mod request;
mod scenes;
mod slots;
mod time;
mod trace;
mod world;

use std::thread;

use tidegate_core::contract::seed::seeds;
use tidegate_test_support::times;

use crate::simulation::world::{Outcome, World};
use crate::support::redis_in_process;

/// The outcome of the simulation with this seed, which admits no more than the limit.
fn admits(&seed: &u64) -> Outcome {
    let outcome = World::run(seed);
    let violation = outcome.violation.as_deref();
    assert_eq!(violation, None, "seed {seed}:\n{}", outcome.told.join("\n"));
    outcome
}

/// With any losses, delays, crashes and takeovers, all nodes together admit no more than the limit, plus the guide's bounds
/// for servers that lose data or whose clocks step: buckets, fixed and sliding windows, slots, and costs that are reserved
/// and settled.
#[test]
fn a_fleet_admits_no_more_than_the_limit() {
    let (mut admitted, mut by_lease, mut worked, mut refunded, mut calls) = (0, 0, 0, 0, 0);
    let seeds: Vec<u64> = seeds(1..1 + u64::from(times(8))).collect();
    let outcomes: Vec<Outcome> = thread::scope(|scope| {
        let threads: Vec<_> = seeds
            .chunks(seeds.len().div_ceil(2))
            .map(|some| scope.spawn(|| some.iter().map(admits).collect()))
            .collect();
        threads.into_iter().flat_map(|thread| -> Vec<Outcome> { thread.join().unwrap() }).collect()
    });
    for outcome in outcomes {
        admitted += outcome.admitted;
        by_lease += outcome.by_lease;
        worked += outcome.worked;
        refunded += outcome.refunded;
        calls += outcome.calls;
    }
    println!("{admitted} admitted, {by_lease} of them by lease, {worked} with slots");
    println!("{refunded} tokens refunded, {calls} calls of the script");
    assert!(by_lease > admitted / 3, "{by_lease} of {admitted} by lease: nothing much was tested");
    assert!(worked > 0 && refunded > 0, "{worked} with slots, {refunded} refunded");
}

#[test]
fn a_seed_replays() {
    for seed in seeds(3..4) {
        let (one, other) = (World::run(seed), World::run(seed));
        assert_eq!(one.told, other.told);
        assert_eq!((one.digest, one.calls), (other.digest, other.calls));
        assert_ne!(one.digest, World::run(seed + 1).digest);
    }
}
