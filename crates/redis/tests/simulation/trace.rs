//! Random traces: limits, and the steps that a fleet goes through.

use fastrand::Rng;

use crate::ideal::Sample;
use crate::redis_in_process::PathState;

pub(crate) const NODES: usize = 3;

const SAMPLES: [Sample; 7] = [
    Sample::Bucket { text: "1000/s burst 1000", rate: 1_000, burst: 1_000 },
    Sample::Bucket { text: "500/s burst 2000", rate: 500, burst: 2_000 },
    Sample::Bucket { text: "gcra 500/s burst 300", rate: 500, burst: 300 },
    Sample::Bucket { text: "meter 200/s burst 200", rate: 200, burst: 200 },
    Sample::Bucket { text: "2000/s burst 4000", rate: 2_000, burst: 4_000 },
    Sample::Window { text: "fixed 2000/s", most: 2_000, seconds: 1 },
    Sample::Window { text: "fixed 3000/3s", most: 3_000, seconds: 3 },
];

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// So many requests in a millisecond from now on, which come under the second rule too or not.
    Load {
        node: usize,
        a_milli: u64,
        is_both: bool,
    },
    /// Time passes.
    Go {
        millis: u64,
    },
    Path {
        node: usize,
        path: PathState,
    },
    /// The node is gone at once, and another takes its place.
    Crash {
        node: usize,
    },
    /// The node returns its leases and ends. Another takes its place.
    ShutDown {
        node: usize,
    },
    /// Everything stands still.
    StandStill {
        millis: u64,
    },
    /// A replica has all data.
    Copy,
    /// The replica takes over.
    Replace,
    /// The server's clock is set, only for buckets.
    SetClock {
        millis: i64,
    },
    FlushScripts,
}

pub(crate) struct Trace {
    pub(crate) samples: [Sample; 2],
    pub(crate) drifts: [i64; NODES],
    pub(crate) steps: Vec<Step>,
}

impl Trace {
    pub(crate) fn draw(dice: &mut Rng) -> Trace {
        let mut sample = || SAMPLES[dice.usize(..SAMPLES.len())];
        let samples = [sample(), sample()];
        let drifts = std::array::from_fn(|_| dice.i64(-64..=64));
        let are_buckets = samples.iter().all(|sample| matches!(sample, Sample::Bucket { .. }));
        // What a server loses, or its clock, raises the bound. Half of the traces do without.
        let server_fails = dice.bool();
        let mut steps: Vec<Step> = (0..NODES).map(|node| load(node, dice)).collect();
        for _ in 0..dice.usize(10..30) {
            steps.push(step(server_fails, are_buckets, dice));
            steps.push(Step::Go { millis: dice.u64(1..400) });
        }
        Trace { samples, drifts, steps }
    }
}

fn load(node: usize, dice: &mut Rng) -> Step {
    const LOADS: [u64; 7] = [0, 0, 1, 1, 2, 4, 12];
    Step::Load { node, a_milli: LOADS[dice.usize(..LOADS.len())], is_both: dice.bool() }
}

fn step(server_fails: bool, are_buckets: bool, dice: &mut Rng) -> Step {
    const PATHS: [PathState; 8] = [
        PathState::Open,
        PathState::Open,
        PathState::Open,
        PathState::Held,
        PathState::AnswersHeld,
        PathState::CallsLost,
        PathState::AnswersLost,
        PathState::Cut,
    ];
    let node = dice.usize(..NODES);
    match dice.u32(..24) {
        0..9 => load(node, dice),
        9..17 => Step::Path { node, path: PATHS[dice.usize(..PATHS.len())] },
        17 => Step::Crash { node },
        18 => Step::ShutDown { node },
        19 => Step::StandStill { millis: dice.u64(1..5_000) },
        20 if server_fails => Step::Copy,
        21 if server_fails => Step::Replace,
        22 if server_fails && are_buckets => Step::SetClock { millis: dice.i64(-1_500..500) },
        23 => Step::FlushScripts,
        _ => load(node, dice),
    }
}
