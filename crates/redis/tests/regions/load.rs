//! Load in two regions while shares move: all admissions together pass one bucket, and shares follow the load.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::regions::Share;
use tidegate_redis::RedisStore;
use tidegate_redis::fleet::{DemandSource, FollowingRegion};
use tidegate_redis::link::Settings;
use tidegate_rules::{Limiter, Request, RuleOutcome, RuleSet};
use tidegate_test_support::eventually;
use tokio::time::Instant;

use crate::regions::world::{RULES, Region, regions};

/// Its burst takes ten seconds to come back, so a moved burst that did not settle would be too much.
const SLOW: &str = "{ regions: { eu: 60%, us: 40% }, rules: [{ id: api, limit: 10/s burst 100 }] }";

/// A request that was admitted between two instants.
struct AdmittedRequest {
    asked: Duration,
    answered: Duration,
}

/// A node with state in its region's Redis, which makes more requests than are admitted while it is loaded.
struct GreedyNode {
    limiter: Arc<Limiter<RedisStore>>,
    is_loaded: AtomicBool,
    is_stopped: AtomicBool,
    asked: Arc<AtomicU64>,
    admitted: AtomicU64,
    _following: FollowingRegion,
}

impl GreedyNode {
    fn start(rules: &str, region: &Region, is_loaded: bool) -> GreedyNode {
        let rules = RuleSet::parse("rules.yaml", rules).unwrap().rules;
        let mut settings = Settings::standalone(&region.server.url()).unwrap();
        // A late call on a busy machine would be admitted without being counted.
        settings.deadline = Duration::from_secs(30);
        let limiter = Arc::new(Limiter::new(rules, RedisStore::open(settings).unwrap()).in_region(Some(&region.name)));
        let asked = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&asked);
        let requests = move || BTreeMap::from([(String::new(), counted.load(Ordering::Relaxed))]);
        let demand = DemandSource { node: format!("{}-1", region.name), requests: Box::new(requests) };
        let following = region.control().follow_region(Arc::clone(&limiter), Some(demand), |_| {}).unwrap();
        GreedyNode {
            limiter,
            is_loaded: AtomicBool::new(is_loaded),
            is_stopped: AtomicBool::new(false),
            asked,
            admitted: AtomicU64::new(0),
            _following: following,
        }
    }

    /// Makes requests until it is stopped. Returns the admitted requests.
    async fn run(&self, start: Instant) -> Vec<AdmittedRequest> {
        let (mut admitted, request) = (Vec::new(), Request::new("GET", "/"));
        while !self.is_stopped.load(Ordering::Relaxed) {
            if !self.is_loaded.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
            let asked = start.elapsed();
            let ruling = self.limiter.check(&request).await;
            self.asked.fetch_add(1, Ordering::Relaxed);
            if ruling.is_allowed() {
                admitted.push(AdmittedRequest { asked, answered: start.elapsed() });
                self.admitted.fetch_add(1, Ordering::Relaxed);
            } else {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        admitted
    }

    /// The rate that the node applies.
    fn rate(&self) -> u64 {
        let explained = self.limiter.rules().rules.explain(&Request::new("GET", "/"));
        let RuleOutcome::Matched(charged) = &explained.rules[0].outcome else { return 0 };
        charged.limits[0].limit.split('/').next().unwrap().parse().unwrap()
    }

    /// Waits until this many more requests were admitted.
    async fn admits(&self, more: u64) {
        let before = self.admitted.load(Ordering::Relaxed);
        let what = format!("{more} more requests");
        eventually(&what, async || (self.admitted.load(Ordering::Relaxed) >= before + more).then_some(())).await;
    }
}

/// Checks that no interval has more admissions than a bucket of 100 with this rate per second permits. Only requests
/// that began and were answered within the interval count, because they were certainly decided within it.
fn pass_one_bucket(rate: f64, mut all: Vec<AdmittedRequest>) -> Result<(), String> {
    all.sort_unstable_by_key(|admitted| admitted.answered);
    for from in all.iter().map(|admitted| admitted.asked) {
        let within = all.iter().filter(|admitted| admitted.asked >= from);
        for (count, to) in within.map(|admitted| admitted.answered).enumerate() {
            let most = 100.0 + rate * (to - from).as_secs_f64();
            if (count + 1) as f64 > most + 1e-3 {
                return Err(format!("{} requests were admitted from {from:?} to {to:?}", count + 1));
            }
        }
    }
    Ok(())
}

#[test]
fn more_than_one_bucket_is_found() {
    let at = |millis: u64| AdmittedRequest {
        asked: Duration::from_millis(millis),
        answered: Duration::from_millis(millis + 1),
    };
    let even = || (0..500).map(|number| at(number * 10));
    assert_eq!(pass_one_bucket(100.0, even().collect()), Ok(()));
    assert!(pass_one_bucket(100.0, even().chain((0..110).map(|_| at(2_000))).collect()).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_regions_under_load_admit_no_more_than_one_limit_while_shares_move() {
    let (regions, driver) = regions(&[("eu", 60), ("us", 40)]).await;
    let start = Instant::now();
    let (eu, us) = (GreedyNode::start(SLOW, &regions[0], false), GreedyNode::start(SLOW, &regions[1], false));
    let moving = async {
        eventually("shares", async || ((eu.rate(), us.rate()) == (6, 4)).then_some(())).await;
        // One region has spent its whole burst just before half of it moves to the other, which spends all that it has.
        eu.is_loaded.store(true, Ordering::Relaxed);
        eu.admits(60).await;
        us.is_loaded.store(true, Ordering::Relaxed);
        let moved = driver.move_share("eu", "us", "", Share::percent(50)).await.unwrap();
        assert!(moved.is_over(), "{moved:?}");
        eventually("the share has settled", async || ((eu.rate(), us.rate()) == (1, 9)).then_some(())).await;
        us.admits(20).await;
        [&eu, &us].iter().for_each(|node| node.is_stopped.store(true, Ordering::Relaxed));
    };
    let (of_eu, of_us, ()) = tokio::join!(eu.run(start), us.run(start), moving);
    assert_eq!(pass_one_bucket(10.0, of_eu.into_iter().chain(of_us).collect()), Ok(()));
}

/// All requests come to one region. Shares follow demand, and it has nine tenths of the limit after three steps. Each takes 5 seconds, and the
/// last one 6 more to settle; the time that is printed is this machine's.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: make nightly"]
async fn the_busy_region_has_nine_tenths_of_the_limit_under_one_sided_load() {
    let (regions, driver) = regions(&[("eu", 60), ("us", 40)]).await;
    let start = Instant::now();
    let (eu, us) = (GreedyNode::start(RULES, &regions[0], false), GreedyNode::start(RULES, &regions[1], true));
    let moving = async {
        eventually("shares", async || ((eu.rate(), us.rate()) == (60, 40)).then_some(())).await;
        let (loaded, steps) = (Instant::now(), AtomicU64::new(0));
        eventually("nine tenths", async || {
            let moved = driver.balance().await.resumed;
            assert!(moved.is_over(), "{moved:?}");
            steps.fetch_add(u64::from(!moved.outcomes.is_empty()), Ordering::Relaxed);
            (us.rate() >= 90).then_some(())
        })
        .await;
        println!("{}/s in us after {:?}", us.rate(), loaded.elapsed());
        assert_eq!(steps.into_inner(), 3);
        assert!(eu.rate() >= 5, "the floor is left");
        us.admits(200).await;
        [&eu, &us].iter().for_each(|node| node.is_stopped.store(true, Ordering::Relaxed));
    };
    let (of_eu, of_us, ()) = tokio::join!(eu.run(start), us.run(start), moving);
    assert_eq!((of_eu.len(), pass_one_bucket(100.0, of_us)), (0, Ok(())));
}
