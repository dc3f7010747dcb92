//! Tiers of API keys in Redis.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tidegate_core::MemoryStore;
use tidegate_redis::fleet::{FleetControl, ServingTiers};
use tidegate_rules::{Limiter, Request, RuleSet, Secret, TierCounts, TierDirectory, TierLookup, TierSettings};
use tidegate_test_support::redis::{Break, Proxy, Server};

use crate::fleet_control::nodes::fleet_control;

const RULES: &str = "
tiers: { from: store, default: free }
rules: [{ id: r, key: api_key, tiers: { free: fixed 10/day, paid: fixed 100/day } }]
";

const DEADLINE: Duration = Duration::from_secs(5);

/// A node that looks up tiers at `url`.
struct Node {
    limiter: Limiter<MemoryStore>,
    tiers: ServingTiers,
}

impl Node {
    fn new(control: &FleetControl) -> Node {
        let directory = Arc::new(TierDirectory::new(TierSettings::default()));
        let tiers = control.serve_tiers(Arc::clone(&directory), DEADLINE).unwrap();
        let rules = RuleSet::parse("rules.yaml", RULES).unwrap().rules.with_tiers(Some(directory));
        Node { limiter: Limiter::new(rules, MemoryStore::new()), tiers }
    }

    /// The limit of an API key.
    async fn limit(&self, api_key: &str) -> u64 {
        self.limiter.check(&Request::new("GET", "/").api_key(api_key)).await.ruled[0].decision.limit
    }

    fn counts(&self) -> TierCounts {
        self.tiers.directory().counts()
    }
}

fn name(api_key: &str) -> String {
    Secret::default().hide(api_key)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tier_is_set_looked_up_and_removed() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    let entries: Vec<(String, String)> =
        (0..1_200).map(|number| (name(&format!("k_{number}")), "paid".to_owned())).collect();
    control.set_tiers(&entries).await.unwrap();
    let mut listed = control.all_tiers().await.unwrap();
    listed.sort();
    listed.dedup();
    let mut expected = entries.clone();
    expected.sort();
    assert_eq!(listed, expected);

    let node = Node::new(&control);
    assert_eq!((node.limit("k_7").await, node.limit("k_1199").await, node.limit("k_none").await), (100, 100, 10));
    assert_eq!((node.counts().found, node.counts().missing, node.counts().keys), (2, 1, 3));
    assert_eq!(node.limit("k_7").await, 100);
    assert_eq!(node.counts().found, 2, "it is known for a while");

    assert_eq!(control.remove_tiers(&[name("k_7"), name("k_none")]).await.unwrap(), 1);
    assert_eq!(Node::new(&control).limit("k_7").await, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_of_new_keys_share_calls() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    let node = Arc::new(Node::new(&control));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..2_000 {
        let node = Arc::clone(&node);
        tasks.spawn(async move { node.limit(&format!("k_{}", number % 500)).await });
    }
    assert!(tasks.join_all().await.iter().all(|&limit| limit == 10));
    assert_eq!((node.counts().missing, node.counts().failed), (500, 0));
}

/// Redis stops answering. Look-ups are sent in several calls, and none waits for the call before its own.
#[tokio::test]
async fn a_request_waits_for_its_tier_no_longer_than_the_deadline() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let node = Node::new(&fleet_control(&proxy.url()));
    assert_eq!(node.limit("k").await, 10);
    proxy.set(Break::BlackHole);
    // From here on the clock moves only while everyone waits.
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    let keys: Vec<String> = (0..2_000).map(|number| format!("k_{number}")).collect();
    let limits = all(keys.iter().map(|key| node.limit(key))).await;
    assert!(limits.iter().all(|&limit| limit == 10));
    assert_eq!(node.counts().failed, 2_000);
    let waited = begun.elapsed();
    assert!(waited >= DEADLINE && waited < 2 * DEADLINE, "{waited:?}");
}

/// Awaits all of these at the same time.
async fn all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        for (future, output) in futures.iter_mut().filter(|(_, output)| output.is_none()) {
            if let Poll::Ready(ready) = future.as_mut().poll(context) {
                *output = Some(ready);
            }
        }
        if futures.iter().all(|(_, output)| output.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    futures.into_iter().filter_map(|(_, output)| output).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_entry_means_the_default() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    control.set_tiers(&[(name("k_1"), "x".repeat(200))]).await.unwrap();
    let node = Node::new(&control);
    assert_eq!(node.limit("k_1").await, 10);
    assert_eq!(node.counts().broken, 1);
    // Foreign data.
    server.run::<()>(&["DEL", "tidegate:{#steering}:tiers"]);
    server.run::<()>(&["SET", "tidegate:{#steering}:tiers", "x"]);
    assert_eq!(node.limit("k_2").await, 10);
    assert_eq!(node.counts().failed, 1);
    assert!(control.tier(&TierLookup::of("k_2", &Secret::default())).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_fails_means_the_default_and_one_that_comes_back_is_asked() {
    let server = Server::start();
    let direct = fleet_control(&server.url());
    direct.set_tiers(&[(name("k_1"), "paid".to_owned()), (name("k_3"), "paid".to_owned())]).await.unwrap();
    let proxy = Proxy::start(server.port()).await;
    let node = Node::new(&fleet_control(&proxy.url()));
    assert_eq!(node.limit("k_1").await, 100);
    proxy.set(Break::Refuse);
    assert_eq!(node.limit("k_2").await, 10);
    assert_eq!(node.limit("k_1").await, 100, "it is still known");
    assert_eq!(node.counts().failed, 1);
    proxy.set(Break::Nothing);
    let limit = tidegate_test_support::eventually("a tier", async || {
        // A new key for each attempt, because a failed look-up is not retried immediately.
        let key = format!("k_{}", fastrand::u32(1_000..));
        direct.set_tiers(&[(name(&key), "paid".to_owned())]).await.ok()?;
        Some(node.limit(&key).await).filter(|&limit| limit == 100)
    });
    assert_eq!(limit.await, 100);
}
