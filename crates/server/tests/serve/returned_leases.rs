//! Leased tokens that real nodes return when they end.

use rustix::process::Signal;
use tidegate_test_support::redis::Server as Redis;

use crate::serve::leased_nodes::{LITTLE, Node};
use crate::support::until;

/// Nothing recovers while a test runs, so what is charged and was not admitted is outstanding.
const RULES: &str = "rules: [{ id: all, limit: 1/h burst 2000, on_store_failure: deny }]";
const BURST: u64 = 2_000;

#[test]
fn a_node_that_is_told_to_stop_returns_its_lease_and_one_that_is_killed_does_not() {
    let redis = Redis::start();
    let other = Node::start(&redis.url(), RULES, &[]);
    let mut admitted = 0;
    for (signal, is_returned) in [(Signal::TERM, true), (Signal::KILL, false)] {
        let mut node = Node::start(&redis.url(), RULES, &[]);
        let held = node.holds_tokens();
        node.server.signal(signal);
        node.server.ended();
        admitted += node.end().len() as u64;
        let outstanding = BURST - other.remaining() - admitted;
        println!("{signal:?}: {held} held, {admitted} admitted, {outstanding} outstanding");
        if is_returned {
            assert_eq!(outstanding, 0, "{held} held");
        } else {
            // A request may have been on its way when the tokens were counted.
            assert!((held - 1..=held).contains(&outstanding), "{held} held, {outstanding} outstanding");
        }
    }
}

#[test]
fn a_node_that_hands_over_under_load_leaves_nothing_outstanding() {
    let (redis, folder) = (Redis::start(), tempfile::tempdir().unwrap());
    let meeting = folder.path().join("handover.sock");
    let handover = ["--handover", meeting.to_str().unwrap()];
    let mut first = Node::start(&redis.url(), RULES, &handover);
    first.wants(LITTLE);
    until("tokens", || first.of_tier("cost_held").filter(|held| *held >= 10));
    let second = Node::start(&redis.url(), RULES, &handover);
    assert!(first.server.ended().success());
    // The client has asked all the time: some requests may have lost their answers, and those that were refused count as denied.
    let admitted = first.end().len() as u64;
    let (unanswered, outstanding) = (first.unanswered(), BURST - second.remaining() - admitted);
    println!("{admitted} admitted, {unanswered} without an answer, {outstanding} outstanding");
    assert!(
        admitted > 10 && outstanding <= unanswered && unanswered < 5,
        "{outstanding} outstanding, {unanswered} open"
    );
}

#[test]
fn metrics_account_for_every_token_that_a_node_has_leased() {
    let redis = Redis::start();
    let node = Node::start(&redis.url(), RULES, &["--admin-open-metrics", "true"]);
    node.holds_tokens();
    let metrics = format!("http://{}/metrics", node.server.listener("Admin"));
    // The client is done, so the node returns its lease.
    until("a return", || {
        let page = node.server.get_from(&metrics, &[]).body;
        let number = |series: &str| {
            let line = page.lines().find_map(|line| line.strip_prefix(&format!("tidegate_{series} ")));
            line.unwrap_or_else(|| panic!("no {series} in\n{page}")).parse::<u64>().unwrap()
        };
        let allowed = number(r#"lease_decisions_total{outcome="allowed"}"#);
        let denied = number(r#"lease_decisions_total{outcome="denied"}"#);
        assert_eq!(number(r#"tier_requests_total{by="lease"}"#), allowed + denied);
        let (returned, ended) = (number("lease_cost_returned_total"), number("lease_cost_ended_total"));
        let is_accounted_for = number("lease_cost_granted_total") == allowed + returned + ended;
        (number("lease_cost_held") == 0 && allowed > 0 && returned > 0 && is_accounted_for).then_some(())
    });
}
