//! A primary monitored by sentinels, which is replaced while it is in use.

use std::sync::Arc;
use std::time::Duration;

use tidegate_redis::link::{Address, Link, Settings, Unreachable};
use tidegate_test_support::redis::{PRIMARY, Sentinels};
use tidegate_test_support::{eventually, until};
use tokio::time::Instant;

use crate::link::counter_script::{AMPLE, add, open, ready, unreachable};
use crate::link::load::{Load, recovery};

/// Maximum time until calls are answered again once there is a new primary.
const BACK_WITHIN: Duration = Duration::from_secs(15);

fn link_to(set: &Sentinels) -> Arc<Link> {
    Arc::new(open(Settings::sentinel(PRIMARY, set.urls()).unwrap()))
}

fn port(link: &Link) -> Option<u16> {
    match link.stats().servers[0].address {
        Some(Address::Tcp { port, .. }) => Some(port),
        Some(Address::Unix(_)) | None => None,
    }
}

/// Waits until another server is the primary and answers calls.
async fn failed_over(set: &Sentinels, link: &Link, first: usize, began: Instant, what: &str) {
    until("another primary", || (set.primary() != first).then_some(()));
    println!("{what}: another primary after {:?}", began.elapsed());
    let took = recovery(link, what).await;
    assert!(took < BACK_WITHIN, "{what}: {took:?}");
    let server = &set.servers[set.primary()];
    eventually("the new primary's address", async || (port(link) == Some(server.port())).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_name_the_primary() {
    let mut set = Sentinels::start();
    // One of the sentinels may be down.
    set.sentinels[0].kill();
    let link = link_to(&set);
    ready(&link).await;
    assert_eq!(add(&link, "a", AMPLE).await, Ok(1));
    assert_eq!(port(&link), Some(set.servers[0].port()));
    assert_eq!(set.servers[0].run::<u64>(&["GET", "a"]), 1);

    let unknown = open(Settings::sentinel("nobody", set.urls()).unwrap());
    assert_eq!(unreachable(&unknown).await, Unreachable::NoPrimary);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_was_killed_is_replaced() {
    let mut set = Sentinels::start();
    let link = link_to(&set);
    ready(&link).await;
    let load = Load::start(&link, 16, "caller");
    let (first, began) = (set.primary(), Instant::now());
    set.servers[first].kill();
    failed_over(&set, &link, first, began, "primary killed").await;
    assert!(link.server_generation() > 0);
    load.stop().await.nobody_waited("primary killed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_was_frozen_is_replaced_and_not_gone_back_to() {
    let set = Sentinels::start();
    let link = link_to(&set);
    ready(&link).await;
    let load = Load::start(&link, 16, "caller");
    let (first, began) = (set.primary(), Instant::now());
    set.servers[first].freeze();
    failed_over(&set, &link, first, began, "primary frozen").await;
    let new = port(&link);
    // The former primary resumes and reports the role of a primary until the sentinels reconfigure it.
    set.servers[first].thaw();
    until("the old primary as a replica", || {
        assert_eq!(port(&link), new);
        // Clients are disconnected when the server becomes a replica.
        let role = set.servers[first].try_run::<String>(&["INFO", "replication"]).ok()?;
        role.contains("role:slave").then_some(())
    });
    load.stop().await.nobody_waited("primary frozen");
    assert_eq!(port(&link), new);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_hands_over_is_followed() {
    let set = Sentinels::start();
    let link = link_to(&set);
    ready(&link).await;
    let load = Load::start(&link, 16, "caller");
    let (first, began) = (set.primary(), Instant::now());
    until("a failover that begins", || set.sentinels[0].try_run::<String>(&["SENTINEL", "FAILOVER", PRIMARY]).ok());
    failed_over(&set, &link, first, began, "handed over").await;
    let report = load.stop().await;
    report.nobody_waited("handed over");
}
