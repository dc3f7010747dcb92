//! Scenes in which a fleet exceeds a limit at some moment if a safety rule is disabled, and at none otherwise.

use crate::simulation::ideal::Sample;
use crate::simulation::node::Mutant;
use crate::simulation::redis_in_process::PathState;
use crate::simulation::request::RequestKind;
use crate::simulation::slots::SlotSample;
use crate::simulation::trace::{Load, NODES, Step, Trace};
use crate::simulation::world::{Outcome, World};

const SLOTS: SlotSample = SlotSample { text: "concurrent 64 ttl 1s", slots: 64, ttl: 1_000 };

/// Runs a trace with nodes whose clocks do not drift.
fn play(sample: Sample, steps: Vec<Step>, mutant: Option<Mutant>) -> Outcome {
    World::play(&Trace { samples: [sample; 2], slots: SLOTS, drifts: [0; NODES], steps }, 1, mutant)
}

const fn load(node: usize, a_milli: u64) -> Step {
    Step::Load { node, load: Load { a_milli, ..Load::NONE } }
}

/// Requests that hold slots for up to `longest` milliseconds.
const fn work(node: usize, a_milli: u64, longest: u64) -> Step {
    Step::Load { node, load: Load { a_milli, kind: RequestKind::Work, most_cost: 1, longest } }
}

const fn path(node: usize, path: PathState) -> Step {
    Step::Path { node, path }
}

const fn go(millis: u64) -> Step {
    Step::Go { millis }
}

/// A node returns tokens while another node holds some, and the answer is lost. A third node then takes what is left.
fn return_is_lost(mutant: Option<Mutant>, wait: u64) -> Outcome {
    let sample = Sample::Bucket { text: "1000/s burst 4000", rate: 1_000, burst: 4_000 };
    let spent_by_others = [load(2, 1), load(1, 20), go(150), load(1, 0)];
    let leased = [load(0, 1), go(300), load(0, 0)];
    let returned_in_vain =
        [path(0, PathState::AnswersLost), go(wait), path(0, PathState::Cut), go(5), path(0, PathState::Open), go(600)];
    let rest = [load(1, 20), go(150)];
    play(sample, [&spent_by_others[..], &leased, &returned_in_vain, &rest].concat(), mutant)
}

/// The answer to a renewal is late. The node then gets no answers until some moment before or after the end of its lease,
/// when another node takes everything that is left.
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

/// A node takes a lease and is cut off. After some time another node takes everything that is left, and then the first one
/// spends what it holds.
fn lease_waits(sample: Sample, mutant: Option<Mutant>, wait: u64) -> Outcome {
    let leased = [load(0, 2), go(420), load(0, 0), path(0, PathState::Cut)];
    let all = [go(wait), load(1, 30), go(90), load(1, 0), load(0, 20), go(20)];
    play(sample, [&leased[..], &all].concat(), mutant)
}

/// A node that has blocks of slots is cut off, and goes on with a few requests. After some time another node takes all
/// slots that are left.
fn blocks_end(mutant: Option<Mutant>, wait: u64) -> Outcome {
    let sample = Sample::Bucket { text: "5000/s burst 20000", rate: 5_000, burst: 20_000 };
    // The lease of the first rule is renewed in a new epoch, so that it outlasts the blocks.
    let leased = [work(0, 1, 60), go(1_300), path(0, PathState::Cut)];
    let a_few = [work(0, 1, 60), go(1), work(0, 0, 60), go(29)];
    let mut steps = leased.to_vec();
    let few = |millis: u64| (0..millis / 30).flat_map(move |_| a_few);
    steps.extend(few(wait));
    steps.push(work(1, 4, 900));
    steps.extend(few(300));
    play(sample, steps, mutant)
}

/// With a safety rule disabled, the fleet must exceed the limit at one of these moments, and otherwise at none.
fn is_caught(
    scene: impl Fn(Option<Mutant>, u64) -> Outcome,
    mutant: Mutant,
    mut moments: impl Iterator<Item = u64> + Clone,
) {
    for moment in moments.clone() {
        let outcome = scene(None, moment);
        assert!(outcome.violation.is_none(), "at {moment}: {:?}\n{}", outcome.violation, outcome.told.join("\n"));
    }
    let caught = moments.find(|&moment| scene(Some(mutant), moment).violation.is_some());
    assert!(caught.is_some(), "{mutant:?} is not caught");
}

#[test]
fn a_node_that_reports_twice_when_an_answer_is_lost_is_caught() {
    is_caught(return_is_lost, Mutant::LostIsAskedAgain, (250..500).step_by(25));
}

#[test]
fn a_node_that_counts_the_end_of_a_lease_from_the_answer_is_caught() {
    is_caught(renewal_is_late, Mutant::EndFromAnswer, (0..4_000).step_by(250));
}

#[test]
fn a_script_that_lets_debt_drain_below_what_nodes_hold_is_caught() {
    let sample = Sample::Bucket { text: "1000/s burst 1000", rate: 1_000, burst: 1_000 };
    is_caught(|mutant, wait| lease_waits(sample, mutant, wait), Mutant::NoFloor, (0..3_000).step_by(250));
}

#[test]
fn a_node_that_spends_tokens_of_a_window_in_the_next_one_is_caught() {
    for sample in [
        Sample::Window { text: "fixed 2000/s", most: 2_000, part: 1_000, older: 0 },
        Sample::Window { text: "sliding 2000/s", most: 2_000, part: 1_000, older: 1 },
        Sample::Window { text: "sliding 2000/s parts 2", most: 2_000, part: 500, older: 2 },
    ] {
        let scene = |mutant, wait| lease_waits(sample, mutant, wait);
        is_caught(scene, Mutant::EndBeyondWindow, (0..1_600).step_by(200));
    }
}

#[test]
fn a_node_that_begins_requests_in_a_block_that_was_not_renewed_is_caught() {
    is_caught(blocks_end, Mutant::RenewalAssumed, (300..3_300).step_by(300));
}
