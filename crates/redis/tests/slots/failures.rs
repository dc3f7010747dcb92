//! Requests over several slots while connections break, replies are lost, and nodes hang: every admission is charged, and
//! no charge of a denied request remains.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::contract::seed::seed;
use tidegate_redis::{RedisStore, Settings};
use tidegate_test_support::eventually;
use tidegate_test_support::redis::{Break, Cluster, Proxy};
use tokio::time::sleep;

use crate::slots::shared;
use crate::slots::spenders::{Spenders, check};

const FAULTS: usize = 40;

/// Injects a fault for a moment, or into the next message.
async fn break_something(cluster: &Cluster, proxies: &[Proxy], dice: &mut fastrand::Rng) {
    let node = dice.usize(..proxies.len());
    let (server, proxy) = (&cluster.nodes[node], &proxies[node]);
    // Sometimes long enough that the connection is closed and a call on it is overtaken by later ones.
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
        // Like an operator's intervention.
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
    // Refunds that find no server for ten seconds are lost, which may happen on a busy machine. Such a round is repeated.
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
