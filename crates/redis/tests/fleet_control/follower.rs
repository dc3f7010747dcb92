//! Followers apply what is published within a moment.

use std::fmt::Write;
use std::time::Duration;

use tidegate_core::Micros;
use tidegate_redis::fleet::{Event, FleetControl, PublicationTarget};
use tidegate_rules::{Mode, RuleSet};
use tidegate_test_support::redis::Server;
use tokio::time::Instant;

use crate::fleet_control::nodes::{Follower, fleet_control, one_rule};

async fn three(control: &FleetControl) -> Vec<Follower> {
    let followers: Vec<Follower> = ["a", "b", "c"].iter().map(|id| Follower::start(control, id)).collect();
    for follower in &followers {
        follower.found().await;
    }
    followers
}

async fn all_have(version: u64, since: Instant, followers: &[Follower], how: &str) {
    for follower in followers {
        follower.applied(version).await;
    }
    let (nodes, took) = (followers.len(), since.elapsed());
    println!("{how}: version {version} is in force on {nodes} nodes after {took:?} (two seconds are promised)");
}

/// The polling interval is long, so the announcement must trigger the change.
#[tokio::test(flavor = "multi_thread")]
async fn an_announcement_is_enough() {
    let server = Server::start();
    let control = fleet_control(&server.url()).with_poll_interval(Duration::from_secs(3_600));
    let followers = three(&control).await;
    for version in 1..=3 {
        let began = Instant::now();
        control.publish_rules("r.yaml", &one_rule(&format!("v{version}")), "ann", None).await.unwrap();
        all_have(version, began, &followers, "announced").await;
        for follower in &followers {
            assert_eq!(follower.rules(), [format!("v{version}")]);
            assert_eq!(follower.limiter.rules().number, version + 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_is_switched_on_all_nodes_and_back() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    let followers = three(&control).await;
    let rule = PublicationTarget::Rule("own".to_owned());
    for follower in &followers {
        assert!(follower.allows() && !follower.allows(), "one passes");
    }
    for (version, mode, allowed) in [(1, Some(Mode::Off), true), (2, Some(Mode::Shadow), true), (3, None, false)] {
        let began = Instant::now();
        control.publish_mode(&rule, mode, "ann", None).await.unwrap();
        all_have(version, began, &followers, "announced").await;
        for follower in &followers {
            assert_eq!((follower.mode("own"), follower.allows()), (Some(mode.unwrap_or_default()), allowed));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switch_with_an_end_is_taken_back_by_every_node_even_without_redis() {
    let mut server = Server::start();
    let control = fleet_control(&server.url());
    let followers = three(&control).await;
    control.publish_mode_for(&PublicationTarget::All, Mode::Off, Micros::from_secs(3), "ann", None).await.unwrap();
    for follower in &followers {
        follower.applied(1).await;
        assert!(follower.limiter.rules().rules.switches().end(None).is_some());
    }
    server.kill();
    for follower in &followers {
        follower.next("the end", |event| *event == Event::Ended { rule: None, mode: Mode::Off }).await;
        assert_eq!(follower.mode("own"), Some(Mode::Enforce));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kill_switch_stops_everything_and_outlives_new_rules() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    let followers = three(&control).await;
    for follower in &followers {
        assert!(follower.allows() && !follower.allows());
    }
    let began = Instant::now();
    control.publish_mode(&PublicationTarget::All, Some(Mode::Off), "ann", None).await.unwrap();
    all_have(1, began, &followers, "kill switch").await;
    assert!(followers.iter().all(|follower| follower.allows() && follower.allows()));
    control.publish_rules("r.yaml", &one_rule("new"), "ann", None).await.unwrap();
    for follower in &followers {
        follower.applied(2).await;
        assert!(follower.allows() && follower.allows());
    }
    control.publish_mode(&PublicationTarget::All, None, "ann", None).await.unwrap();
    for follower in &followers {
        follower.applied(3).await;
        assert!(follower.allows() && !follower.allows());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switch_for_a_rule_that_does_not_exist_waits_for_it_and_is_told() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    let follower = Follower::start(&control, "a");
    control.publish_mode(&PublicationTarget::Rule("later".to_owned()), Some(Mode::Off), "ann", None).await.unwrap();
    let applied = follower.applied(1).await;
    assert_eq!(applied, Event::Applied { version: 1, rules: 0, generation: 2, unknown: vec!["later".to_owned()] });
    control.publish_rules("r.yaml", &one_rule("later"), "ann", None).await.unwrap();
    assert_eq!(follower.applied(2).await, Event::Applied { version: 2, rules: 2, generation: 3, unknown: Vec::new() });
    assert_eq!(follower.mode("later"), Some(Mode::Off));
}

/// Copies published data from one prefix to another, under which nothing is announced.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_found_when_its_announcement_was_lost() {
    let server = Server::start();
    let followed = fleet_control(&server.url());
    let aside = followed.clone().with_prefix("aside").unwrap();
    let followers = three(&followed).await;
    for version in 1..=2 {
        aside.publish_rules("r.yaml", &one_rule(&format!("v{version}")), "ann", None).await.unwrap();
        let began = Instant::now();
        copy(&server, &["rules", "head"]);
        all_have(version, began, &followers, "not announced").await;
        assert!(followers.iter().all(|follower| follower.rules() == [format!("v{version}")]));
    }
}

/// Copies what is published under the prefix `aside` to the followed prefix, without an announcement.
pub(crate) fn copy(server: &Server, keys: &[&str]) {
    for key in keys {
        let (from, to) = (format!("aside:{{#steering}}:{key}"), format!("tidegate:{{#steering}}:{key}"));
        assert_eq!(server.run::<u64>(&["COPY", &from, &to, "REPLACE"]), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_rules_are_refused_and_the_old_stay() {
    let server = Server::start();
    let followed = fleet_control(&server.url());
    let aside = followed.clone().with_prefix("aside").unwrap();
    let follower = Follower::start(&followed, "a");
    aside.publish_rules("r.yaml", &one_rule("good"), "ann", None).await.unwrap();
    copy(&server, &["rules", "head"]);
    follower.applied(1).await;
    // Like the data of a later version of Tidegate, with unknown fields.
    aside.publish_rules("r.yaml", &one_rule("new"), "ann", None).await.unwrap();
    server.run::<()>(&["SET", "tidegate:{#steering}:rules", "rules:\n- { id: new, limit: 7/fortnight }\n"]);
    copy(&server, &["head"]);
    let reason = follower.refused().await;
    assert!(reason.starts_with("r.yaml:2:") && reason.contains("7/fortnight"), "{reason}");
    assert_eq!((follower.rules(), follower.limiter.rules().number), (vec!["good".to_owned()], 2));
    let fleet = followed.fleet().await.unwrap();
    assert!(!fleet.is_current());
    // The kill switch still works.
    followed.publish_mode(&PublicationTarget::All, Some(Mode::Off), "ann", None).await.unwrap();
    follower.refused().await;
    assert_eq!(follower.mode("good"), Some(Mode::Off));
    followed.publish_rules("r.yaml", &one_rule("mended"), "ann", None).await.unwrap();
    follower.applied(4).await;
    assert_eq!((follower.rules(), follower.mode("mended")), (vec!["mended".to_owned()], Some(Mode::Off)));
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_rules_arrive_in_time() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    let followers = three(&control).await;
    let mut text = "rules:\n".to_owned();
    for number in 0..10_000 {
        writeln!(text, "- {{ id: r{number}, match: {{ path: '/p{number}/{{id}}' }}, key: user, limit: 10/s }}")
            .unwrap();
    }
    control.publish_rules("r.yaml", &text, "ann", None).await.unwrap();
    all_have(1, Instant::now(), &followers, &format!("{} bytes of rules", text.len())).await;
    assert!(followers.iter().all(|follower| follower.rules().len() == 10_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn late_nodes_apply_publications_at_once() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    control.publish_rules("r.yaml", &one_rule("published"), "ann", None).await.unwrap();
    control
        .publish_mode(&PublicationTarget::Rule("published".to_owned()), Some(Mode::Shadow), "ann", None)
        .await
        .unwrap();
    let late = Follower::start(&control, "late");
    late.applied(2).await;
    assert_eq!((late.rules(), late.mode("published")), (vec!["published".to_owned()], Some(Mode::Shadow)));
    assert_eq!(late.limiter.rules().number, 2, "rules and modes came together");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_read_again_does_not_displace_what_is_published() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    let follower = Follower::start(&control, "a");
    control.publish_rules("r.yaml", &one_rule("published"), "ann", None).await.unwrap();
    follower.applied(1).await;
    follower.limiter.replace(RuleSet::parse("own", &one_rule("own")).unwrap().rules);
    let again = follower.applied(1).await;
    assert_eq!(again, Event::Applied { version: 1, rules: 1, generation: 4, unknown: Vec::new() });
    assert_eq!(follower.rules(), ["published"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_taken_in_after_the_end() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    let (gone, stays) = (Follower::start(&control, "gone"), Follower::start(&control, "stays"));
    gone.found().await;
    let Follower { limiter, following, .. } = gone;
    drop(following);
    control.publish_rules("r.yaml", &one_rule("new"), "ann", None).await.unwrap();
    stays.applied(1).await;
    assert_eq!(limiter.rules().number, 1);
}
