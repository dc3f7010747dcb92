//! Nodes that lease slots of one concurrency limit in blocks, on a real server that fails: at no instant do more requests
//! hold slots than there are.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use tidegate_core::contract::seed::seed;
use tidegate_core::{Charge, Key, Limit, RuleId, Store};
use tidegate_redis::tier::Tier;
use tidegate_redis::{RedisStore, Settings};
use tidegate_test_support::eventually;
use tidegate_test_support::redis::{Break, Proxy, Server};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const NODES: usize = 8;
/// Number of clients of a node. All clients together would use three times as many slots as there are.
const CLIENTS: usize = 24;
const SLOTS: usize = 64;
/// If an answer is lost, slots become free after the time to live, or after twice that in a block.
const LIMIT: &str = "concurrent 64 ttl 3s";
const TTL: Duration = Duration::from_secs(3);

/// The requests that hold slots.
#[derive(Default)]
struct SlotUse {
    /// When they asked for their slots. After the time to live, they no longer hold any.
    asked: Mutex<Vec<Instant>>,
    most: AtomicUsize,
    begun: AtomicU64,
    denied: AtomicU64,
    is_over: AtomicBool,
}

/// A request that holds a slot. The counted time is within the time for which it holds the slot.
struct Request<'r> {
    slots: &'r SlotUse,
    asked: Instant,
}

impl Request<'_> {
    fn begin(slots: &SlotUse, asked: Instant) -> Request<'_> {
        let mut all = slots.asked.lock().unwrap();
        all.push(asked);
        let held = all.iter().filter(|asked| asked.elapsed() < TTL).count();
        slots.most.fetch_max(held, Ordering::Relaxed);
        slots.begun.fetch_add(1, Ordering::Relaxed);
        Request { slots, asked }
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let mut all = self.slots.asked.lock().unwrap();
        let place = all.iter().position(|asked| *asked == self.asked).unwrap();
        all.swap_remove(place);
    }
}

struct SlotFleet {
    nodes: Vec<Arc<Tier<RedisStore>>>,
    slots: Arc<SlotUse>,
    /// The clients of each node.
    clients: Vec<JoinSet<()>>,
    dice: Rng,
}

impl SlotFleet {
    /// Starts nodes, and waits until most of them hold blocks and requests are denied. Node `n` connects to `url(n)`.
    async fn start(url: impl Fn(usize) -> String) -> SlotFleet {
        let dice = Rng::with_seed(seed(fastrand::u64(..)));
        let mut fleet = SlotFleet { nodes: Vec::new(), slots: Arc::default(), clients: Vec::new(), dice };
        for number in 0..NODES {
            fleet.add(&url(number));
        }
        fleet.is_busy().await;
        fleet
    }

    fn add(&mut self, url: &str) {
        let tier = Arc::new(Tier::new(RedisStore::open(Settings::standalone(url).unwrap()).unwrap()));
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            clients.spawn(requests(Arc::clone(&tier), Arc::clone(&self.slots), self.dice.fork()));
        }
        self.nodes.push(tier);
        self.clients.push(clients);
    }

    /// Waits until new requests begin by leases and others are denied.
    async fn is_busy(&self) {
        let by_lease = || self.nodes.iter().filter_map(|node| node.stats().leases).map(|leases| leases.admitted).sum();
        let denied = || self.slots.denied.load(Ordering::Relaxed);
        let before: (u64, u64) = (by_lease(), denied());
        eventually("requests that begin by leases", async || {
            (by_lease() > before.0 + 200 && denied() > before.1 + 200).then_some(())
        })
        .await;
    }

    /// Waits until a call for blocks has failed at each of these nodes.
    async fn fails(&self, nodes: impl Fn(usize) -> bool) {
        let failed = |number: usize| self.nodes[number].stats().leases.map_or(0, |leases| leases.failed);
        let before: Vec<u64> = (0..self.nodes.len()).map(failed).collect();
        eventually("calls that fail", async || {
            (0..self.nodes.len())
                .filter(|number| nodes(*number))
                .all(|number| failed(number) > before[number])
                .then_some(())
        })
        .await;
    }

    /// Stops the clients. Returns the largest number of requests that held slots at once.
    async fn end(mut self) -> usize {
        self.slots.is_over.store(true, Ordering::Relaxed);
        for clients in &mut self.clients {
            while clients.join_next().await.is_some() {}
        }
        println!("{} begun, at most {} at once", self.slots.begun.load(Ordering::Relaxed), self.most());
        self.most()
    }

    fn most(&self) -> usize {
        self.slots.most.load(Ordering::Relaxed)
    }
}

/// Sends one request after the other, each of which holds a slot for some milliseconds.
async fn requests(tier: Arc<Tier<RedisStore>>, slots: Arc<SlotUse>, mut dice: Rng) {
    let (rule, key, limit): (_, _, Limit) = (RuleId::new("work"), Key::from("everyone"), LIMIT.parse().unwrap());
    while !slots.is_over.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let answer = tier.decide(&[Charge::new(&rule, &key, &limit)]).await;
        match answer.ok().map(|answer| answer.receipt) {
            Some(Some(receipt)) => {
                let request = Request::begin(&slots, asked);
                sleep(Duration::from_millis(dice.u64(1..10))).await;
                drop(request);
                let _ = tier.settle(&receipt, &[1]).await;
            }
            Some(None) => {
                slots.denied.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(2)).await;
            }
            None => sleep(Duration::from_millis(5)).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_are_kept_to_by_nodes_that_are_cut_off_and_a_server_that_stands_still() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let is_behind = |node: usize| node.is_multiple_of(2);
    let fleet = SlotFleet::start(|node| if is_behind(node) { proxy.url() } else { server.url() }).await;
    for breaks in [Break::BlackHole, Break::Refuse] {
        proxy.set(breaks);
        fleet.fails(is_behind).await;
        proxy.set(Break::Nothing);
        fleet.is_busy().await;
    }
    server.freeze();
    fleet.fails(|_| true).await;
    server.thaw();
    fleet.is_busy().await;
    let most = fleet.end().await;
    assert!((8..=SLOTS).contains(&most), "{most} at once");
}

/// Crashed nodes leave blocks behind. Their requests end immediately, and their slots end later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_of_nodes_that_crash_stay_counted() {
    let server = Server::start();
    let mut fleet = SlotFleet::start(|_| server.url()).await;
    for _ in 0..NODES / 2 {
        drop((fleet.clients.remove(0), fleet.nodes.remove(0)));
    }
    for _ in 0..NODES / 2 {
        fleet.add(&server.url());
    }
    fleet.is_busy().await;
    let most = fleet.end().await;
    assert!(most <= SLOTS, "{most} at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_loses_its_data_costs_as_many_slots_once() {
    let server = Server::start();
    let fleet = SlotFleet::start(|_| server.url()).await;
    server.run::<()>(&["FLUSHALL"]);
    fleet.is_busy().await;
    let most = fleet.end().await;
    assert!((8..=2 * SLOTS).contains(&most), "{most} at once");
}
