//! Greedy load in two regions while shares move: all that they admit, in its order, passes one bucket.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_core::regions::Share;
use tidegate_core::{Limit, Micros, Timestamp};
use tidegate_redis::RedisStore;
use tidegate_redis::link::Settings;
use tidegate_rules::{Limiter, Request, RuleSet};
use tidegate_test_redis::eventually;
use tokio::time::Instant;

use crate::world::{RULES, Region, regions};

/// The instants at which a greedy node admitted a request.
async fn greedy(region: &Region, start: Instant, stop: Arc<AtomicBool>, is_loaded: Arc<AtomicBool>) -> Vec<Duration> {
    let rules = RuleSet::parse("rules.yaml", RULES).unwrap().rules;
    let store = RedisStore::open(Settings::standalone(&region.server.url()).unwrap()).unwrap();
    let limiter = Arc::new(Limiter::new(rules, store).in_region(Some(&region.name)));
    let _following = region.control().follow_region(Arc::clone(&limiter), None, |_| {}).unwrap();
    let (mut admitted, request) = (Vec::new(), Request::new("GET", "/"));
    while !stop.load(Ordering::Relaxed) {
        if !is_loaded.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        let ruling = limiter.check(&request).await;
        if ruling.is_allowed() {
            admitted.push(start.elapsed());
        } else {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    admitted
}

#[tokio::test(flavor = "multi_thread")]
async fn two_regions_under_load_admit_no_more_than_one_limit_while_shares_move() {
    let (regions, driver) = regions(&[("eu", 60), ("us", 40)]).await;
    let (stop, start) = (Arc::new(AtomicBool::new(false)), Instant::now());
    // One region is quiet until the share has moved away from the other, and has its whole burst then.
    let [eu_loaded, us_loaded] = [true, false].map(|is_loaded| Arc::new(AtomicBool::new(is_loaded)));
    let (eu, us) = (
        greedy(&regions[0], start, Arc::clone(&stop), eu_loaded),
        greedy(&regions[1], start, Arc::clone(&stop), Arc::clone(&us_loaded)),
    );
    let moving = async {
        let moved = driver.move_share("eu", "us", "", Share::percent(50)).await.unwrap();
        assert!(moved.iter().all(|delivery| delivery.parked.is_none()));
        us_loaded.store(true, Ordering::Relaxed);
        let until = start + Duration::from_secs(12);
        eventually("the share has settled under load", async || (Instant::now() > until).then_some(())).await;
        stop.store(true, Ordering::Relaxed);
    };
    let (eu, us, ()) = tokio::join!(eu, us, moving);
    let late = us.iter().filter(|at| **at > Duration::from_secs(11)).count();
    assert!(late > 70, "the share has settled by then: {late} in the last second");
    let mut all: Vec<Duration> = eu.into_iter().chain(us).collect();
    all.sort_unstable();
    // A node notes an admission later than Redis made it. What 100 ms bring is allowed for that.
    let whole: Limit = "100/s burst 110".parse().unwrap();
    let (mut state, origin) = (whole.fresh(), Timestamp::from_secs(1_000));
    for at in all {
        let decision = whole.decide(&mut state, 1, origin + Micros::from(at));
        assert!(decision.is_allowed(), "more than the limit after {at:?}");
    }
}
