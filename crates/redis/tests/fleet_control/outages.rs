//! Redis unreachable, slow, or empty after a restart: rules and switches stay unchanged.

use std::time::Duration;

use tidegate_redis::fleet::{Event, NodeState, PublicationTarget};
use tidegate_rules::Mode;
use tidegate_test_support::eventually;
use tidegate_test_support::redis::{Break, Proxy, Server};
use tokio::time::Instant;

use crate::fleet_control::nodes::{Follower, fleet_control, one_rule};

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_cut_off_catches_up() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let direct = fleet_control(&server.url());
    let follower = Follower::start(&fleet_control(&proxy.url()), "far");
    direct.publish_rules("r.yaml", &one_rule("v1"), "ann", None).await.unwrap();
    follower.applied(1).await;
    for (round, breaks) in
        [Break::Refuse, Break::BlackHole, Break::BeforeReply, Break::MidReply].into_iter().enumerate()
    {
        proxy.set(breaks);
        follower.lost().await;
        let version = 2 + u64::try_from(round).unwrap();
        direct.publish_rules("r.yaml", &one_rule(&format!("v{version}")), "ann", None).await.unwrap();
        assert_eq!(follower.rules(), [format!("v{}", version - 1)], "what it had stays");
        let healed = Instant::now();
        proxy.set(Break::Nothing);
        follower.found().await;
        follower.applied(version).await;
        println!("after {breaks:?}: version {version} is in force {:?} after the fault", healed.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_may_start_before_redis() {
    let mut server = Server::start();
    server.kill();
    let follower = Follower::start(&fleet_control(&server.url()), "early");
    follower.lost().await;
    assert_eq!(follower.rules(), ["own"]);
    server.restart();
    follower.found().await;
    fleet_control(&server.url()).publish_rules("r.yaml", &one_rule("v1"), "ann", None).await.unwrap();
    follower.applied(1).await;
    // A lasting condition is reported only once.
    assert!(!follower.events().iter().any(|event| matches!(event, Event::Lost { .. })), "{:?}", follower.events());
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_publications_stay_in_force() {
    let mut server = Server::start();
    let control = fleet_control(&server.url());
    let followers = [Follower::start(&control, "a"), Follower::start(&control, "b")];
    for version in 1..=3 {
        control.publish_rules("r.yaml", &one_rule(&format!("v{version}")), "ann", None).await.unwrap();
        followers[0].applied(version).await;
        followers[1].applied(version).await;
    }
    server.restart();
    for follower in &followers {
        follower.lost().await;
        follower.found().await;
        follower.next("what is said of it", |event| *event == Event::Forgotten { version: 3 }).await;
        assert_eq!(follower.rules(), ["v3"]);
    }
    let fleet = eventually("both reports", async || {
        let fleet = control.fleet().await.ok()?;
        (fleet.nodes.len() == 2).then_some(fleet)
    })
    .await;
    assert_eq!((fleet.version, fleet.is_current()), (0, false));
    let says = |(report, state): &(tidegate_redis::fleet::NodeReport, NodeState)| {
        (report.version, *state) == (3, NodeState::Kept)
    };
    assert!(fleet.nodes.iter().all(says), "{fleet:?}");
    // Versions count from one again, so the same numbers have another meaning.
    for version in 1..=3 {
        let id = format!("again{version}");
        assert_eq!(control.publish_rules("r.yaml", &one_rule(&id), "ann", None).await.unwrap().version, version);
        for follower in &followers {
            follower.applied(version).await;
            assert_eq!(follower.rules(), [id.as_str()]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stands_still_is_noticed_and_waited_for() {
    let server = Server::start();
    let control = fleet_control(&server.url()).with_timeout(Duration::from_millis(500));
    let follower = Follower::start(&control, "a");
    follower.found().await;
    server.freeze();
    follower.lost().await;
    server.thaw();
    follower.found().await;
    control.publish_mode(&PublicationTarget::All, Some(Mode::Off), "ann", None).await.unwrap();
    follower.applied(1).await;
    assert_eq!(follower.mode("own"), Some(Mode::Off));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_away_is_told_of() {
    let mut server = Server::start();
    let control = fleet_control(&server.url());
    server.kill();
    let error = control.published().await.unwrap_err();
    assert!(error.to_string().starts_with("Redis cannot be reached: 127.0.0.1:"), "{error}");
    assert!(control.fleet().await.is_err());
    assert!(control.publish_mode(&PublicationTarget::All, None, "ann", None).await.is_err());
}

/// Number of bytes that the system buffers at both ends of a connection, plus the largest publication.
const BUFFERED: usize = 64 * 1024 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_sends_without_end_is_left() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let direct = fleet_control(&server.url());
    let follower = Follower::start(&fleet_control(&proxy.url()), "far");
    direct.publish_rules("r.yaml", &one_rule("v1"), "ann", None).await.unwrap();
    follower.applied(1).await;
    for flood in [&b"$536870912\r\n"[..], b"*100000000\r\n", b">3\r\n$536870912\r\n", b"+"] {
        let text = String::from_utf8_lossy(flood);
        proxy.set(Break::Flood(flood));
        follower.lost().await;
        assert_eq!(follower.rules(), ["v1"], "{text:?}: what it had stays");
        assert!(proxy.largest_flood() < BUFFERED, "{text:?}: {} bytes were taken", proxy.largest_flood());
        proxy.set(Break::Nothing);
        follower.found().await;
    }
}
