//! Nodes with leases of one key, whose admissions are recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::{Charge, Key, Limit, RuleId, Store};
use tidegate_redis::tier::{LeaseStats, Tier};
use tidegate_redis::{RedisStore, Settings};
use tidegate_test_support::eventually;
use tidegate_test_support::redis::{Admission, Admissions};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

const NODES: usize = 20;
const LIMIT: &str = "4000/s burst 4000";
pub(super) const BURST: f64 = 4_000.0;
const RATE: f64 = 4_000.0;

/// Time between two checks of the load by a node.
const TICK: Duration = Duration::from_millis(10);
/// Requests of a node per tick. With `HALF`, all nodes together use half of the limit; the other value is ten times what
/// the limit allows.
const HALF: u64 = 1;
const TOO_MUCH: u64 = 20;

/// Number of denials after which the limit is certainly used up. Remembered denials end within milliseconds.
const MANY: u64 = 4_000;

/// The requests of all nodes.
struct Load {
    /// Requests of a node per tick; zero to stop.
    requests: AtomicU64,
    denied: AtomicU64,
}

pub(super) struct LeasedFleet {
    pub(super) nodes: Vec<Arc<Tier<RedisStore>>>,
    load: Arc<Load>,
    tasks: JoinSet<Vec<Admission>>,
    admissions: Vec<Admission>,
}

impl LeasedFleet {
    /// Starts nodes that together use half of the limit, and waits until all of them hold leases. Node `n` connects to
    /// `url(n)`.
    pub(super) async fn start(url: impl Fn(usize) -> String) -> LeasedFleet {
        let load = Arc::new(Load { requests: AtomicU64::new(HALF), denied: AtomicU64::new(0) });
        let mut fleet = LeasedFleet { nodes: Vec::new(), load, tasks: JoinSet::new(), admissions: Vec::new() };
        for number in 0..NODES {
            let tier = Arc::new(Tier::new(RedisStore::open(Settings::standalone(&url(number)).unwrap()).unwrap()));
            fleet.nodes.push(Arc::clone(&tier));
            fleet.tasks.spawn(requests(tier, Arc::clone(&fleet.load)));
        }
        fleet.holds_leases().await;
        fleet
    }

    fn leases(&self) -> impl Iterator<Item = LeaseStats> {
        self.nodes.iter().filter_map(|node| node.stats().leases)
    }

    fn sum(&self, count: impl Fn(&LeaseStats) -> u64) -> u64 {
        self.leases().map(|leases| count(&leases)).sum()
    }

    /// The tokens held by all nodes.
    pub(super) fn held(&self) -> u64 {
        self.sum(|leases| leases.outstanding)
    }

    /// Everything that the servers have charged for the fleet: granted tokens, and requests decided without leases.
    pub(super) fn charged(&self) -> u64 {
        self.sum(|leases| leases.granted) + self.nodes.iter().map(|node| node.stats().asked).sum::<u64>()
    }

    /// Waits until most nodes hold tokens at the same time, and returns their number.
    pub(super) async fn holds_leases(&self) -> u64 {
        eventually("nodes that hold leases", async || {
            let leased = self.leases().filter(|leases| leases.outstanding > 0).count();
            (leased >= NODES * 3 / 4).then(|| self.held())
        })
        .await
    }

    /// Waits until every node has admitted by leases again.
    pub(super) async fn admits_by_leases(&self) {
        let before: Vec<u64> = self.leases().map(|leases| leases.admitted).collect();
        eventually("admissions by leases", async || {
            self.leases().zip(&before).all(|(leases, before)| leases.admitted > before + 20).then_some(())
        })
        .await;
    }

    /// Waits until a renewal of each of these nodes has failed.
    pub(super) async fn fails(&self, nodes: impl Fn(usize) -> bool) {
        let before: Vec<u64> = self.leases().map(|leases| leases.failed).collect();
        eventually("renewals that fail", async || {
            let mut changes = self.leases().zip(&before).enumerate().filter(|(number, _)| nodes(*number));
            changes.all(|(_, (leases, before))| leases.failed > *before).then_some(())
        })
        .await;
    }

    /// Makes all nodes send ten times as many requests as the limit allows, until everything is used up.
    ///
    /// A fixed time would be too short on a slow machine, and a number of denials might be remembered denials from before a
    /// fault.
    pub(super) async fn wants_too_much(&self) {
        self.load.requests.store(TOO_MUCH, Ordering::Relaxed);
        sleep(Duration::from_millis(1_500)).await;
        let denied = || self.load.denied.load(Ordering::Relaxed);
        let before = denied();
        eventually("a limit that is used up", async || (denied() > before + MANY).then_some(())).await;
    }

    /// Makes all nodes together use half of the limit again.
    pub(super) fn wants_half(&self) {
        self.load.requests.store(HALF, Ordering::Relaxed);
    }

    /// Crashes all nodes and replaces them: their tokens are neither spent nor returned.
    pub(super) async fn crash(&mut self, url: impl Fn(usize) -> String) {
        self.load.requests.store(0, Ordering::Relaxed);
        while let Some(admissions) = self.tasks.join_next().await {
            self.admissions.extend(admissions.unwrap());
        }
        self.nodes.clear();
        let LeasedFleet { nodes, load, tasks, .. } = LeasedFleet::start(url).await;
        (self.nodes, self.load, self.tasks) = (nodes, load, tasks);
    }

    /// Stops the nodes, and returns the admissions.
    pub(super) async fn end(mut self) -> Admissions {
        self.load.requests.store(0, Ordering::Relaxed);
        while let Some(admissions) = self.tasks.join_next().await {
            self.admissions.extend(admissions.unwrap());
        }
        Admissions::new(self.admissions, BURST, RATE)
    }
}

/// Sends requests until the load is zero.
async fn requests(tier: Arc<Tier<RedisStore>>, load: Arc<Load>) -> Vec<Admission> {
    let limit: Limit = LIMIT.parse().unwrap();
    let (rule, key, mut ticks) = (RuleId::new("all"), Key::from("everyone"), interval(TICK));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut admissions = Vec::new();
    loop {
        ticks.tick().await;
        let requests = load.requests.load(Ordering::Relaxed);
        if requests == 0 {
            return admissions;
        }
        for _ in 0..requests {
            let asked = Instant::now().into_std();
            match tier.decide(&[Charge::new(&rule, &key, &limit)]).await {
                Ok(answer) if answer.is_allowed() => {
                    admissions.push(Admission { asked, answered: Instant::now().into_std() });
                }
                Ok(_) => {
                    load.denied.fetch_add(1, Ordering::Relaxed);
                }
                // A rule's policy would decide. In this test, nothing is admitted.
                Err(_) => {}
            }
        }
    }
}
