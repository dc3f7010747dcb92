//! A fleet, its server and the network between them, and the course of a trace.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use tidegate_core::{Clock, Timestamp};
use tidegate_rules::RuleSet;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::ideal::{Ideal, LATE};
use crate::node::{Mutant, Node};
use crate::redis_in_process::{Dataset, ScriptedServer, SimulatedNetwork};
use crate::time::{NodeClock, ServerClock, TrueTime};
use crate::trace::{NODES, Step, Trace};

/// The result of a trace.
pub(crate) struct Outcome {
    /// The first request that was one too many.
    pub(crate) violation: Option<String>,
    /// The steps, with their times.
    pub(crate) told: Vec<String>,
    /// A hash of all decisions and their instants.
    pub(crate) digest: u64,
    pub(crate) admitted: u64,
    pub(crate) by_lease: u64,
    /// Calls of the script.
    pub(crate) calls: u64,
}

/// A node, and the requests on their way in it.
struct Process {
    node: Arc<Node>,
    requests: JoinSet<()>,
    a_milli: u64,
    is_both: bool,
}

/// The decisions of all nodes.
struct Decided {
    ideals: [Ideal; 2],
    digest: u64,
    admitted: u64,
    violation: Option<String>,
}

impl Decided {
    fn note(&mut self, node: usize, is_both: bool, is_allowed: bool, asked: Timestamp, answered: Timestamp) {
        for number in [node as u64, u64::from(is_both), u64::from(is_allowed), answered.as_micros()] {
            self.digest = (self.digest ^ number).wrapping_mul(0x0100_0000_01b3);
        }
        if !is_allowed {
            return;
        }
        self.admitted += 1;
        let rules = if is_both { 2 } else { 1 };
        for (number, ideal) in self.ideals.iter_mut().enumerate().take(rules) {
            if ideal.exceeds(asked, answered) && self.violation.is_none() {
                let at = answered.as_micros();
                self.violation = Some(format!("node {node} admits one too many under rule {number} at {at}"));
            }
        }
    }
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
    by_lease: u64,
    told: Vec<String>,
}

impl World {
    /// Runs the trace of a seed to its end, or to the first violation.
    pub(crate) fn run(seed: u64, mutant: Option<Mutant>) -> Outcome {
        let mut dice = Rng::with_seed(seed);
        let trace = Trace::draw(&mut dice);
        World::play(&trace, dice.u64(..), mutant)
    }

    /// Runs a trace to its end, or to the first violation. The seed draws what the trace leaves open: times of messages, and what
    /// nodes draw themselves.
    pub(crate) fn play(trace: &Trace, seed: u64, mutant: Option<Mutant>) -> Outcome {
        // The tier and the link draw from the generator of their thread.
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
        let server = ScriptedServer::new(Arc::new(server_clock.clone()));
        let [first, second] = trace.samples;
        let ideals = [Ideal::new(first), Ideal::new(second)];
        let mut world = World {
            time,
            server_clock,
            replica: server.copy(),
            server,
            network: SimulatedNetwork::new(NODES, seed),
            rules: rules(first.text(), second.text()),
            drifts: trace.drifts,
            mutant,
            processes: Vec::new(),
            decided: Arc::new(Mutex::new(Decided { ideals, digest: 0, admitted: 0, violation: None })),
            by_lease: 0,
            told: vec![format!("{first:?}, {second:?}, drifts {:?}", trace.drifts)],
        };
        world.processes = (0..NODES).map(|node| world.process(node)).collect();
        world
    }

    fn process(&self, node: usize) -> Process {
        let clock = NodeClock { time: self.time.clone(), drift: self.drifts[node] };
        let node = Node::start(&self.rules, self.network.dialer(node), clock, self.mutant);
        Process { node: Arc::new(node), requests: JoinSet::new(), a_milli: 0, is_both: false }
    }

    fn decided(&self) -> MutexGuard<'_, Decided> {
        self.decided.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn step(&mut self, step: Step) {
        self.told.push(format!("{} {step:?}", self.time.now().as_micros()));
        match step {
            Step::Load { node, a_milli, is_both } => {
                let process = &mut self.processes[node];
                (process.a_milli, process.is_both) = (a_milli, is_both);
            }
            Step::Go { millis } => self.go(millis).await,
            Step::Path { node, path } => self.network.set_path(node, path),
            Step::Crash { node } => self.crash(node),
            Step::ShutDown { node } => {
                self.processes[node].a_milli = 0;
                let ending = Arc::clone(&self.processes[node].node);
                let returning = timeout(Duration::from_millis(2 * LATE), ending.return_leases());
                let _ = tokio::join!(returning, self.go(2 * LATE));
                self.crash(node);
            }
            Step::StandStill { millis } => {
                // Requests that the server has decided are answered before.
                let loads: Vec<u64> =
                    self.processes.iter_mut().map(|process| std::mem::take(&mut process.a_milli)).collect();
                self.go(LATE + 2).await;
                self.time.stand_still(millis);
                for (process, a_milli) in self.processes.iter_mut().zip(loads) {
                    process.a_milli = a_milli;
                }
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

    /// The server stops. When nothing that it has answered is on its way, its replica takes over.
    async fn replace_server(&mut self) {
        self.network.set_server(false);
        self.go(LATE + 2).await;
        let held = self.held();
        self.decided().ideals.iter_mut().for_each(|ideal| ideal.replaced(held));
        self.server.replace(self.replica.clone());
        self.decided().ideals.iter_mut().for_each(Ideal::copied);
        self.network.set_server(true);
    }

    /// The tokens that all nodes hold.
    fn held(&self) -> u64 {
        self.processes.iter().map(|process| process.node.held_and_admitted().0).sum()
    }

    fn crash(&mut self, node: usize) {
        self.network.crash(node);
        self.by_lease += self.processes[node].node.held_and_admitted().1;
        let new = self.process(node);
        let old = std::mem::replace(&mut self.processes[node], new);
        (self.processes[node].a_milli, self.processes[node].is_both) = (old.a_milli, old.is_both);
    }

    async fn go(&mut self, millis: u64) {
        for _ in 0..millis {
            for number in 0..NODES {
                self.send_requests(number);
            }
            // All tasks run until they wait for something.
            sleep(Duration::from_millis(1)).await;
            self.network.tick(&mut self.server);
        }
    }

    fn send_requests(&mut self, number: usize) {
        let Process { node, requests, a_milli, is_both } = &mut self.processes[number];
        while requests.try_join_next().is_some() {}
        for _ in 0..*a_milli {
            let (node, decided, time, is_both) =
                (Arc::clone(node), Arc::clone(&self.decided), self.time.clone(), *is_both);
            requests.spawn(async move {
                let asked = time.now();
                let is_allowed = node.admits(is_both).await;
                let mut decided = decided.lock().unwrap_or_else(PoisonError::into_inner);
                decided.note(number, is_both, is_allowed, asked, time.now());
            });
        }
    }

    fn end(self) -> Outcome {
        let at_end: u64 = self.processes.iter().map(|process| process.node.held_and_admitted().1).sum();
        let decided = self.decided();
        Outcome {
            violation: decided.violation.clone(),
            digest: decided.digest,
            admitted: decided.admitted,
            by_lease: self.by_lease + at_end,
            calls: self.server.calls(),
            told: self.told.clone(),
        }
    }
}

/// A rule for all requests, and one for some of them. Without the store, none is admitted.
fn rules(first: &str, second: &str) -> RuleSet {
    let text = format!(
        "rules:\n\
         - {{ id: first, key: user, limit: {first}, on_store_failure: deny, store_deadline: 20ms }}\n\
         - {{ id: second, match: {{ path: /both }}, limit: {second}, on_store_failure: deny, store_deadline: 20ms }}\n"
    );
    RuleSet::parse("rules.yaml", &text).unwrap().rules
}
