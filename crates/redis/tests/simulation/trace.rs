//! Random traces: limits, and the steps that a fleet goes through.

use fastrand::Rng;

use crate::simulation::ideal::Sample;
use crate::simulation::redis_in_process::PathState;
use crate::simulation::request::{RequestKind, RequestPlan};
use crate::simulation::slots::SlotSample;

pub(crate) const NODES: usize = 3;

const SAMPLES: [Sample; 11] = [
    Sample::Bucket { text: "1000/s burst 1000", rate: 1_000, burst: 1_000 },
    Sample::Bucket { text: "500/s burst 2000", rate: 500, burst: 2_000 },
    Sample::Bucket { text: "gcra 500/s burst 300", rate: 500, burst: 300 },
    Sample::Bucket { text: "meter 200/s burst 200", rate: 200, burst: 200 },
    Sample::Bucket { text: "2000/s burst 4000", rate: 2_000, burst: 4_000 },
    Sample::Bucket { text: "3000/s burst 3000", rate: 3_000, burst: 3_000 },
    Sample::Window { text: "fixed 2000/s", most: 2_000, part: 1_000, older: 0 },
    Sample::Window { text: "fixed 3000/3s", most: 3_000, part: 3_000, older: 0 },
    Sample::Window { text: "sliding 2000/s", most: 2_000, part: 1_000, older: 1 },
    Sample::Window { text: "sliding 1500/2s parts 4", most: 1_500, part: 500, older: 4 },
    Sample::Window { text: "sliding 3000/3s parts 2", most: 3_000, part: 1_500, older: 2 },
];

const SLOTS: [SlotSample; 3] = [
    SlotSample { text: "concurrent 64 ttl 1s", slots: 64, ttl: 1_000 },
    SlotSample { text: "concurrent 96 ttl 2s", slots: 96, ttl: 2_000 },
    SlotSample { text: "concurrent 200 ttl 1s", slots: 200, ttl: 1_000 },
];

const KINDS: [RequestKind; 6] = [
    RequestKind::Plain,
    RequestKind::Plain,
    RequestKind::Both,
    RequestKind::Both,
    RequestKind::Work,
    RequestKind::Reserved,
];

/// The requests of a node per millisecond.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) a_milli: u64,
    pub(crate) kind: RequestKind,
    /// The largest cost of a reserved request.
    pub(crate) most_cost: u64,
    /// The longest time for which a request holds a slot or a reserved cost, in milliseconds.
    pub(crate) longest: u64,
}

impl Load {
    pub(crate) const NONE: Load = Load { a_milli: 0, kind: RequestKind::Plain, most_cost: 1, longest: 0 };

    /// One of the requests.
    pub(crate) fn request(&self, dice: &mut Rng) -> RequestPlan {
        let Load { kind, most_cost, longest, .. } = *self;
        match kind {
            RequestKind::Plain | RequestKind::Both => RequestPlan { kind, cost: 1, actual: 1, millis: 0 },
            RequestKind::Work => RequestPlan { kind, cost: 1, actual: 1, millis: dice.u64(..=longest) },
            RequestKind::Reserved => {
                let cost = dice.u64(1..=most_cost);
                // Now and then more than was reserved.
                let actual = if dice.u8(..8) == 0 { 2 * cost } else { dice.u64(..=cost) };
                RequestPlan { kind, cost, actual, millis: dice.u64(..=longest) }
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// The requests of a node from now on.
    Load {
        node: usize,
        load: Load,
    },
    /// Time passes.
    Go {
        millis: u64,
    },
    Path {
        node: usize,
        path: PathState,
    },
    /// The node crashes and is replaced.
    Crash {
        node: usize,
    },
    /// The node returns its leases and stops. It is replaced.
    ShutDown {
        node: usize,
    },
    /// Everything is suspended.
    StandStill {
        millis: u64,
    },
    /// A replica has all data up to now.
    Copy,
    /// The replica takes over.
    Replace,
    /// The server's clock is set; only for buckets, while no request holds slots.
    SetClock {
        millis: i64,
    },
    FlushScripts,
}

pub(crate) struct Trace {
    pub(crate) samples: [Sample; 2],
    pub(crate) slots: SlotSample,
    pub(crate) drifts: [i64; NODES],
    pub(crate) steps: Vec<Step>,
}

impl Trace {
    pub(crate) fn draw(dice: &mut Rng) -> Trace {
        let mut sample = || SAMPLES[dice.usize(..SAMPLES.len())];
        let samples = [sample(), sample()];
        let slots = SLOTS[dice.usize(..SLOTS.len())];
        let drifts = std::array::from_fn(|_| dice.i64(-64..=64));
        let are_buckets = samples.iter().all(|sample| matches!(sample, Sample::Bucket { .. }));
        // A step of the clock ends slots early, or makes them last longer.
        let has_slots = !are_buckets || dice.bool();
        // Data loss and clock steps of the server raise the bound, so half of the traces omit them.
        let server_fails = dice.bool();
        let mut steps: Vec<Step> = (0..NODES).map(|node| load(node, has_slots, dice)).collect();
        for _ in 0..dice.usize(10..30) {
            steps.push(step(server_fails, has_slots, dice));
            steps.push(Step::Go { millis: dice.u64(1..400) });
        }
        Trace { samples, slots, drifts, steps }
    }
}

fn load(node: usize, has_slots: bool, dice: &mut Rng) -> Step {
    const LOADS: [u64; 7] = [0, 0, 1, 1, 2, 4, 12];
    let kind = KINDS[dice.usize(..KINDS.len())];
    let kind = if kind == RequestKind::Work && !has_slots { RequestKind::Plain } else { kind };
    let (most_cost, longest) = (dice.u64(1..30), if dice.bool() { 50 } else { 900 });
    Step::Load { node, load: Load { a_milli: LOADS[dice.usize(..LOADS.len())], kind, most_cost, longest } }
}

fn step(server_fails: bool, has_slots: bool, dice: &mut Rng) -> Step {
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
        0..9 => load(node, has_slots, dice),
        9..17 => Step::Path { node, path: PATHS[dice.usize(..PATHS.len())] },
        17 => Step::Crash { node },
        18 => Step::ShutDown { node },
        19 => Step::StandStill { millis: dice.u64(1..5_000) },
        20 if server_fails => Step::Copy,
        21 if server_fails => Step::Replace,
        22 if server_fails && !has_slots => Step::SetClock { millis: dice.i64(-1_500..500) },
        23 => Step::FlushScripts,
        _ => load(node, has_slots, dice),
    }
}
