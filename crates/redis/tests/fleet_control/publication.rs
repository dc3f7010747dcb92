//! Publishing: all or nothing, without overwriting concurrent changes.

use std::time::Duration;

use tidegate_redis::fleet::{PublicationTarget, PublishError};
use tidegate_rules::Mode;
use tidegate_test_support::redis::Server;

use crate::fleet_control::nodes::{fleet_control, one_rule};

fn rule(id: &str) -> PublicationTarget {
    PublicationTarget::Rule(id.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn publications_have_an_author_and_a_time() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    assert_eq!(control.published().await.unwrap(), None);
    let first = control.publish_rules("rules.yaml", &one_rule("login"), "ann", None).await.unwrap();
    assert_eq!((first.version, first.before), (1, None));
    let second = control.publish_mode(&rule("login"), Some(Mode::Shadow), "bob", None).await.unwrap();
    assert_eq!((second.version, second.before.unwrap().who.as_str()), (2, "ann"));
    control.publish_mode(&PublicationTarget::All, Some(Mode::Off), "cat", None).await.unwrap();

    let published = control.published().await.unwrap().unwrap();
    assert_eq!((published.version, published.signed.who.as_str()), (3, "cat"));
    let rules = published.rules.unwrap();
    assert_eq!((rules.version, rules.name.as_str(), rules.text), (1, "rules.yaml", one_rule("login")));
    assert_eq!((rules.signed.who.as_str(), rules.signed.at), ("ann", first.at));
    let all = published.modes.all.unwrap();
    assert_eq!((all.mode, all.signed.who.as_str()), (Mode::Off, "cat"));
    let login = &published.modes.rules["login"];
    assert_eq!((login.mode, login.signed.who.as_str(), login.signed.at), (Mode::Shadow, "bob", second.at));
    assert!(published.now >= second.at && second.at >= first.at);

    control.publish_mode(&rule("login"), None, "bob", None).await.unwrap();
    control.publish_mode(&PublicationTarget::All, None, "bob", None).await.unwrap();
    let published = control.published().await.unwrap().unwrap();
    assert!(published.modes.switches_at(published.now).is_empty());
    assert_eq!(published.version, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn unexpected_versions_change_nothing() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    let conflict = control.publish_rules("r.yaml", &one_rule("a"), "ann", Some(1)).await.unwrap_err();
    assert_eq!(conflict, PublishError::Conflict { expected: 1, found: 0, by: None });
    control.publish_rules("r.yaml", &one_rule("a"), "ann", Some(0)).await.unwrap();
    let conflict = control.publish_rules("r.yaml", &one_rule("b"), "bob", Some(0)).await.unwrap_err();
    assert_eq!(conflict.to_string(), "version 0 was expected, but version 1 is published, by ann");
    let conflict = control.publish_mode(&PublicationTarget::All, Some(Mode::Off), "bob", Some(0)).await;
    assert!(matches!(conflict, Err(PublishError::Conflict { found: 1, .. })), "{conflict:?}");
    let published = control.published().await.unwrap().unwrap();
    assert_eq!((published.version, published.rules.unwrap().text), (1, one_rule("a")));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_expect_the_same_version_one_succeeds() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..16 {
        let control = control.clone();
        tasks.spawn(async move {
            control.publish_rules("r.yaml", &one_rule(&format!("r{number}")), "someone", Some(0)).await
        });
    }
    let outcomes = tasks.join_all().await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
    let refused = |outcome: &&Result<_, _>| matches!(outcome, Err(PublishError::Conflict { found: 1, .. }));
    assert_eq!(outcomes.iter().filter(refused).count(), 15, "{outcomes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_expect_nothing_do_not_lose_each_others_switches() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..8 {
        let control = control.clone();
        tasks.spawn(async move {
            control.publish_mode(&rule(&format!("r{number}")), Some(Mode::Off), "someone", None).await.unwrap()
        });
    }
    let mut versions: Vec<u64> = tasks.join_all().await.iter().map(|publication| publication.version).collect();
    versions.sort_unstable();
    assert_eq!(versions, (1..=8).collect::<Vec<_>>());
    assert_eq!(control.published().await.unwrap().unwrap().modes.rules.len(), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_rules_are_not_published() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    let broken = control.publish_rules("r.yaml", "rules: [{ id: a, limit: 1/parsec }]", "ann", None).await;
    assert!(matches!(&broken, Err(PublishError::Broken(findings)) if findings.errors() == 1), "{broken:?}");
    let included = control.publish_rules("r.yaml", "include: other.yaml", "ann", None).await;
    assert!(matches!(included, Err(PublishError::Broken(_))), "{included:?}");
    let large = format!("# {}\n{}", "x".repeat(16 << 20), one_rule("a"));
    let large = control.publish_rules("r.yaml", &large, "ann", None).await;
    assert!(matches!(large, Err(PublishError::TooLarge { .. })), "{large:?}");
    for (who, id) in [("", "a"), ("a\u{1b}[2J", "a"), ("ann", ""), ("ann", "a\nb")] {
        let named = control.publish_mode(&rule(id), Some(Mode::Off), who, None).await;
        assert!(matches!(named, Err(PublishError::Name { .. })), "{named:?}");
    }
    assert_eq!(control.published().await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_claims_to_know_what_became_of_a_lost_answer() {
    let server = Server::start();
    let control = fleet_control(&server.url());
    control.publish_rules("r.yaml", &one_rule("a"), "ann", None).await.unwrap();
    server.run::<()>(&["CLIENT", "PAUSE", "3000", "WRITE"]);
    let hasty = control.clone().with_timeout(Duration::from_millis(300));
    let unknown = hasty.publish_mode(&PublicationTarget::All, Some(Mode::Off), "ann", None).await;
    assert!(matches!(unknown, Err(PublishError::Unknown { .. })), "{unknown:?}");
    server.run::<()>(&["CLIENT", "UNPAUSE"]);
    assert!(control.published().await.unwrap().unwrap().version >= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn fleets_with_different_prefixes_do_not_see_each_other() {
    let server = Server::start();
    let one = fleet_control(&server.url());
    let other = one.clone().with_prefix("elsewhere").unwrap();
    one.publish_rules("r.yaml", &one_rule("a"), "ann", None).await.unwrap();
    assert_eq!(other.published().await.unwrap(), None);
    assert!(one.clone().with_prefix("a{b}").is_err());
}
