//! A cluster whose nodes are killed and whose slots migrate while it is in use.

use std::sync::Arc;
use std::time::Duration;

use tidegate_redis::LinkError;
use tidegate_redis::link::{Cause, ErrorCode, Link, Settings};
use tidegate_redis::slot_of;
use tidegate_test_support::redis::{Cluster, Flavour};
use tidegate_test_support::{eventually, until};
use tokio::time::Instant;

use crate::link::counter_script::{AMPLE, DEADLINE, add, frame, open, open_url, ready};
use crate::link::load::{Load, Report};

/// Maximum time until calls are answered again after the cluster has recovered.
const BACK_WITHIN: Duration = Duration::from_secs(15);

fn link_to(cluster: &Cluster) -> Arc<Link> {
    Arc::new(open(Settings::cluster(cluster.urls()).unwrap()))
}

/// The value of a key on any node.
fn value(cluster: &Cluster, key: &str) -> u64 {
    let get = |node: &tidegate_test_support::redis::Server| node.try_run::<Option<u64>>(&["GET", key]).ok();
    cluster.nodes[..3].iter().find_map(get).expect("a node that serves the key").unwrap_or(0)
}

/// A key in a slot that the node owns at the start.
fn key_on(node: usize) -> String {
    let on = |key: &String| Cluster::first_owner(slot_of(key.as_bytes())) == node;
    (0..).map(|number| format!("key{number}")).find(on).unwrap()
}

fn answered(link: &Link) -> u64 {
    link.stats().servers.iter().map(|server| server.counts.answered).sum()
}

async fn some_work(link: &Link) {
    answers(link, 500).await;
}

/// Waits until this many more calls were answered.
async fn answers(link: &Link, calls: u64) {
    let before = answered(link);
    eventually("some work", async || (answered(link) > before + calls).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_are_no_cluster_are_named() {
    let [one, two] = [(); 2].map(|()| tidegate_test_support::redis::Server::start());
    let link = open(Settings::cluster([one.url(), two.url()]).unwrap());
    let failure = eventually("the reason", async || link.stats().topology_failure).await;
    assert!(failure.contains("127.0.0.1:") && failure.contains("not a node of a Redis Cluster"), "{failure}");
    assert_eq!(link.stats().servers.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_find_their_nodes() {
    for flavour in Flavour::present() {
        let cluster = Cluster::start_as(flavour);
        // One node is enough to discover the others.
        let link = Arc::new(open(Settings::cluster([cluster.nodes[4].url()]).unwrap()));
        ready(&link).await;
        for node in 0..3 {
            let key = key_on(node);
            assert_eq!(add(&link, &key, AMPLE).await, Ok(1));
            assert_eq!(cluster.nodes[node].run::<u64>(&["GET", &key]), 1);
        }
        assert_eq!(link.stats().servers.len(), 3);
        assert_eq!(link.call(frame(&["{a}1", "{a}2"], "add"), AMPLE).await, Ok(b"1".to_vec()));
        let apart = link.call(frame(&["a", "b"], "add"), AMPLE).await;
        assert_eq!(apart, Err(LinkError::NotRun(Cause::CrossSlot)));
        assert!(link.call(frame(&[], "time"), AMPLE).await.is_ok(), "any node will do without keys");

        let load = Load::start(&link, 64, "caller");
        some_work(&link).await;
        let report = load.stop().await;
        report.nobody_waited("a cluster that is healthy");
        report.is_true(|key| value(&cluster, key));
        assert_eq!(report.failed_in_time(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_does_not_know_of_the_cluster_is_told() {
    let cluster = Cluster::start();
    let link = open_url(&cluster.nodes[0].url());
    let error = add(&link, &key_on(1), AMPLE).await.unwrap_err();
    assert!(matches!(&error, LinkError::NotRun(Cause::Refused(fault)) if fault.code == ErrorCode::Moved), "{error}");
}

/// Runs callers with keys on one node, and others.
async fn replaced(cluster: &Cluster, link: &Arc<Link>, began: Instant, what: &str) -> Duration {
    let key = key_on(0);
    until("another primary", || {
        let replica = cluster.nodes[3].run::<String>(&["INFO", "replication"]);
        replica.contains("role:master").then_some(())
    });
    println!("{what}: another primary after {:?}", began.elapsed());
    let began = Instant::now();
    eventually("service that is back", async || add(link, &key, DEADLINE).await.ok()).await;
    println!("{what}: back after {:?}", began.elapsed());
    began.elapsed()
}

fn assert_only_some_suffered(report: &Report, what: &str) {
    report.nobody_waited(what);
    for caller in &report.callers {
        let elsewhere = Cluster::first_owner(slot_of(caller.key.as_bytes())) != 0;
        assert!(!elsewhere || caller.failed_in_time() < 50, "{what}: {caller:?} lies on another node");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_was_killed_is_replaced_by_its_replica() {
    let mut cluster = Cluster::start();
    let link = link_to(&cluster);
    ready(&link).await;
    let load = Load::start(&link, 32, "caller");
    some_work(&link).await;
    let began = Instant::now();
    cluster.nodes[0].kill();
    let took = replaced(&cluster, &link, began, "primary killed").await;
    assert!(took < BACK_WITHIN, "{took:?}");
    assert_only_some_suffered(&load.stop().await, "primary killed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_was_frozen_is_replaced_by_its_replica() {
    let cluster = Cluster::start();
    let link = link_to(&cluster);
    ready(&link).await;
    let load = Load::start(&link, 32, "caller");
    some_work(&link).await;
    let began = Instant::now();
    cluster.nodes[0].freeze();
    let took = replaced(&cluster, &link, began, "primary frozen").await;
    assert!(took < BACK_WITHIN, "{took:?}");
    cluster.nodes[0].thaw();
    some_work(&link).await;
    assert_only_some_suffered(&load.stop().await, "primary frozen");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_hands_over_is_followed() {
    let cluster = Cluster::start();
    let link = link_to(&cluster);
    ready(&link).await;
    let load = Load::start(&link, 32, "caller");
    some_work(&link).await;
    let began = Instant::now();
    cluster.nodes[3].run::<()>(&["CLUSTER", "FAILOVER"]);
    let took = replaced(&cluster, &link, began, "handed over").await;
    assert!(took < BACK_WITHIN, "{took:?}");
    eventually("another generation of servers", async || (link.server_generation() > 0).then_some(())).await;
    let report = load.stop().await;
    report.nobody_waited("handed over");
    let get = |key: &str| {
        let node = if Cluster::first_owner(slot_of(key.as_bytes())) == 0 { 3 } else { 0 };
        if node == 3 { cluster.nodes[3].run(&["GET", key]) } else { value(&cluster, key) }
    };
    report.is_true(get);
}

/// The slot of a key, the node that owns it at the start, and the node to which it migrates.
fn moving_slot(key: &str) -> (u16, usize, usize) {
    let slot = slot_of(key.as_bytes());
    let from = Cluster::first_owner(slot);
    (slot, from, (from + 1) % 3)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_moves_under_load_takes_its_calls_along() {
    let cluster = Cluster::start();
    let link = link_to(&cluster);
    ready(&link).await;
    let (slot, from, to) = moving_slot("{moving}");
    // Many keys in the migrating slot, and some elsewhere.
    let keys =
        (0..32).map(|number| format!("{{moving}}{number}")).chain((0..16).map(|number| format!("still{number}")));
    let load = Load::start_on(&link, keys);
    some_work(&link).await;
    cluster.begin_move(slot, from, to);
    while cluster.move_key(slot, from, to) {
        answers(&link, 20).await;
    }
    some_work(&link).await;
    cluster.end_move(slot, from, to);
    some_work(&link).await;
    let redirected = || link.stats().servers.iter().map(|server| server.counts.redirected).sum::<u64>();
    eventually("a map that is right again", async || {
        let before = redirected();
        some_work(&link).await;
        (redirected() == before).then_some(())
    })
    .await;
    println!("redirected {} calls", redirected());
    assert!(redirected() > 0);
    let report = load.stop().await;
    report.nobody_waited("a slot that moved");
    report.is_true(|key| value(&cluster, key));
    // The link learns of each step as soon as the nodes do. Only between two steps may a call find no node.
    let failed = report.failed_in_time();
    assert!(failed * 100 < report.answered(), "{failed} of {}", report.answered());
}

#[tokio::test(flavor = "multi_thread")]
async fn ask_and_tryagain_are_answered_as_they_should_be() {
    let cluster = Cluster::start();
    let link = link_to(&cluster);
    ready(&link).await;
    let (slot, from, to) = moving_slot("{t}");
    assert_eq!(add(&link, "{t}1", AMPLE).await, Ok(1));
    assert_eq!(add(&link, "{t}2", AMPLE).await, Ok(1));
    cluster.begin_move(slot, from, to);
    assert_eq!(add(&link, "{t}1", AMPLE).await, Ok(2), "what has not moved is still here");
    assert_eq!(add(&link, "{t}new", AMPLE).await, Ok(1), "what is new begins there");
    assert!(cluster.move_key(slot, from, to));
    let apart = link.call(frame(&["{t}1", "{t}2"], "add"), AMPLE).await;
    let Err(LinkError::NotRun(Cause::Refused(fault))) = apart else { panic!("{apart:?}") };
    assert_eq!(fault.code, ErrorCode::TryAgain, "half is here and half is there");
    assert!(cluster.move_key(slot, from, to));
    assert_eq!(link.call(frame(&["{t}1", "{t}2"], "add"), AMPLE).await, Ok(b"2".to_vec()));
    cluster.end_move(slot, from, to);
    assert_eq!(add(&link, "{t}1", AMPLE).await, Ok(4));
}

/// Calls that are sent together have keys on two nodes. Redis 6 redirects all of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_has_not_moved_is_found_although_others_of_its_slot_have() {
    let cluster = Cluster::start();
    let link = link_to(&cluster);
    ready(&link).await;
    let (slot, from, to) = moving_slot("{t}");
    let keys: Vec<String> = (0..8).map(|number| format!("{{t}}{number}")).collect();
    let add_all = async || {
        let mut all = tokio::task::JoinSet::new();
        for key in keys.clone() {
            let link = link.clone();
            all.spawn(async move { add(&link, &key, AMPLE).await });
        }
        all.join_all().await
    };
    assert_eq!(add_all().await, vec![Ok(1); 8]);
    cluster.begin_move(slot, from, to);
    let mut expected = 1;
    for _ in 0..4 {
        assert!(cluster.move_key(slot, from, to));
        for _ in 0..20 {
            expected += 1;
            assert_eq!(add_all().await, vec![Ok(expected); 8], "every key goes on where it was");
        }
    }
    while cluster.move_key(slot, from, to) {}
    cluster.end_move(slot, from, to);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_has_lost_too_much_says_so() {
    let mut cluster = Cluster::start();
    let link = link_to(&cluster);
    ready(&link).await;
    for node in [0, 3, 1, 4] {
        cluster.nodes[node].kill();
    }
    let key = key_on(2);
    eventually("a cluster that is down", async || match add(&link, &key, DEADLINE).await {
        Err(LinkError::NotRun(Cause::Refused(fault))) => (fault.code == ErrorCode::ClusterDown).then_some(()),
        _ => None,
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_a_cluster_that_is_not_there() {
    let link = open(Settings::cluster(["redis://127.0.0.1:1"]).unwrap());
    for _ in 0..3 {
        let began = Instant::now();
        assert_eq!(add(&link, "a", DEADLINE).await, Err(LinkError::NotRun(Cause::Unserved)));
        println!("a cluster that is not there: {:?}", began.elapsed());
    }
    assert!(link.stats().servers.is_empty());
}
