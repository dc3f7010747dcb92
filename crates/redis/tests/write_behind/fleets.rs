//! Nodes with more requests than a limit allows, on a real server, with cuts and crashes: they never admit more than the
//! stated bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::write_behind::WriteBehind;
use tidegate_core::{Charge, Key, Limit, RuleId, Store};
use tidegate_redis::write_behind::{WriteBehindStats, WriteBehindTier};
use tidegate_redis::{RedisStore, Settings};
use tidegate_test_support::eventually;
use tidegate_test_support::redis::{Break, Proxy, Server};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};

const BURST: u64 = 1_000;
const RATE: u64 = 1_000;

struct Node {
    tier: Arc<WriteBehindTier<RedisStore>>,
    task: JoinSet<()>,
}

struct Fleet {
    proxy: Proxy,
    nodes: Vec<Node>,
    setting: WriteBehind,
    size: u32,
    admitted: Arc<AtomicU64>,
    begun: Instant,
    crashes: u64,
    /// Costs that nodes had lost before they crashed.
    lost: u64,
}

impl Fleet {
    /// Starts nodes behind one proxy, each with several requests per millisecond, and waits until all have reported.
    async fn start(server: &Server, size: u32, millis: u16) -> Fleet {
        let mut fleet = Fleet {
            proxy: Proxy::start(server.port()).await,
            nodes: Vec::new(),
            setting: WriteBehind::within(10, millis).unwrap(),
            size,
            admitted: Arc::default(),
            begun: Instant::now(),
            crashes: 0,
            lost: 0,
        };
        for _ in 0..size {
            let node = fleet.node();
            fleet.nodes.push(node);
        }
        fleet.reports(5).await;
        fleet
    }

    fn node(&self) -> Node {
        let mut settings = Settings::standalone(&self.proxy.url()).unwrap();
        settings.deadline = Duration::from_millis(200);
        let tier = Arc::new(WriteBehindTier::new(RedisStore::open(settings).unwrap()));
        tier.set_nodes(self.size);
        let (of_task, admitted, setting) = (Arc::clone(&tier), Arc::clone(&self.admitted), self.setting);
        let each = (4 * RATE / 1_000 / u64::from(self.size)).max(1);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let limit: Limit = format!("{RATE}/s burst {BURST}").parse().unwrap();
            let (rule, key) = (RuleId::new("soft"), Key::from("everyone"));
            let mut ticks = interval(Duration::from_millis(1));
            loop {
                ticks.tick().await;
                for _ in 0..each {
                    let charge = Charge { write_behind: Some(setting), ..Charge::new(&rule, &key, &limit) };
                    // Without an answer, a rule's policy would decide. In this test, nothing is admitted then.
                    let answer = of_task.decide(&[charge]).await;
                    let is_admitted = answer.is_ok_and(|answer| answer.is_allowed());
                    admitted.fetch_add(u64::from(is_admitted), Ordering::Relaxed);
                }
            }
        });
        Node { tier, task }
    }

    fn stats(&self) -> impl Iterator<Item = WriteBehindStats> {
        self.nodes.iter().map(|node| node.tier.stats())
    }

    /// Waits until every node has had this many more reports answered.
    async fn reports(&self, more: u64) {
        let before: Vec<u64> = self.stats().map(|stats| stats.reports).collect();
        eventually("reports", async || {
            self.stats().zip(&before).all(|(stats, before)| stats.reports >= before + more).then_some(())
        })
        .await;
    }

    /// Waits until a report of every node has failed.
    async fn fails(&self) {
        let failed = |stats: &WriteBehindStats| stats.not_sent + stats.lost;
        let before: Vec<u64> = self.stats().map(|stats| failed(&stats)).collect();
        eventually("reports that fail", async || {
            self.stats().zip(&before).all(|(stats, before)| failed(&stats) > *before).then_some(())
        })
        .await;
    }

    /// Crashes a node without notice, and replaces it.
    fn crash(&mut self, number: usize) {
        let node = self.node();
        let mut old = std::mem::replace(&mut self.nodes[number], node);
        old.task.abort_all();
        self.lost += old.tier.stats().cost_lost;
        self.crashes += 1;
    }

    /// Stops the nodes, and compares the admissions with the bound.
    async fn end(mut self) {
        for node in &mut self.nodes {
            node.task.shutdown().await;
        }
        let admitted = self.admitted.load(Ordering::Relaxed);
        let limit: Limit = format!("{RATE}/s burst {BURST}").parse().unwrap();
        let most = self.setting.most_unreported(&limit, self.size);
        // Lost costs count against the node until the limit has recovered, and not after that.
        let lost: u64 = self.lost + self.stats().map(|stats| stats.cost_lost).sum::<u64>();
        let elapsed = u64::try_from(self.begun.elapsed().as_micros()).unwrap();
        let ideal = BURST + (RATE * elapsed).div_ceil(1_000_000);
        let beyond = u64::from(self.size) * most + self.crashes * most + lost;
        println!("{} nodes: {admitted} admitted, limit {ideal}, stated {beyond} more", self.size);
        assert!(admitted <= ideal + beyond, "{admitted} admitted, limit {ideal}, stated {beyond} more");
        let by_copies: u64 = self.stats().map(|stats| stats.admitted).sum();
        assert!(by_copies > 0, "the copies decide");
    }
}

async fn with_cuts_and_crashes(size: u32, millis: u16) {
    let server = Server::start();
    let mut fleet = Fleet::start(&server, size, millis).await;
    for breaks in [Break::BeforeReply, Break::BeforeRequest, Break::BlackHole, Break::Refuse] {
        fleet.proxy.set(breaks);
        fleet.fails().await;
        fleet.crash(0);
        fleet.proxy.set(Break::Nothing);
        fleet.reports(1).await;
        fleet.crash(size as usize - 1);
        fleet.reports(1).await;
    }
    fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_keep_the_bound_through_cuts_and_crashes() {
    with_cuts_and_crashes(2, 50).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_nodes_keep_the_bound_through_cuts_and_crashes() {
    with_cuts_and_crashes(5, 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_nodes_keep_the_bound_through_cuts_and_crashes() {
    with_cuts_and_crashes(20, 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_costs_no_more_than_the_bound() {
    let server = Server::start();
    let fleet = Fleet::start(&server, 3, 100).await;
    for _ in 0..2 {
        server.freeze();
        fleet.fails().await;
        server.thaw();
        fleet.reports(2).await;
    }
    fleet.end().await;
}
