//! A primary behind Sentinel that is replaced.

use tidegate_redis::Settings;
use tidegate_test_support::eventually;
use tidegate_test_support::redis::{PRIMARY, Sentinels};

use crate::faults::crowd::Crowd;

#[tokio::test(flavor = "multi_thread")]
async fn the_primary_killed() {
    let mut set = Sentinels::start();
    let crowd = Crowd::gather(Settings::sentinel(PRIMARY, set.urls()).unwrap()).await;
    let first = set.primary();
    set.servers[first].kill();
    crowd.policies_decide().await;
    eventually("another primary", async || (set.primary() != first).then_some(())).await;
    let back = crowd.back().await;
    crowd.some_work().await;
    // The replica may lack the last admissions; in the worst case, all of them.
    crowd.disperse("primary behind Sentinel killed", Some(back), 1).await;
}
