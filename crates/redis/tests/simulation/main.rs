//! Fleets with leases in virtual time: the real limiter, tier, store and link of each node, over a simulated network, against a server
//! that runs the real script in this process.
//!
//! A seed decides everything that happens. [`trace`] draws it, [`world`] carries it out, [`node`] is a node, and [`ideal`] says whether
//! the fleet has admitted more than the limit. A failure names its seed; `TIDEGATE_TEST_SEED` runs that one alone.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod ideal;
mod node;
#[path = "../support/redis_in_process/mod.rs"]
mod redis_in_process;
mod time;
mod trace;
mod world;

use tidegate_core::contract::seed::seeds;

use crate::ideal::Sample;
use crate::node::Mutant;
use crate::redis_in_process::PathState;
use crate::trace::{NODES, Step, Trace};
use crate::world::{Outcome, World};

fn run(seed: u64, mutant: Option<Mutant>) -> Outcome {
    World::run(seed, mutant)
}

/// Whatever is lost, late, crashes or takes over, all nodes together admit no more than the limit, but for what the guide says of
/// servers that lose data or whose clocks step.
#[test]
fn a_fleet_admits_no_more_than_the_limit() {
    let (mut admitted, mut by_lease, mut calls) = (0, 0, 0);
    for seed in seeds(1..25) {
        let outcome = run(seed, None);
        assert!(
            outcome.violation.is_none(),
            "seed {seed}: {}\n{}",
            outcome.violation.unwrap(),
            outcome.told.join("\n")
        );
        admitted += outcome.admitted;
        by_lease += outcome.by_lease;
        calls += outcome.calls;
    }
    println!("{admitted} admitted, {by_lease} of them by lease, {calls} calls of the script");
    assert!(by_lease > 0 && by_lease > admitted / 2, "{by_lease} of {admitted} by lease: nothing much was tested");
}

#[test]
fn a_seed_replays() {
    for seed in seeds(3..6) {
        let (one, other) = (run(seed, None), run(seed, None));
        assert_eq!(one.told, other.told);
        assert_eq!((one.digest, one.calls), (other.digest, other.calls));
    }
    assert_ne!(run(3, None).digest, run(4, None).digest);
}

/// Plays a trace whose nodes have clocks that do not drift.
fn play(sample: Sample, steps: Vec<Step>, mutant: Option<Mutant>) -> Outcome {
    World::play(&Trace { samples: [sample; 2], drifts: [0; NODES], steps }, 1, mutant)
}

const fn load(node: usize, a_milli: u64) -> Step {
    Step::Load { node, a_milli, is_both: false }
}

const fn path(node: usize, path: PathState) -> Step {
    Step::Path { node, path }
}

const fn go(millis: u64) -> Step {
    Step::Go { millis }
}

/// A node returns tokens while another one holds some, and the answer is lost. What is left is then taken by a third one.
fn return_is_lost(mutant: Option<Mutant>, wait: u64) -> Outcome {
    let sample = Sample::Bucket { text: "1000/s burst 4000", rate: 1_000, burst: 4_000 };
    let spent_by_others = [load(2, 1), load(1, 20), go(150), load(1, 0)];
    let leased = [load(0, 1), go(300), load(0, 0)];
    let returned_in_vain =
        [path(0, PathState::AnswersLost), go(wait), path(0, PathState::Cut), go(5), path(0, PathState::Open), go(600)];
    let rest = [load(1, 20), go(150)];
    play(sample, [&spent_by_others[..], &leased, &returned_in_vain, &rest].concat(), mutant)
}

/// The answer to a renewal is late. The node then stands without the server until some moment before or after the end of its lease, at
/// which another node takes all that there is.
fn renewal_is_late(mutant: Option<Mutant>, wait: u64) -> Outcome {
    let sample = Sample::Bucket { text: "1000/s burst 1000", rate: 1_000, burst: 1_000 };
    let leased = [load(0, 1), go(400)];
    let late = [
        path(0, PathState::AnswersHeld),
        go(1_300),
        load(0, 0),
        path(0, PathState::Open),
        go(8),
        path(0, PathState::Cut),
    ];
    let all = [go(wait), load(1, 20), go(70), load(1, 0), load(0, 20), go(20)];
    play(sample, [&leased[..], &late, &all].concat(), mutant)
}

/// With a safety rule switched off, the fleet must admit too much at one of these moments, and at none of them otherwise.
fn is_caught(
    scene: impl Fn(Option<Mutant>, u64) -> Outcome,
    mutant: Mutant,
    moments: impl Iterator<Item = u64> + Clone,
) {
    for moment in moments.clone() {
        let outcome = scene(None, moment);
        assert!(outcome.violation.is_none(), "at {moment}: {}", outcome.told.join("\n"));
    }
    assert!(moments.clone().any(|moment| scene(Some(mutant), moment).violation.is_some()), "{mutant:?} is not caught");
}

#[test]
fn a_node_that_reports_twice_when_an_answer_is_lost_is_caught() {
    is_caught(return_is_lost, Mutant::LostIsAskedAgain, (250..500).step_by(25));
}

#[test]
fn a_node_that_counts_the_end_of_a_lease_from_the_answer_is_caught() {
    is_caught(renewal_is_late, Mutant::EndFromAnswer, (0..4_000).step_by(250));
}
