//! Requests over several slots while connections break, replies get lost, and nodes stand still: nothing is ever admitted
//! that was not charged, and nothing stays charged that was not admitted.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::contract::seed::seed;
use tidegate_redis::{RedisStore, Settings};
use tidegate_test_redis::{Break, Cluster, Proxy, eventually};
use tokio::time::sleep;

use crate::shared;
use crate::spenders::{Spenders, check};

const FAULTS: usize = 40;

/// Breaks something for a moment, or the next thing that passes.
async fn break_something(cluster: &Cluster, proxies: &[Proxy], dice: &mut fastrand::Rng) {
    let node = dice.usize(..proxies.len());
    let (server, proxy) = (&cluster.nodes[node], &proxies[node]);
    // Now and then for so long that the connection is given up, and what was sent on it overtaken.
    let moment = Duration::from_millis(if dice.u8(..5) == 0 { dice.u64(300..700) } else { dice.u64(5..80) });
    match dice.u8(..10) {
        0 => proxy.once(Break::BeforeRequest),
        1 => proxy.once(Break::MidRequest),
        2 | 3 => proxy.once(Break::BeforeReply),
        4 => proxy.once(Break::MidReply),
        5 => proxy.set(Break::Delay(Duration::from_millis(dice.u64(1..30)))),
        6 => proxy.set(Break::BlackHole),
        7 => proxy.set(Break::Refuse),
        8 => server.freeze(),
        // As if an operator had tidied up.
        _ => drop(server.try_run::<i64>(&["CLIENT", "KILL", "TYPE", "normal"])),
    }
    sleep(moment).await;
    server.thaw();
    proxy.set(Break::Nothing);
    sleep(Duration::from_millis(dice.u64(..40))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn partial_failures_are_refunded_and_nothing_is_admitted_twice() {
    let (cluster, proxies) = Cluster::start_behind_proxies().await;
    // Refunds that find no server for ten seconds are lost, as they may be on a busy machine: then a round proves nothing.
    let mut rounds = 0;
    for _ in 0..6 {
        let seed = seed(fastrand::u64(..));
        for server in &cluster.nodes {
            server.run::<()>(&["FLUSHALL"]);
        }
        let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
        let store = Arc::new(RedisStore::open(Settings::cluster(urls).unwrap()).unwrap());
        let spenders = Spenders::start(&store, seed);
        eventually("some work", async || (spenders.decided() > 500).then_some(())).await;
        let mut dice = fastrand::Rng::with_seed(seed);
        for _ in 0..FAULTS {
            break_something(&cluster, &proxies, &mut dice).await;
        }
        let before = spenders.decided();
        eventually("service that is back", async || (spenders.decided() > before + 500).then_some(())).await;
        let targets = spenders.stop("faults").await;
        shared::all_given_back(&store).await;
        println!("{:?}", store.refunds());
        if store.refunds().lost > 0 {
            continue;
        }
        check(&store, targets.iter()).await;
        rounds += 1;
        if rounds == 2 {
            return;
        }
    }
    assert!(rounds > 0, "refunds were lost in every round");
}
