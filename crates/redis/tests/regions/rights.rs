//! Rights of a running window: unspent ones are spent where the share has arrived, and spent ones are not spent again.

use std::sync::Arc;

use tidegate_core::regions::Share;
use tidegate_redis::RedisStore;
use tidegate_redis::fleet::{FollowingRegion, RegionsControl};
use tidegate_redis::link::Settings;
use tidegate_rules::{Limiter, Request, RuleOutcome, RuleSet};
use tidegate_test_redis::eventually;

use crate::world::{Region, regions};

/// The window lasts long enough, except for the last minute of a year.
const RULES: &str = "
regions: { eu: 50%, us: 50% }
rules:
  - { id: quota, key: user, limit: fixed 100/year calendar }
";

/// A node with state in the Redis of its region.
struct Spender {
    limiter: Arc<Limiter<RedisStore>>,
    _following: FollowingRegion,
}

impl Spender {
    fn start(region: &Region) -> Spender {
        let rules = RuleSet::parse("rules.yaml", RULES).unwrap().rules;
        let mut settings = Settings::standalone(&region.server.url()).unwrap();
        settings.deadline = std::time::Duration::from_secs(5);
        let store = RedisStore::open(settings).unwrap();
        let limiter = Arc::new(Limiter::new(rules, store).in_region(Some(&region.name)));
        let following = region.control().follow_region(Arc::clone(&limiter), None, |_| {}).unwrap();
        Spender { limiter, _following: following }
    }

    /// Waits until the node applies this limit.
    async fn applies(&self, limit: u64) {
        let limit = format!("fixed {limit}/year calendar");
        eventually(&limit, async || {
            let explained = self.limiter.rules().rules.explain(&Request::new("GET", "/").user("alice"));
            let RuleOutcome::Matched(charged) = &explained.rules[0].outcome else { return None };
            (charged.limits[0].limit == limit).then_some(())
        })
        .await;
    }

    /// The number of requests of a user that are admitted, of so many.
    async fn spend(&self, user: &str, most: usize) -> usize {
        let mut admitted = 0;
        for _ in 0..most {
            admitted += usize::from(self.limiter.check(&Request::new("GET", "/").user(user)).await.is_allowed());
        }
        admitted
    }
}

async fn world() -> (Vec<Region>, RegionsControl, Spender, Spender) {
    let (regions, driver) = regions(&[("eu", 50), ("us", 50)]).await;
    let driver = driver.with_windows(RuleSet::parse("rules.yaml", RULES).unwrap().rules.shared_windows());
    let (eu, us) = (Spender::start(&regions[0]), Spender::start(&regions[1]));
    eu.applies(50).await;
    us.applies(50).await;
    (regions, driver, eu, us)
}

#[tokio::test(flavor = "multi_thread")]
async fn unspent_rights_of_a_running_window_are_spent_where_the_share_has_arrived() {
    let (_regions, driver, eu, us) = world().await;
    assert_eq!((eu.spend("alice", 45).await, us.spend("alice", 60).await), (45, 50));
    assert_eq!(us.spend("bob", 60).await, 50);
    let moved = driver.move_share("eu", "us", "", Share::percent(40)).await.unwrap();
    assert!(moved.iter().all(|outcome| outcome.parked.is_none() && outcome.stranded.is_none()), "{moved:?}");
    eu.applies(10).await;
    us.applies(90).await;
    // Of the 40 tokens that moved, Alice had spent 35 and Bob none.
    assert_eq!((us.spend("alice", 60).await, us.spend("bob", 60).await), (5, 40));
    assert_eq!((eu.spend("alice", 60).await, eu.spend("bob", 60).await), (0, 10));
    assert_eq!((us.spend("carol", 100).await, eu.spend("carol", 100).await), (90, 10));
    // The way back, in the same window: the rights that came go back, and nothing of them is left but Dave's.
    assert_eq!(us.spend("dave", 20).await, 20);
    let moved = driver.move_share("us", "eu", "", Share::percent(40)).await.unwrap();
    assert!(moved.iter().all(|outcome| outcome.parked.is_none() && outcome.stranded.is_none()), "{moved:?}");
    us.applies(50).await;
    eu.applies(50).await;
    for user in ["alice", "bob", "carol"] {
        assert_eq!((eu.spend(user, 60).await, us.spend(user, 60).await), (0, 0), "{user}");
    }
    assert_eq!((eu.spend("dave", 60).await, us.spend("dave", 60).await), (50, 30));
}

/// A driver stops after each step, and another one continues.
#[tokio::test(flavor = "multi_thread")]
async fn rights_arrive_although_drivers_crash() {
    for crash_after in 1..=3 {
        let (regions, driver, eu, us) = world().await;
        assert_eq!(eu.spend("alice", 45).await, 45);
        let transfer = driver.begin("eu", "us", "", Share::percent(40)).await.unwrap();
        eu.applies(10).await;
        if crash_after > 1 {
            driver.deliver(&transfer).await.unwrap();
        }
        if crash_after > 2 {
            driver.bring_rights(&transfer).await.unwrap();
        }
        for _ in 0..2 {
            driver.resume().await.unwrap();
        }
        us.applies(90).await;
        assert_eq!((us.spend("alice", 100).await, eu.spend("alice", 60).await), (55, 0), "{crash_after}");
        assert!(regions[0].ledger().await.outgoing.is_empty());
    }
}

/// A transfer without rules moves the share from the next window on.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_without_rules_leaves_the_rights_where_they_are() {
    let (regions, driver, eu, us) = world().await;
    let driver = driver.with_windows(Default::default());
    driver.move_share("eu", "us", "", Share::percent(40)).await.unwrap();
    eu.applies(10).await;
    assert_eq!(regions[1].share().await, Share::percent(90));
    assert_eq!(us.spend("alice", 100).await, 50);
}
