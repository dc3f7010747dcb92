//! Failure policies, alone and combined.

use tidegate_core::adaptive::ServiceOutcome;
use tidegate_core::contract::faulty::Fault;
use tidegate_core::{Micros, Outcome, Settlement};
use tidegate_rules::{DecidedBy, Mode, Request};

use crate::failing::support::{OUTAGES, Stage, alice, by, finish};

#[test]
fn while_the_store_answers_the_store_decides() {
    let stage = Stage::new("rules: [{ id: a, key: user, limit: 2/h, on_store_failure: deny }]");
    let ruling = stage.alice();
    assert_eq!((ruling.is_allowed(), ruling.is_by_policy(), by(&ruling)), (true, false, vec![DecidedBy::Store]));
    assert_eq!(stage.admitted(5), 1);
    assert!(stage.health().store.is_healthy());
}

#[test]
fn a_decrease_of_a_rate_that_does_not_reach_the_store_is_counted_once() {
    let stage =
        Stage::new("rules: [{ id: api, limit: 1000/s, adapt: { between: 100/s..1000/s, by: aimd, on: errors > 5% } }]");
    let generation = stage.limiter.rules();
    let rate = generation.rules.adaptive_rates().next().unwrap();
    finish(stage.limiter.adapt());
    for _ in 0..20 {
        rate.window().begin();
        rate.window().end(Micros::from_millis(1), ServiceOutcome::Failed);
    }
    stage.wait(1_000);
    stage.fail(Fault::AdjustmentsUnreachable);
    finish(stage.limiter.adapt());
    assert!(rate.tokens() < 1_000, "{rate}");
    assert_eq!(rate.decreases(), 1);
}

#[test]
fn allow_lets_requests_pass_and_counts_nothing() {
    for fault in OUTAGES {
        let stage = Stage::new("rules: [{ id: a, key: user, limit: 2/h }]");
        stage.fail(fault);
        for _ in 0..100 {
            let ruling = stage.alice();
            assert_eq!((ruling.is_allowed(), by(&ruling)), (true, vec![DecidedBy::Allow]));
            let decision = ruling.ruled[0].decision;
            assert_eq!((decision.limit, decision.remaining, decision.reset_after), (2, 2, Micros::ZERO));
        }
        assert_eq!(stage.health().decided.allow, 100);
    }
}

#[test]
fn deny_denies_with_a_wait_that_grows_with_the_outage() {
    let stage = Stage::new("rules: [{ id: a, key: user, limit: 2/h, on_store_failure: deny }]");
    stage.fail(Fault::Unreachable);
    for (passed, wait) in [(0, 1), (500, 1), (3_500, 4), (6_000, 10), (3_600_000, 30)] {
        stage.wait(passed);
        let ruling = stage.alice();
        assert_eq!(ruling.verdict.outcome, Outcome::Deny { retry_after: Micros::from_secs(wait) });
        assert_eq!((by(&ruling), ruling.ruled[0].decision.remaining), (vec![DecidedBy::Deny], 0));
    }
    assert_eq!(stage.health().decided.deny, 5);
}

#[test]
fn local_holds_a_share_of_the_limit() {
    let stage = Stage::new("rules: [{ id: a, key: user, limit: 10/h, on_store_failure: { local_percent: 30 } }]");
    assert_eq!(stage.admitted(4), 4);
    stage.fail(Fault::Unreachable);
    let ruling = stage.alice();
    assert_eq!(by(&ruling), [DecidedBy::Local]);
    assert_eq!((ruling.ruled[0].decision.limit, ruling.ruled[0].decision.remaining), (3, 2));
    assert_eq!(stage.admitted(10), 2);
    // Three per hour, and each key separately.
    assert_eq!(stage.alice().verdict.outcome, Outcome::Deny { retry_after: Micros::from_secs(1_200) });
    assert!(stage.check(&Request::new("GET", "/").user("bob")).is_allowed());
    assert_eq!((stage.health().decided.local_allowed, stage.health().decided.local_denied), (4, 2));
    // When the store is available again, its own counts apply.
    stage.fail(None);
    assert_eq!(stage.admitted(10), 6);
}

#[test]
fn allow_for_ends_and_begins_anew_after_the_store_has_answered() {
    let stage = Stage::new("rules: [{ id: a, key: user, limit: 100/h, on_store_failure: { allow_for: 30s } }]");
    for _ in 0..2 {
        stage.fail(Fault::Unreachable);
        assert_eq!(by(&stage.alice()), [DecidedBy::Allow]);
        stage.wait(29_999);
        assert_eq!(by(&stage.alice()), [DecidedBy::Allow]);
        stage.wait(1);
        let ruling = stage.alice();
        assert_eq!((ruling.is_allowed(), by(&ruling)), (false, vec![DecidedBy::AllowEnded]));
        stage.fail(None);
        stage.wait(1_000);
        assert_eq!(by(&stage.alice()), [DecidedBy::Store]);
    }
}

#[test]
fn a_store_that_answers_now_and_then_does_not_open_what_has_ended() {
    let stage = Stage::new("rules: [{ id: a, key: user, limit: 100/h, on_store_failure: { allow_for: 30s } }]");
    for _ in 0..60 {
        stage.fail(Fault::Failed);
        stage.alice();
        stage.fail(None);
        stage.wait(500);
        assert_eq!(by(&stage.alice()), [DecidedBy::Store]);
    }
    stage.fail(Fault::Failed);
    assert_eq!(by(&stage.alice()), [DecidedBy::AllowEnded]);
}

#[test]
fn a_clock_that_steps_back_prolongs_nothing_by_more_than_its_bound() {
    let stage = Stage::new("rules: [{ id: a, key: user, limit: 100/h, on_store_failure: { allow_for: 30s } }]");
    stage.fail(Fault::Unreachable);
    stage.alice();
    stage.clock.set(tidegate_core::Timestamp::from_secs(1_600_000_000));
    assert_eq!(by(&stage.alice()), [DecidedBy::Allow]);
    stage.wait(30_000);
    assert_eq!(by(&stage.alice()), [DecidedBy::AllowEnded]);
}

#[test]
fn each_rule_does_what_it_says_and_all_must_admit() {
    let stage = Stage::new(
        "
rules:
  - { id: open, limit: 5/h }
  - { id: share, key: user, limit: 4/h, on_store_failure: { local_percent: 50 } }
  - { id: posts, match: { method: POST }, limit: 5/h, on_store_failure: deny }
",
    );
    stage.fail(Fault::Unreachable);
    let post = Request::new("POST", "/").user("alice");
    let denied = stage.check(&post);
    assert_eq!(by(&denied), [DecidedBy::Allow, DecidedBy::Local, DecidedBy::Deny]);
    assert_eq!(denied.deniers().map(|ruled| ruled.id.as_str()).collect::<Vec<_>>(), ["posts"]);
    assert_eq!(denied.ruled[1].decision.remaining, 2, "it was charged although the request was denied");
    assert_eq!(stage.admitted(5), 2);
    assert_eq!(stage.alice().deniers().map(|ruled| ruled.id.as_str()).collect::<Vec<_>>(), ["share"]);
}

#[test]
fn several_local_limits_are_charged_together_or_not_at_all() {
    let stage = Stage::new(
        "
rules:
  - { id: wide, limit: 10/h, on_store_failure: local }
  - { id: narrow, key: user, limit: 1/h, on_store_failure: local }
",
    );
    stage.fail(Fault::Unreachable);
    assert!(stage.alice().is_allowed());
    for _ in 0..20 {
        let ruling = stage.alice();
        assert_eq!((ruling.is_allowed(), ruling.ruled[0].decision.remaining), (false, 9));
    }
    assert!(stage.check(&Request::new("GET", "/").user("bob")).is_allowed());
}

#[test]
fn costs_that_never_fit_are_denied_without_the_store_too() {
    for policy in ["allow", "deny", "local", "{ local_percent: 50 }"] {
        let stage = Stage::new(&format!(
            "rules: [{{ id: a, key: user, limit: 10/h, cost: 'header:X-Cost', on_store_failure: {policy} }}]"
        ));
        stage.fail(Fault::Unreachable);
        let ruling = stage.check(&alice().header("X-Cost", "11"));
        assert_eq!(ruling.verdict.outcome, Outcome::TooLarge { max: 10 }, "{policy}");
        assert_eq!((by(&ruling), stage.health().decided.too_large), (vec![DecidedBy::Limit], 1), "{policy}");
    }
}

#[test]
fn costs_above_the_share_are_not_denied_for_ever() {
    let stage = Stage::new(
        "rules: [{ id: a, key: user, limit: 10/h, cost: 'header:X-Cost', on_store_failure: { local_percent: 50 } }]",
    );
    stage.fail(Fault::Unreachable);
    let ruling = stage.check(&alice().header("X-Cost", "6"));
    assert_eq!(ruling.verdict.outcome, Outcome::Deny { retry_after: Micros::from_secs(1) });
    assert!(stage.check(&alice().header("X-Cost", "5")).is_allowed());
}

#[test]
fn headers_are_told_of_the_limit_that_says_something() {
    let stage = Stage::new(
        "rules: [{ id: open, limit: 5/h }, { id: share, limit: 100/h, on_store_failure: { local_percent: 50 } }]",
    );
    stage.fail(Fault::Unreachable);
    assert_eq!(stage.alice().verdict.binding, Some(1));
}

#[test]
fn a_shadow_reports_what_its_policy_would_do() {
    let stage = Stage::new(
        "
rules:
  - { id: open, limit: 5/h }
  - { id: dark, limit: 2/h, on_store_failure: local, mode: shadow }
  - { id: darker, limit: 2/h, on_store_failure: deny, mode: shadow }
",
    );
    stage.fail(Fault::Unreachable);
    let says: Vec<_> = (0..3)
        .map(|_| {
            let ruling = stage.alice();
            assert!(ruling.is_allowed());
            ruling
                .ruled
                .iter()
                .map(|ruled| (ruled.mode == Mode::Shadow, ruled.decision.is_allowed()))
                .collect::<Vec<_>>()
        })
        .collect();
    let with = |dark| vec![(false, true), (true, dark), (true, false)];
    assert_eq!(says, [with(true), with(true), with(false)]);
    // Only enforced decisions are counted.
    assert_eq!((stage.health().decided.allow, stage.health().decided.deny), (3, 0));
}

#[test]
fn local_slots_are_released_locally() {
    let stage = Stage::new(
        "
rules:
  - id: model
    key: user
    limits:
      - { name: tokens, limit: 100/h, cost: 60, reserve: 1min }
      - { name: streams, slots: 1, ttl: 1min }
    on_store_failure: local
",
    );
    stage.fail(Fault::Unreachable);
    let first = stage.alice();
    assert_eq!((first.is_allowed(), first.receipts.len()), (true, 1));
    assert_eq!(stage.alice().deniers().count(), 2);
    // The store recovers before the request ends.
    stage.fail(None);
    assert!(finish(stage.limiter.renew(&first.receipts[0])).unwrap());
    let questions = stage.limiter.store().questions();
    let settled = finish(stage.limiter.settle(&first.receipts[0], &[10, 1])).unwrap();
    assert_eq!(settled, Settlement::Settled { given_back: 51, charged: 0 });
    assert_eq!(stage.limiter.store().questions(), questions, "the store knows nothing of this receipt");
    stage.fail(Fault::Unreachable);
    assert!(stage.alice().is_allowed());
}

#[test]
fn slots_of_the_store_are_released_at_the_store() {
    let stage = Stage::new("rules: [{ id: a, key: user, limit: concurrent 1 ttl 1min, on_store_failure: local }]");
    let held = stage.alice();
    stage.fail(Fault::Unreachable);
    assert!(stage.alice().is_allowed(), "the share of this process is its own");
    assert!(finish(stage.limiter.settle(&held.receipts[0], &[1])).is_err());
    stage.fail(None);
    assert_eq!(
        finish(stage.limiter.settle(&held.receipts[0], &[1])).unwrap(),
        Settlement::Settled { given_back: 1, charged: 0 }
    );
    assert!(stage.alice().is_allowed());
}

#[test]
fn a_request_that_no_rule_governs_passes_without_a_question() {
    let stage = Stage::new("rules: [{ id: a, match: { path: /x }, limit: 1/h, on_store_failure: deny }]");
    stage.fail(Fault::Unreachable);
    assert!(stage.alice().is_allowed());
    assert_eq!(stage.limiter.store().questions(), 0);
}

#[test]
fn checks_may_move_between_threads() {
    fn is_send<T: Send>(_: &T) {}
    let stage = Stage::new("rules: [{ id: a, limit: 1/h }]");
    is_send(&stage.limiter.check(&alice()));
    is_send(&stage.limiter.report_local());
}
