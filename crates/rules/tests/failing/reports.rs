//! Reports to the store, after an outage, of costs admitted without it.

use tidegate_core::contract::faulty::Fault;
use tidegate_core::{Charge, Key, Limit, RuleId};
use tidegate_rules::Request;

use crate::failing::support::{Stage, alice, finish};

fn stage(limit: &str, percent: u32) -> Stage {
    Stage::new(&format!(
        "rules: [{{ id: a, key: user, limit: {limit}, on_store_failure: {{ local_percent: {percent} }} }}]"
    ))
}

/// Alice's remaining quota in the store.
fn left(stage: &Stage, limit: &str) -> u64 {
    let (rule, key, limit): (_, _, Limit) = (RuleId::new("a"), Key::from("alice"), limit.parse().unwrap());
    stage.limiter.store().within().peek(&[Charge::new(&rule, &key, &limit).cost(0)])[0].remaining
}

#[test]
fn unrecovered_charges_are_reported_for_every_algorithm() {
    for limit in [
        "100/h",
        "gcra 100/h",
        "meter 100/h",
        "shaper 100/h queue 100",
        "fixed 100/day",
        "fixed 100/month calendar",
        "sliding 100/h",
        "sliding 100/h parts 6",
        "log 100/h",
    ] {
        let stage = stage(limit, 20);
        assert_eq!(stage.admitted(10), 10);
        stage.fail(Fault::Unreachable);
        assert_eq!(stage.admitted(100), 20, "{limit}");
        stage.fail(None);
        assert_eq!(left(&stage, limit), 90, "{limit}: nobody has told it yet");
        assert_eq!(stage.report(), 0);
        assert_eq!(left(&stage, limit), 70, "{limit}");
        // Costs are reported only once.
        stage.report();
        assert_eq!(left(&stage, limit), 70, "{limit}");
        let reports = stage.health().reports;
        assert_eq!((reports.waiting, reports.keys, reports.cost, reports.lost), (0, 1, 20, 0), "{limit}");
    }
}

#[test]
fn recovered_charges_are_not_reported() {
    let stage = stage("10/s", 100);
    stage.fail(Fault::Unreachable);
    let mut admitted = 0;
    for _ in 0..600 {
        admitted += stage.admitted(100);
        stage.wait(100);
    }
    assert_eq!(admitted, 10 + 599, "a minute's worth");
    stage.fail(None);
    stage.report();
    assert_eq!(left(&stage, "10/s"), 1);
    assert_eq!(stage.health().reports.cost, 9);
}

#[test]
fn slots_are_not_reported() {
    let stage = stage("concurrent 5 ttl 1min", 100);
    stage.fail(Fault::Unreachable);
    assert_eq!(stage.admitted(10), 5);
    stage.fail(None);
    assert_eq!((stage.report(), stage.health().reports.keys), (0, 0));
    assert_eq!(stage.admitted(10), 5);
}

#[test]
fn charges_of_unknown_outcome_are_not_reported() {
    for fault in [Fault::QuestionLost, Fault::AnswerLost] {
        let stage = stage("100/h", 20);
        stage.fail(fault);
        assert_eq!(stage.admitted(5), 5);
        stage.fail(None);
        assert_eq!((stage.report(), stage.health().reports.keys), (0, 0));
    }
}

#[test]
fn a_report_is_tried_again_unless_it_may_have_arrived() {
    let stage = stage("100/h", 20);
    stage.fail(Fault::Unreachable);
    stage.admitted(20);
    assert_eq!(stage.report(), 1, "the store is still away");
    stage.fail(Fault::Failed);
    assert_eq!(stage.report(), 1);
    stage.fail(Fault::AnswerLost);
    assert_eq!(stage.report(), 0);
    stage.fail(None);
    assert_eq!(stage.report(), 0);
    assert_eq!(left(&stage, "100/h"), 80, "charged once");
    assert_eq!((stage.health().reports.keys, stage.health().charged_unknown), (0, 1));
}

#[test]
fn a_key_that_the_store_cannot_use_is_given_up() {
    let stage = stage("100/h", 20);
    stage.fail(Fault::Unreachable);
    stage.admitted(20);
    stage.fail(Fault::Unusable("a".into()));
    assert_eq!((stage.report(), stage.health().reports.lost), (0, 1));
}

#[test]
fn one_call_tells_of_a_bounded_number_of_keys() {
    let stage = stage("100/h", 20);
    stage.fail(Fault::Unreachable);
    for number in 0..300 {
        stage.check(&Request::new("GET", "/").user(&format!("user {number}")));
    }
    stage.fail(None);
    let questions = stage.limiter.store().questions();
    assert_eq!([stage.report(), stage.report(), stage.report()], [172, 44, 0]);
    assert_eq!(stage.limiter.store().questions() - questions, 300);
}

#[test]
fn settled_charges_are_reported_at_their_cost() {
    let stage = Stage::new(
        "
rules:
  - id: a
    key: user
    limits: [{ limit: 100/h, cost: 'header:X-Cost', reserve: 1min }]
    on_store_failure: local
",
    );
    stage.fail(Fault::Unreachable);
    for (estimate, actual) in [("40", 10), ("10", 15), ("5", 5)] {
        let ruling = stage.check(&alice().header("X-Cost", estimate));
        finish(stage.limiter.settle(&ruling.receipts[0], &[actual])).unwrap();
    }
    stage.check(&alice().header("X-Cost", "20"));
    stage.fail(None);
    stage.report();
    assert_eq!(left(&stage, "100/h"), 100 - 10 - 15 - 5 - 20);
}

#[test]
fn a_limit_that_changed_during_the_outage_keeps_what_was_admitted() {
    let stage = stage("100/h", 100);
    stage.fail(Fault::Unreachable);
    stage.admitted(50);
    stage.limiter.replace(crate::failing::support::rules(
        "rules: [{ id: a, key: user, limit: fixed 200/day, on_store_failure: local }]",
    ));
    stage.admitted(10);
    stage.fail(None);
    stage.report();
    assert_eq!(left(&stage, "fixed 200/day"), 140);
}
