//! One server that is killed, frozen, paused, flushed, filled and turned into a replica.

use std::time::Duration;

use redis::Value;
use tidegate_core::{Charge, Key, RuleId, Store};
use tidegate_redis::Settings;
use tidegate_test_support::redis::Server;
use tidegate_test_support::{eventually, until};

use crate::faults::crowd::Crowd;

async fn crowd(server: &Server) -> Crowd {
    Crowd::gather(Settings::standalone(&server.url()).unwrap()).await
}

/// Injects a fault, waits until policies decide, repairs it, and waits until the store decides.
async fn through(server: &mut Server, what: &str, losses: u64, breaks: fn(&mut Server), mends: fn(&mut Server)) {
    let crowd = crowd(server).await;
    breaks(server);
    crowd.policies_decide().await;
    tokio::task::block_in_place(|| mends(server));
    let back = crowd.back().await;
    crowd.some_work().await;
    crowd.disperse(what, Some(back), losses).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_and_restarted_empty() {
    through(&mut Server::start(), "killed and restarted empty", 1, Server::kill, Server::restart).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_for_five_seconds() {
    let server = Server::start();
    let crowd = crowd(&server).await;
    server.freeze();
    crowd.policies_decide().await;
    crowd.unavailable_for(Duration::from_secs(5)).await;
    server.thaw();
    let back = crowd.back().await;
    crowd.some_work().await;
    crowd.disperse("frozen for 5 s (SIGSTOP)", Some(back), 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_paused() {
    for which in ["ALL", "WRITE"] {
        let server = Server::start();
        let crowd = crowd(&server).await;
        server.run::<()>(&["CLIENT", "PAUSE", "1500", which]);
        crowd.policies_decide().await;
        // A write by the test itself waits as long as the pause lasts.
        tokio::task::block_in_place(|| {
            until("the end of the pause", || server.try_run::<Value>(&["SET", "pause", "over"]).ok());
        });
        let back = crowd.back().await;
        crowd.disperse(&format!("CLIENT PAUSE {which}"), Some(back), 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_flushed() {
    let server = Server::start();
    let crowd = crowd(&server).await;
    for _ in 0..20 {
        server.run::<()>(&["SCRIPT", "FLUSH"]);
        crowd.some_work().await;
    }
    crowd.disperse("SCRIPT FLUSH, 20 times", None, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_flushed() {
    let server = Server::start();
    let crowd = crowd(&server).await;
    for _ in 0..10 {
        server.run::<()>(&["FLUSHALL"]);
        crowd.some_work().await;
    }
    crowd.disperse("FLUSHALL, 10 times", None, 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn out_of_memory() {
    let server = Server::start();
    let crowd = crowd(&server).await;
    let store = crowd.limiter.store().behind();
    let (rule, key, limit) = (RuleId::new("spent"), Key::from("alice"), "fixed 1/year calendar".parse().unwrap());
    let charge = Charge::new(&rule, &key, &limit);
    eventually("an admission", async || store.decide(&[charge]).await.ok()).await;
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    crowd.policies_decide().await;
    let denied = eventually("a decision", async || store.decide(&[charge]).await.ok()).await;
    assert!(!denied.is_allowed(), "a denial needs no memory");
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    let back = crowd.back().await;
    crowd.some_work().await;
    crowd.disperse("maxmemory reached", Some(back), 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn turned_into_a_replica_and_back() {
    let mut server = Server::start();
    let other = Server::start();
    let crowd = crowd(&server).await;
    server.run::<()>(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    crowd.policies_decide_times(100).await;
    // Connected clients may be disconnected when the server changes roles.
    until("a primary again", || server.try_run::<()>(&["REPLICAOF", "NO", "ONE"]).ok());
    let back = crowd.back().await;
    crowd.some_work().await;
    // The other server was empty.
    crowd.disperse("REPLICAOF, and back", Some(back), 1).await;
    server.kill();
}
