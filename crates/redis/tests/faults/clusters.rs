//! A cluster whose nodes are killed and whose slots migrate. The keys of every request are in two slots.

use tidegate_redis::Settings;
use tidegate_redis::slot_of;
use tidegate_test_support::eventually;
use tidegate_test_support::redis::Cluster;

use crate::faults::crowd::{ADDRESS, Crowd};

async fn crowd(cluster: &Cluster) -> Crowd {
    Crowd::gather(Settings::cluster(cluster.urls()).unwrap()).await
}

/// The slot in which every request has a key.
fn everyones_slot() -> u16 {
    slot_of(format!("tidegate:{{{ADDRESS}}}").as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_killed() {
    let mut cluster = Cluster::start();
    let crowd = crowd(&cluster).await;
    let node = Cluster::first_owner(everyones_slot());
    cluster.nodes[node].kill();
    crowd.policies_decide().await;
    eventually("another primary", async || {
        let replica = cluster.nodes[node + 3].run::<String>(&["INFO", "replication"]);
        replica.contains("role:master").then_some(())
    })
    .await;
    let back = crowd.back().await;
    crowd.some_work().await;
    let refunds = crowd.limiter.store().behind().refunds();
    println!("a cluster's primary killed: {refunds:?}");
    // The replica may lack the last admissions; in the worst case, all of them.
    crowd.disperse("a cluster's primary killed", Some(back), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_moved() {
    let cluster = Cluster::start();
    let crowd = crowd(&cluster).await;
    let slot = everyones_slot();
    let from = Cluster::first_owner(slot);
    let to = (from + 1) % 3;
    cluster.begin_move(slot, from, to);
    crowd.decisions(500).await;
    while cluster.move_key(slot, from, to) {}
    cluster.end_move(slot, from, to);
    let back = crowd.back().await;
    crowd.some_work().await;
    crowd.disperse("a slot moved", Some(back), 0).await;
}
