//! Nodes report their state.

use tidegate_redis::fleet::{Event, Fleet, FleetControl, NodeState, PublicationTarget};
use tidegate_rules::Mode;
use tidegate_test_support::eventually;
use tidegate_test_support::redis::Server;

use crate::fleet_control::nodes::{Follower, fleet_control, one_rule};

async fn fleet(control: &FleetControl, what: &str, wanted: impl Fn(&Fleet) -> bool) -> Fleet {
    eventually(what, async || control.fleet().await.ok().filter(|fleet| wanted(fleet))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_node_says_what_it_has() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    let empty = control.fleet().await.unwrap();
    assert_eq!((empty.nodes.len(), empty.is_current()), (0, false));
    let followers = [Follower::start(&control, "b"), Follower::start(&control, "a")];
    let fresh = fleet(&control, "two nodes", |fleet| fleet.nodes.len() == 2).await;
    assert!(fresh.is_current(), "nothing is published, and they have nothing");
    assert_eq!(fresh.nodes.iter().map(|(report, _)| report.node.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!((fresh.nodes[0].0.version, fresh.nodes[0].0.rules, fresh.nodes[0].0.generation), (0, 0, 1));

    control.publish_rules("r.yaml", &one_rule("v1"), "ann", None).await.unwrap();
    control.publish_mode(&PublicationTarget::Rule("nobody".to_owned()), Some(Mode::Off), "ann", None).await.unwrap();
    let current = fleet(&control, "all with version 2", |fleet| fleet.is_current() && fleet.version == 2).await;
    assert_eq!(current.signed.as_ref().unwrap().who, "ann");
    for (report, state) in &current.nodes {
        assert_eq!((report.version, report.rules, *state), (2, 1, NodeState::Current));
        assert_eq!((report.host.as_str(), report.build.as_str()), ("test-host", env!("CARGO_PKG_VERSION")));
        assert_eq!((&report.refused, &report.unknown[..]), (&None, &["nobody".to_owned()][..]));
        assert!(report.since <= report.seen && report.seen <= current.now, "{report:?}");
    }
    drop(followers);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_cannot_use_the_rules_says_why() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    let _follower = Follower::start(&control, "a");
    control.publish_rules("r.yaml", &one_rule("v1"), "ann", None).await.unwrap();
    fleet(&control, "the first", Fleet::is_current).await;
    // A node learns of what lies there now when the next version comes.
    let aside = control.clone().with_prefix("aside").unwrap();
    aside.publish_rules("r.yaml", &one_rule("x"), "ann", None).await.unwrap();
    server.run::<()>(&["SET", "tidegate:{#steering}:rules", "rules: [{ id: a, limit: never }]"]);
    crate::fleet_control::follower::copy(&server, &["head"]);
    let refused =
        fleet(&control, "a refusal", |fleet| fleet.nodes.iter().any(|(_, state)| *state == NodeState::Refused)).await;
    let report = &refused.nodes[0].0;
    assert!(report.refused.as_ref().unwrap().starts_with("r.yaml:1:"), "{report:?}");
    assert_eq!((report.generation, refused.is_current()), (2, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_is_gone_and_one_that_dies_is_forgotten() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    let (stops, dies) = (Follower::start(&control, "stops"), Follower::start(&control, "dies"));
    fleet(&control, "two nodes", |fleet| fleet.nodes.len() == 2).await;
    stops.following.stop().await;
    let left = control.fleet().await.unwrap();
    assert_eq!(left.nodes.iter().map(|(report, _)| report.node.as_str()).collect::<Vec<_>>(), ["dies"]);
    drop(dies);
    let ttl = server.run::<i64>(&["PTTL", "tidegate:{#steering}:node:dies"]);
    assert!((1..=10_000).contains(&ttl), "{ttl}");
    assert!((1..=100_000).contains(&server.run::<i64>(&["PTTL", "tidegate:{#steering}:nodes"])));
    // Simulates that this time has passed.
    server.run::<()>(&["DEL", "tidegate:{#steering}:node:dies"]);
    assert!(control.fleet().await.unwrap().nodes.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_that_make_no_sense_are_counted_and_no_more() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    let _follower = Follower::start(&control, "good");
    fleet(&control, "one node", |fleet| fleet.nodes.len() == 1).await;
    let large = "x".repeat(100_000);
    for (id, text) in [("bad", "{}"), ("large", large.as_str())] {
        server.run::<()>(&["ZADD", "tidegate:{#steering}:nodes", "9999999999999999", id]);
        server.run::<()>(&["SET", &format!("tidegate:{{#steering}}:node:{id}"), text]);
    }
    let fleet = control.fleet().await.unwrap();
    assert_eq!((fleet.nodes.len(), &fleet.unreadable[..]), (1, &["bad".to_owned(), "large".to_owned()][..]));
    assert!(!fleet.is_current());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_may_not_write_still_follows() {
    let server = Server::start();
    server.run::<()>(&["ACL", "SETUSER", "reader", "on", ">pw", "~*", "&*", "+@all", "-set"]);
    let reader = fleet_control(&format!("redis://reader:pw@{}", server.address()));
    let follower = Follower::start(&reader, "a");
    follower.next("no report", |event| matches!(event, Event::Unreported { .. })).await;
    fleet_control(&server.url()).publish_rules("r.yaml", &one_rule("v1"), "ann", None).await.unwrap();
    follower.applied(1).await;
    assert_eq!(follower.rules(), ["v1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_count_the_fleet_once_all_know_of_each_other() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    let nodes = ["one", "two", "three"].map(|id| Follower::start(&control, id));
    for node in &nodes {
        let counted = node.next("a count", |event| matches!(event, Event::Counted { .. })).await;
        assert_eq!(counted, Event::Counted { nodes: 3 });
    }
}
