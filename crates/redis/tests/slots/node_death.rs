//! Requests over several slots, one of whose nodes is killed.

use std::sync::Arc;

use tidegate_core::contract::seed::seed;
use tidegate_redis::{RedisStore, Settings};
use tidegate_test_support::eventually;
use tidegate_test_support::redis::Cluster;

use crate::slots::shared;
use crate::slots::spenders::{Spenders, check};

/// A node is killed under load, and it or a replacement returns. The other nodes have charged exactly what was admitted.
async fn dies(mut cluster: Cluster, what: &str, replaced: impl AsyncFnOnce(&mut Cluster)) {
    let store = Arc::new(RedisStore::open(Settings::cluster(cluster.urls()).unwrap()).unwrap());
    let spenders = Spenders::start(&store, seed(fastrand::u64(..)));
    eventually("some work", async || (spenders.decided() > 2_000).then_some(())).await;
    cluster.nodes[0].kill();
    replaced(&mut cluster).await;
    let lying_there = spenders.targets.iter().find(|target| target.node() == 0).unwrap().charge();
    eventually("service that is back", async || {
        tidegate_core::Store::decide(&*store, &[lying_there.cost(0)]).await.ok()
    })
    .await;
    let before = spenders.decided();
    eventually("some more work", async || (spenders.decided() > before + 500).then_some(())).await;
    let targets = spenders.stop(what).await;
    shared::all_given_back(&store).await;
    println!("{what}: {:?}", store.refunds());
    check(&store, targets.iter().filter(|target| target.node() != 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_and_is_replaced_leaves_the_others_right() {
    let cluster = Cluster::start();
    dies(cluster, "replaced by its replica", async |cluster| {
        eventually("another primary", async || {
            let replica = cluster.nodes[3].run::<String>(&["INFO", "replication"]);
            replica.contains("role:master").then_some(())
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_and_comes_back_empty_leaves_the_others_right() {
    let (cluster, _proxies) = Cluster::start_behind_proxies().await;
    dies(cluster, "restarted empty", async |cluster| cluster.nodes[0].restart()).await;
}
