//! Rights in a running window: unspent ones can be spent in the receiving region, and spent ones cannot be spent again.

use std::sync::Arc;

use tidegate_core::regions::Share;
use tidegate_redis::RedisStore;
use tidegate_redis::fleet::{FleetControl, FollowingRegion, RegionsControl};
use tidegate_redis::link::Settings;
use tidegate_rules::{Limiter, Request, RuleOutcome, RuleSet};
use tidegate_test_support::eventually;
use tidegate_test_support::redis::{Break, Cluster};

use crate::regions::world::{Region, first_shares, regions, repair};

/// The window lasts long enough, except in the last minute of a year.
const RULES: &str = "
regions: { eu: 50%, us: 50% }
rules:
  - { id: quota, key: user, limit: fixed 100/year calendar }
";

/// The key of a region's record.
const RECORD: &str = "tidegate:{#steering}:regions";

/// A node with state in its region's Redis.
struct Spender {
    limiter: Arc<Limiter<RedisStore>>,
    _following: FollowingRegion,
}

impl Spender {
    fn start(region: &Region) -> Spender {
        Spender::of(&region.name, Settings::standalone(&region.server.url()).unwrap(), &region.control())
    }

    fn of(region: &str, mut settings: Settings, control: &FleetControl) -> Spender {
        let rules = RuleSet::parse("rules.yaml", RULES).unwrap().rules;
        settings.deadline = std::time::Duration::from_secs(5);
        let store = RedisStore::open(settings).unwrap();
        let limiter = Arc::new(Limiter::new(rules, store).in_region(Some(region)));
        let following = control.follow_region(Arc::clone(&limiter), None, |_| {}).unwrap();
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

    /// Makes up to `most` requests of a user, and returns the number of admitted ones.
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
    assert!(moved.is_over() && moved.outcomes.iter().all(|outcome| outcome.stranded.is_none()), "{moved:?}");
    eu.applies(10).await;
    us.applies(90).await;
    // Of the 40 tokens that moved, Alice had spent 35 and Bob none.
    assert_eq!((us.spend("alice", 60).await, us.spend("bob", 60).await), (5, 40));
    assert_eq!((eu.spend("alice", 60).await, eu.spend("bob", 60).await), (0, 10));
    assert_eq!((us.spend("carol", 100).await, eu.spend("carol", 100).await), (90, 10));
    // Back, in the same window: the rights that had moved are returned, and only Dave's remain.
    assert_eq!(us.spend("dave", 20).await, 20);
    let moved = driver.move_share("us", "eu", "", Share::percent(40)).await.unwrap();
    assert!(moved.is_over() && moved.outcomes.iter().all(|outcome| outcome.stranded.is_none()), "{moved:?}");
    us.applies(50).await;
    eu.applies(50).await;
    for user in ["alice", "bob", "carol"] {
        assert_eq!((eu.spend(user, 60).await, us.spend(user, 60).await), (0, 0), "{user}");
    }
    assert_eq!((eu.spend("dave", 60).await, us.spend("dave", 60).await), (50, 30));
}

/// A driver stops after each step, and another one continues.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: make nightly"]
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
            assert!(driver.resume().await.is_over());
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
    assert!(driver.move_share("eu", "us", "", Share::percent(40)).await.unwrap().is_over());
    eu.applies(10).await;
    assert_eq!(regions[1].share().await, Share::percent(90));
    assert_eq!(us.spend("alice", 100).await, 50);
}

/// The region that gives the share cannot be read once the share has arrived. Its rights arrive when it can be, in the same window.
#[tokio::test(flavor = "multi_thread")]
async fn rights_wait_for_a_region_that_cannot_be_read() {
    let (regions, driver, eu, us) = world().await;
    assert_eq!(eu.spend("alice", 45).await, 45);
    let transfer = driver.begin("eu", "us", "", Share::percent(40)).await.unwrap();
    eu.applies(10).await;
    // States are read and scanned on connections that are made after the share has arrived.
    let watched = async {
        let has_arrived = async || regions[1].ledger().await.has_received(&transfer).then_some(());
        eventually("the share", has_arrived).await;
        regions[0].proxy.set(Break::Refuse);
    };
    let (resumed, ()) = tokio::join!(driver.resume(), watched);
    assert!(resumed.outcomes[0].unfinished.is_some() && !resumed.is_over(), "{resumed:?}");
    assert!(regions[0].ledger().await.outgoing.iter().all(|outgoing| outgoing.is(&transfer)));
    us.applies(50).await;
    repair(&regions[0], &driver).await;
    let resumed = driver.resume().await;
    assert!(resumed.is_over() && resumed.outcomes[0].stranded.is_none(), "{resumed:?}");
    us.applies(90).await;
    assert_eq!((us.spend("alice", 100).await, eu.spend("alice", 60).await), (55, 0));
}

/// Keys are charged, and the driver is interrupted before the rights are recorded. A repeated transfer charges no key again.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_charged_once_for_what_it_has_spent() {
    let (regions, driver, eu, us) = world().await;
    assert_eq!(eu.spend("alice", 45).await, 45);
    let transfer = driver.begin("eu", "us", "", Share::percent(40)).await.unwrap();
    eu.applies(10).await;
    driver.deliver(&transfer).await.unwrap();
    let without_rights: String = regions[1].server.run(&["GET", RECORD]);
    for _ in 0..2 {
        driver.bring_rights(&transfer).await.unwrap();
        regions[1].server.run::<()>(&["SET", RECORD, &without_rights]);
    }
    assert!(driver.resume().await.is_over());
    us.applies(90).await;
    assert_eq!((us.spend("alice", 100).await, eu.spend("alice", 60).await), (55, 0));
    // The same in the other direction, in the same window: its marks are its own.
    assert_eq!(us.spend("dave", 60).await, 60);
    assert!(driver.move_share("us", "eu", "", Share::percent(40)).await.unwrap().is_over());
    us.applies(50).await;
    eu.applies(50).await;
    assert_eq!((us.spend("dave", 100).await, eu.spend("dave", 100).await), (0, 40));
}

/// A region's Redis is a cluster: the keys of all its primaries are scanned.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: make nightly"]
async fn rights_of_a_cluster_move() {
    let (cluster, us) = (Cluster::steady(), Region::start("us").await);
    let urls = cluster.urls();
    let settings = || Settings::cluster(&urls).unwrap();
    let control = FleetControl::new(&settings()).unwrap();
    let regions = [("eu".to_owned(), control.clone()), ("us".to_owned(), us.control())].into();
    let driver =
        RegionsControl::new(regions).with_windows(RuleSet::parse("rules.yaml", RULES).unwrap().rules.shared_windows());
    driver.init(&first_shares(&[("eu", 50), ("us", 50)])).await.unwrap();
    let (eu, us) = (Spender::of("eu", settings(), &control), Spender::start(&us));
    eu.applies(50).await;
    let users: Vec<String> = (0..40).map(|number| format!("user-{number}")).collect();
    for user in &users {
        assert_eq!(eu.spend(user, 20).await, 20);
    }
    let primaries_with_keys =
        cluster.nodes.iter().filter(|node| node.try_run::<u32>(&["DBSIZE"]).is_ok_and(|keys| keys > 3)).count();
    assert!(primaries_with_keys >= 3, "{primaries_with_keys}");
    // A slot is on its way to another primary: some of its keys could be missed.
    cluster.begin_move(0, 0, 1);
    let moved = driver.move_share("eu", "us", "", Share::percent(40)).await.unwrap();
    let unfinished = moved.outcomes[0].unfinished.as_deref().unwrap_or_default();
    assert!(unfinished.contains("slots of the cluster are moving"), "{moved:?}");
    cluster.end_move(0, 0, 1);
    eventually("the rights", async || {
        let resumed = driver.resume().await;
        (resumed.is_over() && resumed.outcomes.iter().all(|outcome| outcome.stranded.is_none())).then_some(())
    })
    .await;
    eu.applies(10).await;
    us.applies(90).await;
    for user in &users {
        assert_eq!((us.spend(user, 100).await, eu.spend(user, 20).await), (80, 0), "{user}");
    }
    // Back into the cluster, where marks of charged keys lie beside their states.
    let moved = driver.move_share("us", "eu", "", Share::percent(40)).await.unwrap();
    assert!(moved.is_over() && moved.outcomes.iter().all(|outcome| outcome.stranded.is_none()), "{moved:?}");
    eu.applies(50).await;
    for user in &users {
        assert_eq!((eu.spend(user, 50).await, us.spend(user, 50).await), (0, 0), "{user}");
    }
    assert_eq!(eu.spend("new", 60).await, 50);
}
