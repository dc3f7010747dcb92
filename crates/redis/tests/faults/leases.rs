//! Nodes with leases that want more than a limit allows, on a real server that fails: no fault admits more than its bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::{Charge, Key, Limit, RuleId, Store};
use tidegate_redis::tier::{LeaseStats, Tier};
use tidegate_redis::{RedisStore, Settings};
use tidegate_test_redis::{Break, Flavour, Proxy, Server, eventually};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};

const NODES: usize = 6;
const LIMIT: &str = "400/s burst 400";
const BURST: f64 = 400.0;
const RATE: f64 = 400.0;

struct LeasedFleet {
    nodes: Vec<Arc<Tier<RedisStore>>>,
    begun: Instant,
    admitted: Arc<AtomicU64>,
    is_done: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl LeasedFleet {
    /// Starts nodes that ask twice a millisecond each, and waits until they decide by leases.
    async fn start(server: &Server) -> LeasedFleet {
        let mut fleet = LeasedFleet {
            nodes: Vec::new(),
            begun: Instant::now(),
            admitted: Arc::default(),
            is_done: Arc::default(),
            tasks: JoinSet::new(),
        };
        for _ in 0..NODES {
            let tier = Arc::new(Tier::new(RedisStore::open(Settings::standalone(&server.url()).unwrap()).unwrap()));
            fleet.nodes.push(Arc::clone(&tier));
            let (admitted, is_done) = (Arc::clone(&fleet.admitted), Arc::clone(&fleet.is_done));
            fleet.tasks.spawn(async move {
                let limit: Limit = LIMIT.parse().unwrap();
                let (rule, key, mut ticks) =
                    (RuleId::new("all"), Key::from("everyone"), interval(Duration::from_millis(1)));
                while !is_done.load(Ordering::Relaxed) {
                    ticks.tick().await;
                    for _ in 0..2 {
                        // Without an answer, a rule's policy would decide. Here nothing is admitted then.
                        let answer = tier.decide(&[Charge::new(&rule, &key, &limit)][..]).await;
                        admitted
                            .fetch_add(u64::from(answer.is_ok_and(|answer| answer.is_allowed())), Ordering::Relaxed);
                    }
                }
            });
        }
        fleet.admits_by_leases().await;
        fleet
    }

    fn leases(&self) -> impl Iterator<Item = LeaseStats> {
        self.nodes.iter().filter_map(|node| node.stats().leases)
    }

    /// Waits until every node has admitted by leases again.
    async fn admits_by_leases(&self) {
        let before: Vec<u64> = self.leases().map(|leases| leases.admitted).collect();
        eventually("admissions by leases", async || {
            self.leases().zip(&before).all(|(leases, before)| leases.admitted > before + 20).then_some(())
        })
        .await;
    }

    /// Waits until a renewal of every node has failed.
    async fn fails(&self) {
        let before: Vec<u64> = self.leases().map(|leases| leases.failed).collect();
        eventually("renewals that fail", async || {
            self.leases().zip(&before).all(|(leases, before)| leases.failed > *before).then_some(())
        })
        .await;
    }

    /// Ends, and compares the admissions with the bound after so many losses of all data.
    async fn end(self, losses: u32) {
        self.end_within(BURST * f64::from(losses)).await;
    }

    /// Ends, and compares the admissions with the bound, which faults have raised by so much.
    async fn end_within(mut self, more: f64) {
        self.is_done.store(true, Ordering::Relaxed);
        while self.tasks.join_next().await.is_some() {}
        let admitted = self.admitted.load(Ordering::Relaxed);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let admitted = admitted as f64;
        let bound = BURST + more + RATE * self.begun.elapsed().as_secs_f64();
        println!("{admitted} admitted, bound {bound:.0}");
        assert!(admitted <= bound, "{admitted} admitted, bound {bound}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_kept_to_while_a_server_stands_still() {
    let server = Server::start();
    let fleet = LeasedFleet::start(&server).await;
    for _ in 0..2 {
        server.freeze();
        fleet.fails().await;
        server.thaw();
        fleet.admits_by_leases().await;
    }
    fleet.end(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_loses_its_data_costs_one_burst() {
    let server = Server::start();
    let fleet = LeasedFleet::start(&server).await;
    server.run::<()>(&["FLUSHALL"]);
    fleet.admits_by_leases().await;
    fleet.end(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_starts_empty_costs_one_burst() {
    let mut server = Server::start();
    let fleet = LeasedFleet::start(&server).await;
    server.kill();
    fleet.fails().await;
    server.restart();
    fleet.admits_by_leases().await;
    fleet.end(1).await;
}

/// The replica is cut off from the primary, which goes on, and takes its place and its address. What was granted meanwhile is unknown
/// to it, except for what nodes still hold and claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_lags_costs_what_it_did_not_know_of() {
    let primary = Server::start();
    let between = Proxy::start(primary.port()).await;
    let replica = Server::launch(Flavour::Redis, &format!("replicaof 127.0.0.1 {}\n", between.port()));
    replica.wait_until_ready();
    let is_linked = || replica.run::<String>(&["INFO", "replication"]).contains("link_status:up");
    eventually("a replica that follows", async || is_linked().then_some(())).await;
    let fleet = LeasedFleet::start(&primary).await;
    between.set(Break::Refuse);
    eventually("a replica that is cut off", async || (!is_linked()).then_some(())).await;
    let granted = |fleet: &LeasedFleet| fleet.leases().map(|leases| leases.granted).sum::<u64>();
    let known = granted(&fleet);
    fleet.admits_by_leases().await;
    let port = primary.port().to_string();
    drop(primary);
    let unknown = granted(&fleet) - known;
    replica.run::<()>(&["REPLICAOF", "NO", "ONE"]);
    eventually("the address", async || replica.try_run::<()>(&["CONFIG", "SET", "port", &port]).ok()).await;
    fleet.admits_by_leases().await;
    // The last answers may have been lost, and what the fleet decided without leases is not among the grants.
    let more = u32::try_from(unknown).unwrap();
    fleet.end_within(f64::from(more) + BURST / 2.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_crash_take_nothing_with_them_but_their_leases() {
    let server = Server::start();
    let fleet = LeasedFleet::start(&server).await;
    for _ in 0..3 {
        let others = LeasedFleet::start(&server).await;
        let admitted = Arc::clone(&others.admitted);
        // Their tokens are neither spent nor returned.
        drop(others);
        fleet.admitted.fetch_add(admitted.load(Ordering::Relaxed), Ordering::Relaxed);
        fleet.admits_by_leases().await;
    }
    fleet.end(0).await;
}
