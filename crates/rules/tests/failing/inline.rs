//! Inline limits, while the store answers and while it does not.

use tidegate_core::contract::faulty::Fault;
use tidegate_core::{Decision, Key, Micros, Outcome, RuleId};
use tidegate_rules::{DecidedBy, InlineLimit, OnStoreFailure};

use crate::failing::support::{Stage, finish};

fn stage() -> Stage {
    Stage::new("rules: []")
}

fn brought(limit: &str, on_store_failure: OnStoreFailure) -> InlineLimit {
    InlineLimit::new(RuleId::new("brought"), limit.parse().unwrap(), on_store_failure)
}

fn alice(stage: &Stage, limit: &InlineLimit, cost: u64) -> (Decision, DecidedBy) {
    finish(stage.limiter.charge(limit, &Key::from("alice"), cost))
}

#[test]
fn it_is_held_like_a_limit_of_the_rules() {
    let (stage, limit) = (stage(), brought("gcra 2/h", OnStoreFailure::Deny));
    let (first, by) = alice(&stage, &limit, 1);
    assert_eq!((first.is_allowed(), first.remaining, by), (true, 1, DecidedBy::Store));
    assert!(alice(&stage, &limit, 1).0.is_allowed());
    assert_eq!(alice(&stage, &limit, 1).0.retry_after(), Some(Micros::from_secs(1_800)));
    assert_eq!(alice(&stage, &limit, 3).0.outcome, Outcome::TooLarge { max: 2 });
    assert!(finish(stage.limiter.charge(&limit, &Key::from("bob"), 1)).0.is_allowed());
}

#[test]
fn nothing_is_taken_by_a_cost_of_nothing() {
    let (stage, limit) = (stage(), brought("gcra 2/h", OnStoreFailure::Deny));
    for _ in 0..5 {
        assert_eq!(alice(&stage, &limit, 0).0.remaining, 2);
    }
}

#[test]
fn charges_of_one_limit_count_under_another_of_the_same_name() {
    let stage = stage();
    let (small, large) = (brought("gcra 2/h", OnStoreFailure::Deny), brought("gcra 100/h", OnStoreFailure::Deny));
    assert!(alice(&stage, &small, 2).0.is_allowed());
    assert_eq!(alice(&stage, &large, 1).0.remaining, 97);
}

#[test]
fn each_policy_stands_in_for_a_store_that_fails() {
    for (policy, by, outcome) in [
        (OnStoreFailure::default(), DecidedBy::Allow, Outcome::Allow { delay: Micros::ZERO }),
        (OnStoreFailure::Deny, DecidedBy::Deny, Outcome::Deny { retry_after: Micros::from_secs(1) }),
        (OnStoreFailure::Local { percent: 50 }, DecidedBy::Local, Outcome::Allow { delay: Micros::ZERO }),
    ] {
        let (stage, limit) = (stage(), brought("gcra 10/h", policy));
        stage.fail(Fault::Unreachable);
        let (decision, decided_by) = alice(&stage, &limit, 1);
        assert_eq!((decision.outcome, decided_by), (outcome, by));
        stage.fail(None);
        assert_eq!(alice(&stage, &limit, 1).1, DecidedBy::Store);
    }
}

#[test]
fn a_share_is_all_that_this_process_gives_and_the_store_is_told() {
    let (stage, limit) = (stage(), brought("gcra 10/h", OnStoreFailure::Local { percent: 50 }));
    stage.fail(Fault::Unreachable);
    let admitted = (0..20).filter(|_| alice(&stage, &limit, 1).0.is_allowed()).count();
    assert_eq!((admitted, stage.health().decided.local_denied), (5, 15));
    stage.fail(None);
    assert_eq!(stage.report(), 0);
    assert_eq!(alice(&stage, &limit, 0).0.remaining, 5);
}
