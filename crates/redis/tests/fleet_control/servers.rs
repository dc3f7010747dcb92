//! Every kind of Redis: with TLS, with users with few permissions, behind sentinels, in a cluster, and Valkey.

use std::time::Duration;

use tidegate_core::store::Adjustment;
use tidegate_core::{Charge, Key, Limit, Micros, RuleId, Store};
use tidegate_redis::RedisStore;
use tidegate_redis::fleet::{Event, Fleet, FleetControl, PublicationTarget};
use tidegate_redis::link::{Settings, Tls};
use tidegate_redis::slot_of;
use tidegate_rules::Mode;
use tidegate_test_support::eventually;
use tidegate_test_support::redis::{Cluster, Flavour, PRIMARY, Sentinels, Server, TlsServer};
use tokio::time::Instant;

use crate::fleet_control::nodes::{Follower, fleet_control, one_rule};

fn with(mut settings: Settings) -> FleetControl {
    settings.connect_timeout = Duration::from_secs(2);
    FleetControl::new(&settings).unwrap()
}

/// Checks that rules and a switch reach a node, which reports them.
async fn works(publisher: &FleetControl, node: &FleetControl) -> Follower {
    let follower = Follower::start(node, "node");
    follower.found().await;
    let first = publisher.publish_rules("r.yaml", &one_rule("v1"), "ann", None).await.unwrap().version;
    follower.applied(first).await;
    publisher.publish_mode(&PublicationTarget::All, Some(Mode::Off), "ann", Some(first)).await.unwrap();
    follower.applied(first + 1).await;
    assert_eq!((follower.rules(), follower.mode("v1")), (vec!["v1".to_owned()], Some(Mode::Off)));
    eventually("a report", async || publisher.fleet().await.ok().filter(Fleet::is_current)).await;
    follower
}

#[tokio::test(flavor = "multi_thread")]
async fn standalone_servers_of_every_make() {
    for flavour in Flavour::present() {
        let server = Server::start_as(flavour, "");
        let control = fleet_control(&server.url());
        works(&control, &control).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unix_socket() {
    let server = Server::start();
    let control = fleet_control(&format!("unix://{}", server.unix_socket().display()));
    works(&control, &control).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_with_certificates_on_both_sides() {
    let server = TlsServer::start();
    let mut settings = Settings::standalone(&server.url()).unwrap();
    settings.tls = Some(Tls {
        authorities: Some(server.authority.certificate().into_bytes()),
        identity: Some((server.client.certificate.clone().into_bytes(), server.client.key.clone().into_bytes())),
    });
    let control = with(settings);
    works(&control, &control).await;
    let stranger = with(Settings::standalone(&server.url()).unwrap());
    assert!(stranger.published().await.is_err(), "nobody whom browsers believe vouches for this server");
}

/// Creates the users of the guide on a server, all with the password `pw`.
fn users_of_the_guide(server: &Server) {
    let guide = include_str!("../../../../docs/fleet.md");
    let lines: Vec<&str> = guide.lines().filter(|line| line.starts_with("ACL SETUSER ")).collect();
    assert_eq!(lines.len(), 2);
    for line in lines {
        let words = line.split_whitespace().map(|word| if word == ">…" { ">pw" } else { word });
        server.run::<()>(&words.collect::<Vec<_>>());
    }
}

/// The permissions in the guide are sufficient.
#[tokio::test(flavor = "multi_thread")]
async fn users_who_may_do_only_what_they_need() {
    let server = Server::start();
    users_of_the_guide(&server);
    let as_user = |user: &str| fleet_control(&format!("redis://{user}:pw@{}", server.address()));
    let follower = works(&as_user("operator"), &as_user("serving")).await;
    let is_expected = |event: &Event| matches!(event, Event::Switched(_) | Event::Counted { .. });
    assert!(follower.events().iter().all(is_expected), "{:?}", follower.events());
    let wrong = fleet_control(&format!("redis://serving:no@{}", server.address())).published().await.unwrap_err();
    assert!(wrong.to_string().starts_with("Redis answered: "), "{wrong}");
    assert!(!format!("{wrong:?}").contains("pw"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_serving_user_may_do_all_that_the_store_does() {
    let server = Server::start();
    users_of_the_guide(&server);
    let url = format!("redis://serving:pw@{}", server.address());
    let mut settings = Settings::standalone(&url).unwrap();
    settings.deadline = Duration::from_secs(10);
    let store = RedisStore::open(settings).unwrap();
    let (rule, key) = (RuleId::new("rule"), Key::from("key"));
    for limit in [
        "3/min",
        "gcra 3/min",
        "meter 3/min",
        "shaper 3/min",
        "fixed 3/min",
        "sliding 3/min",
        "log 3/min",
        "concurrent 3 ttl 1min",
    ] {
        let rule = RuleId::new(limit);
        let limit: Limit = limit.parse().unwrap();
        let charge = Charge::new(&rule, &key, &limit).cost(2).reserve(Micros::from_secs(10));
        let answer = store.decide(&[charge]).await.unwrap();
        assert!(answer.is_allowed(), "{limit}");
        store.peek(&[charge]).await.unwrap();
        if let Some(receipt) = answer.receipt {
            assert!(store.renew(&receipt).await.unwrap(), "{limit}");
            store.settle(&receipt, &[1]).await.unwrap();
        }
        if !limit.holds_slots() {
            store.adjust(&charge, Adjustment::Credit).await.unwrap();
            store.adjust(&charge, Adjustment::Penalty).await.unwrap();
        }
        store.reset(&rule, &key).await.unwrap();
    }
    let limit: Limit = "1/min".parse().unwrap();
    let charge = Charge::new(&rule, &key, &limit);
    assert!(
        store.decide(&[charge]).await.unwrap().is_allowed() && !store.decide(&[charge]).await.unwrap().is_allowed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_not_listen_finds_by_looking() {
    let server = Server::start();
    server.run::<()>(&["ACL", "SETUSER", "deaf", "on", ">pw", "~*", "resetchannels", "+@all", "-subscribe"]);
    let deaf = fleet_control(&format!("redis://deaf:pw@{}", server.address()));
    works(&fleet_control(&server.url()), &deaf).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_whichever_node_is_named() {
    let mut cluster = Cluster::start();
    let owner = Cluster::first_owner(slot_of(b"tidegate:{#steering}:head"));
    let other = (owner + 1) % 3;
    let by_one = with(Settings::standalone(&cluster.nodes[other].url()).unwrap());
    let by_all = with(Settings::cluster(cluster.urls()).unwrap());
    let follower = works(&by_one, &by_all).await;
    cluster.nodes[owner].kill();
    follower.lost().await;
    let killed = Instant::now();
    follower.found().await;
    println!("the replica was found after {:?}", killed.elapsed());
    let version = eventually("a publication", async || {
        by_all
            .publish_mode(&PublicationTarget::All, None, "ann", None)
            .await
            .ok()
            .map(|publication| publication.version)
    })
    .await;
    follower.applied(version).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_that_name_another_primary() {
    let mut set = Sentinels::start();
    let control = with(Settings::sentinel(PRIMARY, set.urls()).unwrap());
    let follower = works(&control, &control).await;
    let first = set.primary();
    set.servers[first].kill();
    follower.lost().await;
    let killed = Instant::now();
    follower.found().await;
    let version = eventually("a publication", async || {
        control
            .publish_mode(&PublicationTarget::All, None, "ann", None)
            .await
            .ok()
            .map(|publication| publication.version)
    })
    .await;
    follower.applied(version).await;
    println!("the other primary steers {:?} after the first was killed", killed.elapsed());
}
