//! A fleet, its server and the network between them, and the execution of a trace.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use tidegate_core::Clock;
use tidegate_rules::RuleSet;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::simulation::ideal::{Ideal, LATE};
use crate::simulation::node::{Mutant, Node};
use crate::simulation::redis_in_process::{Dataset, ScriptedServer, SimulatedNetwork};
use crate::simulation::request::{Client, Decided};
use crate::simulation::time::{NodeClock, ServerClock, TrueTime};
use crate::simulation::trace::{Load, NODES, Step, Trace};

/// The result of a trace.
pub(crate) struct Outcome {
    /// The first request that exceeded the limit.
    pub(crate) violation: Option<String>,
    /// The steps, with their times.
    pub(crate) told: Vec<String>,
    /// A hash of all decisions and their instants.
    pub(crate) digest: u64,
    pub(crate) admitted: u64,
    pub(crate) by_lease: u64,
    /// Requests that held slots.
    pub(crate) worked: u64,
    /// Tokens that were refunded.
    pub(crate) refunded: u64,
    /// Calls of the script.
    pub(crate) calls: u64,
}

/// A node, and its requests in flight.
struct Process {
    node: Arc<Node>,
    requests: JoinSet<()>,
    load: Load,
}

pub(crate) struct World {
    time: TrueTime,
    server_clock: ServerClock,
    server: ScriptedServer,
    replica: Dataset,
    network: SimulatedNetwork,
    rules: RuleSet,
    drifts: [i64; NODES],
    mutant: Option<Mutant>,
    processes: Vec<Process>,
    decided: Arc<Mutex<Decided>>,
    /// Draws what requests do after they were admitted.
    dice: Rng,
    by_lease: u64,
    told: Vec<String>,
}

impl World {
    /// Runs the trace of a seed to its end, or to the first violation.
    pub(crate) fn run(seed: u64) -> Outcome {
        let mut dice = Rng::with_seed(seed);
        let trace = Trace::draw(&mut dice);
        World::play(&trace, dice.u64(..), None)
    }

    /// Runs a trace to its end, or to the first violation. The seed determines what the trace does not: delays of messages,
    /// costs of requests and how long they take, and random numbers drawn by nodes.
    pub(crate) fn play(trace: &Trace, seed: u64, mutant: Option<Mutant>) -> Outcome {
        // The tier and the link use the generator of their thread.
        fastrand::seed(seed);
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut world = World::new(trace, seed, mutant);
            for step in &trace.steps {
                world.step(*step).await;
                if world.decided().violation.is_some() {
                    break;
                }
            }
            world.end()
        })
    }

    fn new(trace: &Trace, seed: u64, mutant: Option<Mutant>) -> World {
        let time = TrueTime::new();
        let server_clock = ServerClock { time: time.clone(), ahead: Arc::default() };
        let mut server = ScriptedServer::new(Arc::new(server_clock.clone()));
        if let Some((from, to)) = mutant.and_then(Mutant::change_of_script) {
            server.change_scripts(from, to);
        }
        let decided = Decided::new(trace.samples, trace.slots);
        let mut world = World {
            time,
            server_clock,
            replica: server.copy(),
            server,
            network: SimulatedNetwork::new(NODES, seed),
            rules: rules(trace),
            drifts: trace.drifts,
            mutant,
            processes: Vec::new(),
            decided: Arc::new(Mutex::new(decided)),
            dice: Rng::with_seed(seed),
            by_lease: 0,
            told: vec![format!("{:?}, {:?}, drifts {:?}", trace.samples, trace.slots, trace.drifts)],
        };
        world.processes = (0..NODES).map(|node| world.process(node)).collect();
        world
    }

    fn process(&self, node: usize) -> Process {
        let clock = NodeClock { time: self.time.clone(), drift: self.drifts[node] };
        let node = Node::start(&self.rules, self.network.dialer(node), clock, self.mutant);
        Process { node: Arc::new(node), requests: JoinSet::new(), load: Load::NONE }
    }

    fn decided(&self) -> MutexGuard<'_, Decided> {
        self.decided.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn step(&mut self, step: Step) {
        self.told.push(format!("{} {step:?}", self.time.now().as_micros()));
        match step {
            Step::Load { node, load } => self.processes[node].load = load,
            Step::Go { millis } => self.go(millis).await,
            Step::Path { node, path } => self.network.set_path(node, path),
            Step::Crash { node } => self.crash(node),
            Step::ShutDown { node } => {
                self.processes[node].load = Load::NONE;
                let ending = Arc::clone(&self.processes[node].node);
                let returning = timeout(Duration::from_millis(2 * LATE), ending.return_leases());
                let _ = tokio::join!(returning, self.go(2 * LATE));
                self.crash(node);
            }
            Step::StandStill { millis } => {
                // Requests that the server has already decided are answered first.
                let loads: Vec<Load> = self.processes.iter().map(|process| process.load).collect();
                self.processes.iter_mut().for_each(|process| process.load = Load::NONE);
                self.go(LATE + 2).await;
                self.time.stand_still(millis);
                self.processes.iter_mut().zip(loads).for_each(|(process, load)| process.load = load);
            }
            Step::Copy => {
                self.replica = self.server.copy();
                self.decided().ideals.iter_mut().for_each(Ideal::copied);
            }
            Step::Replace => self.replace_server().await,
            Step::SetClock { millis } => {
                self.server_clock.step(millis);
                if let (Ok(ahead @ 1..), held) = (u64::try_from(millis), self.held()) {
                    self.decided().ideals.iter_mut().for_each(|ideal| ideal.stepped_ahead(ahead, held));
                }
            }
            Step::FlushScripts => self.server.flush_scripts(),
        }
    }

    /// Stops the server. When none of its answers is in flight, its replica takes over.
    async fn replace_server(&mut self) {
        self.network.set_server(false);
        self.go(LATE + 2).await;
        let (held, in_blocks) = (self.held(), self.slots_in_blocks());
        {
            let mut decided = self.decided();
            decided.ideals.iter_mut().for_each(|ideal| ideal.replaced(held));
            decided.slots.replaced(in_blocks);
        }
        self.server.replace(self.replica.clone());
        self.decided().ideals.iter_mut().for_each(Ideal::copied);
        self.network.set_server(true);
    }

    /// The tokens that all nodes hold.
    fn held(&self) -> u64 {
        self.processes.iter().map(|process| process.node.leases().outstanding).sum()
    }

    /// The slots in the blocks of all nodes.
    fn slots_in_blocks(&self) -> u64 {
        self.processes.iter().map(|process| process.node.leases().slots).sum()
    }

    fn crash(&mut self, node: usize) {
        self.network.crash(node);
        self.by_lease += self.processes[node].node.leases().admitted;
        let new = self.process(node);
        let old = std::mem::replace(&mut self.processes[node], new);
        self.processes[node].load = old.load;
    }

    async fn go(&mut self, millis: u64) {
        for _ in 0..millis {
            for number in 0..NODES {
                self.send_requests(number);
            }
            // Lets all tasks run until they wait.
            sleep(Duration::from_millis(1)).await;
            self.network.tick(&mut self.server);
        }
    }

    fn send_requests(&mut self, number: usize) {
        let Process { node, requests, load } = &mut self.processes[number];
        while requests.try_join_next().is_some() {}
        for _ in 0..load.a_milli {
            let (node, decided, time) = (Arc::clone(node), Arc::clone(&self.decided), self.time.clone());
            let plan = load.request(&mut self.dice);
            requests.spawn(Client { node, number, time, decided }.perform(plan));
        }
    }

    fn end(self) -> Outcome {
        let at_end: u64 = self.processes.iter().map(|process| process.node.leases().admitted).sum();
        let decided = self.decided();
        Outcome {
            violation: decided.violation.clone(),
            digest: decided.digest,
            admitted: decided.admitted,
            by_lease: self.by_lease + at_end,
            worked: decided.slots.begun,
            refunded: decided.refunded,
            calls: self.server.calls(),
            told: self.told.clone(),
        }
    }
}

/// A rule for all requests, and two rules for some of them. Without the store, none is admitted.
fn rules(trace: &Trace) -> RuleSet {
    let [first, second] = trace.samples.map(|sample| sample.text());
    let (slots, fails) = (trace.slots.text, "on_store_failure: deny, store_deadline: 20ms");
    let text = format!(
        "rules:\n\
         - {{ id: first, key: user, limit: {first}, cost: 'header:X-Cost', {fails} }}\n\
         - {{ id: second, match: {{ path: /both }}, limit: {second}, {fails} }}\n\
         - {{ id: third, match: {{ path: /work }}, limit: {slots}, lease: auto, {fails} }}\n"
    );
    RuleSet::parse("rules.yaml", &text).unwrap().rules
}
