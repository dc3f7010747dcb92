//! A node that stops reports everything that it has admitted.

use std::time::Duration;

use tidegate_core::write_behind::WriteBehind;
use tidegate_core::{Charge, Key, Limit, RuleId, Store};
use tidegate_redis::write_behind::WriteBehindTier;
use tidegate_redis::{RedisStore, Settings};
use tidegate_test_support::redis::{Break, Proxy, Server};
use tokio::task::yield_now;
use tokio::time::timeout;

struct Node {
    tier: WriteBehindTier<RedisStore>,
    rule: RuleId,
    limit: Limit,
}

impl Node {
    fn new(url: &str) -> Node {
        let mut settings = Settings::standalone(url).unwrap();
        settings.deadline = Duration::from_secs(60);
        let tier = WriteBehindTier::new(RedisStore::open(settings).unwrap());
        tier.set_nodes(1);
        Node { tier, rule: RuleId::new("soft"), limit: "fixed 1000000/year calendar".parse().unwrap() }
    }

    fn charge<'c>(&'c self, key: &'c Key<'_>) -> Charge<'c> {
        Charge { write_behind: WriteBehind::within(5, 10_000), ..Charge::new(&self.rule, key, &self.limit) }
    }

    async fn admits(&self, key: &Key<'_>) {
        assert!(self.tier.decide(&[self.charge(key)]).await.unwrap().is_allowed());
    }

    /// The cost that Redis has charged.
    async fn charged(&self, key: &Key<'_>) -> u64 {
        let standing = self.tier.peek(&[self.charge(key).cost(0)]).await.unwrap();
        1_000_000 - standing[0].remaining
    }
}

/// Redis stands still while a report is in flight, more is admitted, and the node is told to stop.
#[tokio::test]
async fn what_was_admitted_during_a_report_is_reported_after_it() {
    let server = Server::start();
    let node = Node::new(&server.url());
    let key = Key::from("everyone");
    // The link is up.
    assert_eq!(node.charged(&key).await, 0);
    server.freeze();
    for _ in 0..100 {
        node.admits(&key).await;
        // The first admission is reported at once.
        yield_now().await;
    }
    let thaw = async {
        for _ in 0..10 {
            yield_now().await;
        }
        server.thaw();
    };
    tokio::join!(node.tier.finish(), thaw);
    let stats = node.tier.stats();
    assert_eq!((stats.admitted, stats.reports, stats.cost_unreported), (100, 2, 0));
    assert_eq!(node.charged(&key).await, 100);
}

/// Each answer takes 20 ms: one after the other, they would take 100 seconds.
#[tokio::test]
async fn thousands_of_keys_are_reported_at_the_same_time() {
    const KEYS: u64 = 5_000;
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let node = Node::new(&proxy.url());
    for number in 0..KEYS {
        node.admits(&Key::from(number)).await;
        node.admits(&Key::from(number)).await;
    }
    proxy.set(Break::Delay(Duration::from_millis(20)));
    timeout(Duration::from_secs(60), node.tier.finish()).await.expect("reports that do not wait for each other");
    proxy.set(Break::Nothing);
    let stats = node.tier.stats();
    assert_eq!((stats.cost_reported, stats.cost_unreported), (2 * KEYS, 0));
    for number in [0, KEYS / 2, KEYS - 1] {
        assert_eq!(node.charged(&Key::from(number)).await, 2);
    }
}
