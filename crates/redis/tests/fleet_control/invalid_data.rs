//! Invalid data in Redis: nodes keep their rules, report the error, and continue.

use tidegate_redis::fleet::{Event, FleetError, PublicationTarget};
use tidegate_rules::Mode;
use tidegate_test_support::redis::Server;

use crate::fleet_control::follower::copy;
use crate::fleet_control::nodes::{Follower, fleet_control, one_rule};

const HEAD: &str = "tidegate:{#steering}:head";
const RULES: &str = "tidegate:{#steering}:rules";
const MODES: &str = "tidegate:{#steering}:modes";

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_makes_no_sense_is_refused_until_it_is_gone() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    let follower = Follower::start(&control, "a");
    control.publish_rules("r.yaml", &one_rule("v1"), "ann", None).await.unwrap();
    follower.applied(1).await;
    let large = "x".repeat(100_000);
    for command in [
        &["SET", HEAD, "hello"][..],
        &["SET", HEAD, r#"{"format":99}"#],
        &["SET", HEAD, r#"{"format":1,"version":1e999,"stamp":"x","who":"x","at":1,"rules":null}"#],
        &["SET", HEAD, &large],
        &["HSET", HEAD, "a", "b"],
    ] {
        server.run::<()>(&["DEL", HEAD]);
        server.run::<()>(command);
        let reason = follower.refused().await;
        assert!(reason.contains(HEAD), "{reason}");
        let error = control.published().await.unwrap_err();
        assert!(matches!(error, FleetError::Unreadable { .. }), "{error}");
        // Nobody writes over what is not theirs.
        assert!(control.publish_mode(&PublicationTarget::All, Some(Mode::Off), "ann", None).await.is_err());
        assert_eq!(follower.rules(), ["v1"]);
    }
    server.run::<()>(&["DEL", HEAD]);
    follower.next("what is gone", |event| matches!(event, Event::Forgotten { version: 1 })).await;
    control.publish_rules("r.yaml", &one_rule("v2"), "ann", None).await.unwrap();
    follower.applied(1).await;
    assert_eq!(follower.rules(), ["v2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_and_modes_that_make_no_sense_are_refused() {
    let server = Server::start();
    let followed = fleet_control(&server.url());
    let aside = followed.clone().with_prefix("aside").unwrap();
    let follower = Follower::start(&followed, "a");
    follower.found().await;
    let (large, small) = ((17 << 20).to_string(), "\u{0}");
    for spoil in [
        &[&["SETRANGE", RULES, large.as_str(), "x"][..]][..],
        &[&["DEL", RULES]],
        &[&["DEL", RULES], &["HSET", RULES, "a", "b"]],
        &[&["SET", RULES, small]],
        &[&["SET", MODES, "[]"]],
        &[&["SET", MODES, r#"{"rules":{"own":{"mode":"loud","who":"x","at":1}}}"#]],
        &[&["SETRANGE", MODES, "2000000", "x"]],
        &[&["DEL", MODES], &["LPUSH", MODES, "x"]],
    ] {
        aside.publish_rules("r.yaml", &one_rule("theirs"), "ann", None).await.unwrap();
        server.run::<()>(&["DEL", MODES]);
        copy(&server, &["rules"]);
        for command in spoil {
            server.run::<()>(command);
        }
        copy(&server, &["head"]);
        let reason = follower.refused().await;
        let key = if spoil.iter().any(|command| command[1] == RULES) { RULES } else { MODES };
        assert!(reason.contains(key) || reason.starts_with("r.yaml:1:1: "), "{reason}");
        assert_eq!(follower.rules(), ["own"]);
    }
    server.run::<()>(&["DEL", MODES]);
    followed.publish_rules("r.yaml", &one_rule("good"), "ann", None).await.unwrap();
    follower.next("good rules", |event| matches!(event, Event::Applied { .. })).await;
    assert_eq!(follower.rules(), ["good"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn announcements_of_anything_do_no_harm() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    let follower = Follower::start(&control, "a");
    follower.found().await;
    for number in 0..2_000 {
        server.run::<u64>(&["PUBLISH", "tidegate:{#steering}:news", &format!("{number}{}", "x".repeat(1_000))]);
    }
    control.publish_rules("r.yaml", &one_rule("v1"), "ann", None).await.unwrap();
    follower.applied(1).await;
}
