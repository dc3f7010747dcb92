//! Outages: their beginning, their end, and the log.

use tidegate_core::Timestamp;
use tidegate_core::contract::faulty::Fault;
use tidegate_rules::Condition;

use crate::failing::log::logged;
use crate::failing::support::Stage;

#[test]
fn every_switch_is_logged_once() {
    let stage = Stage::new(
        "
rules:
  - { id: a, limit: 100/h, on_store_failure: { allow_for: 2s } }
  - { id: b, limit: 100/h, on_store_failure: deny }
",
    );
    let lines = logged(|| {
        for _ in 0..2 {
            stage.fail(Fault::Unreachable);
            for _ in 0..100 {
                stage.alice();
                stage.wait(50);
            }
            stage.fail(None);
            for _ in 0..100 {
                stage.alice();
                stage.wait(50);
            }
        }
    });
    let once = [
        "WARN: the store is unavailable: rules apply their `on_store_failure`",
        "WARN: the store has been unavailable for longer than the rule lets requests pass: they are denied",
        "INFO: the store decides again",
    ];
    assert_eq!(lines, [once, once].concat());
    assert_eq!(stage.health().outages, 2);
}

#[test]
fn a_store_that_fails_now_and_then_fills_no_log() {
    let stage = Stage::new("rules: [{ id: a, limit: 10000/h }]");
    let lines = logged(|| {
        for _ in 0..1_000 {
            stage.fail(Fault::Failed);
            stage.alice();
            stage.fail(None);
            stage.alice();
            stage.wait(20);
        }
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!((stage.health().outages, stage.health().unanswered), (1, 1_000));
}

#[test]
fn keys_that_cannot_be_decided_are_logged_once() {
    let stage = Stage::new("rules: [{ id: a, limit: 10000/h }]");
    stage.fail(Fault::Unusable("a".into()));
    let lines = logged(|| (0..100).for_each(|_| drop(stage.alice())));
    assert_eq!(lines, ["WARN: a key cannot be decided: its rules apply their `on_store_failure`"]);
}

#[test]
fn health_says_since_when_and_why() {
    let stage = Stage::new("rules: [{ id: a, limit: 10/h }]");
    stage.alice();
    stage.wait(5_000);
    stage.fail(Fault::Failed);
    stage.alice();
    stage.wait(7_000);
    stage.fail(Fault::Unreachable);
    stage.alice();
    let Condition::Failing { since, reason } = stage.health().store else { panic!("it is not well") };
    assert_eq!(since, Timestamp::from_secs(1_700_000_005));
    assert_eq!(&*reason, "the store is unreachable: the wire is cut");
    stage.fail(None);
    stage.alice();
    assert!(!stage.health().store.is_healthy(), "one answer is not enough");
    stage.wait(1_000);
    stage.alice();
    assert!(stage.health().store.is_healthy());
}

#[test]
fn possible_charges_are_counted() {
    let stage = Stage::new("rules: [{ id: a, limit: 10/h }]");
    for (fault, left) in [(Fault::QuestionLost, 9), (Fault::AnswerLost, 7), (Fault::Unreachable, 6), (Fault::Failed, 5)]
    {
        stage.fail(fault);
        stage.alice();
        stage.fail(None);
        assert_eq!(stage.alice().ruled[0].decision.remaining, left);
    }
    assert_eq!((stage.health().charged_unknown, stage.health().unanswered), (2, 4));
}
