//! A fleet on one Redis.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tidegate_core::write_behind::WriteBehind;
use tidegate_core::{Charge, Key, Limit, RuleId, Store};
use tidegate_redis::write_behind::{WriteBehindStats, WriteBehindTier};
use tidegate_redis::{RedisStore, Settings};
use tidegate_test_support::redis::{Break, Proxy, Server};
use tokio::task::JoinSet;

const BURST: u64 = 10_000;
const RATE: u64 = 2_000;
const PERCENT: u8 = 5;
const LENGTH: Duration = Duration::from_secs(8);
const TICK: Duration = Duration::from_millis(5);

pub struct Outcome {
    pub requests: u64,
    /// Requests that the store decided.
    pub asked: u64,
    /// The highest level, beyond its capacity, of one bucket that counts all admissions immediately.
    pub over: f64,
    pub stated: u64,
    pub crashes: u64,
}

/// One bucket that counts all admissions immediately.
struct Monitor {
    level: f64,
    highest: f64,
    at: Instant,
    requests: u64,
}

impl Monitor {
    fn admitted(&mut self) {
        let passed = self.at.elapsed().as_secs_f64();
        self.at = Instant::now();
        self.level = (self.level - passed * RATE as f64).max(0.0) + 1.0;
        self.highest = self.highest.max(self.level);
    }
}

struct Node {
    tier: Arc<WriteBehindTier<RedisStore>>,
    task: JoinSet<()>,
}

struct Fleet {
    proxy: Proxy,
    rule: String,
    size: u32,
    setting: WriteBehind,
    monitor: Arc<Mutex<Monitor>>,
}

impl Fleet {
    fn node(&self) -> Node {
        let mut settings = Settings::standalone(&self.proxy.url()).expect("an address");
        settings.deadline = Duration::from_millis(200);
        let tier = Arc::new(WriteBehindTier::new(RedisStore::open(settings).expect("settings")));
        tier.set_nodes(self.size);
        let (of_task, monitor, setting) = (tier.clone(), self.monitor.clone(), self.setting);
        let (rule, each) = (self.rule.clone(), 4.0 * RATE as f64 * TICK.as_secs_f64() / f64::from(self.size));
        let mut task = JoinSet::new();
        task.spawn(async move {
            let limit: Limit = format!("{RATE}/s burst {BURST}").parse().expect("a limit");
            let (rule, key, mut due) = (RuleId::new(&rule), Key::from("everyone"), 0.0);
            let mut ticks = tokio::time::interval(TICK);
            loop {
                ticks.tick().await;
                due += each;
                while due >= 1.0 {
                    due -= 1.0;
                    let charge = Charge { write_behind: Some(setting), ..Charge::new(&rule, &key, &limit) };
                    let answer = of_task.decide(&[charge]).await;
                    let mut monitor = monitor.lock().expect("no panic");
                    monitor.requests += 1;
                    // Without a response, the rule's failure policy denies.
                    if answer.is_ok_and(|answer| answer.is_allowed()) {
                        monitor.admitted();
                    }
                }
            }
        });
        Node { tier, task }
    }
}

pub async fn run(server: &Server, size: u32, millis: u16, has_faults: bool) -> Outcome {
    let monitor = Monitor { level: 0.0, highest: 0.0, at: Instant::now(), requests: 0 };
    let fleet = Fleet {
        proxy: Proxy::start(server.port()).await,
        rule: format!("fleet-{size}-{millis}-{has_faults}"),
        size,
        setting: WriteBehind::within(PERCENT, millis).expect("a setting"),
        monitor: Arc::new(Mutex::new(monitor)),
    };
    // Empties the bucket from outside, so that no node knows.
    let other = RedisStore::open(Settings::standalone(&server.url()).expect("an address")).expect("settings");
    let limit: Limit = format!("{RATE}/s burst {BURST}").parse().expect("a limit");
    let (rule, key) = (RuleId::new(&fleet.rule), Key::from("everyone"));
    let emptied = loop {
        // The connection may not be established yet.
        if let Ok(answer) = other.decide(&[Charge::new(&rule, &key, &limit).cost(BURST)]).await {
            break answer;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(emptied.is_allowed());
    {
        let mut monitor = fleet.monitor.lock().expect("no panic");
        (monitor.level, monitor.highest, monitor.at) = (BURST as f64, BURST as f64, Instant::now());
    }
    let mut nodes: Vec<Node> = (0..size).map(|_| fleet.node()).collect();
    let (begun, mut crashes, mut gone) = (Instant::now(), 0, WriteBehindStats::default());
    let faults = [Break::BeforeReply, Break::BeforeRequest, Break::BlackHole, Break::Refuse];
    for number in 0.. {
        tokio::time::sleep(Duration::from_millis(700)).await;
        if begun.elapsed() >= LENGTH {
            break;
        }
        if has_faults {
            fleet.proxy.set(faults[number % faults.len()]);
            tokio::time::sleep(Duration::from_millis(300)).await;
            fleet.proxy.set(Break::Nothing);
            let at = number % nodes.len();
            let mut old = std::mem::replace(&mut nodes[at], fleet.node());
            old.task.shutdown().await;
            let stats = old.tier.stats();
            gone.cost_lost += stats.cost_lost;
            gone.asked += stats.asked;
            crashes += 1;
        }
    }
    for node in &mut nodes {
        node.task.shutdown().await;
    }
    let sum = |count: fn(&WriteBehindStats) -> u64| nodes.iter().map(|node| count(&node.tier.stats())).sum::<u64>();
    let most = fleet.setting.most_unreported(&limit, size);
    let lost = gone.cost_lost + sum(|stats| stats.cost_lost);
    let monitor = fleet.monitor.lock().expect("no panic");
    Outcome {
        requests: monitor.requests,
        asked: gone.asked + sum(|stats| stats.asked),
        over: monitor.highest - BURST as f64,
        stated: (u64::from(size) + crashes) * most + lost,
        crashes,
    }
}
