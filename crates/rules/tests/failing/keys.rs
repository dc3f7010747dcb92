//! Single keys that the store cannot decide, while it decides other keys.

use tidegate_core::contract::faulty::Fault;
use tidegate_core::{ManualClock, MemoryStore, Micros, RuleId, Timestamp};
use tidegate_rules::{DecidedBy, Limiter};

use crate::failing::support::{Stage, by};

fn unusable(rule: &str) -> Fault {
    Fault::Unusable(RuleId::new(rule))
}

const TWO: &str = "
rules:
  - { id: good, key: user, limit: 3/h, on_store_failure: deny }
  - { id: bad, key: user, limit: 10/h, on_store_failure: POLICY }
";

fn two(policy: &str) -> Stage {
    let stage = Stage::new(&TWO.replace("POLICY", policy));
    stage.fail(unusable("bad"));
    stage
}

#[test]
fn only_the_limits_concerned_are_decided_by_policy() {
    let stage = two("allow");
    let ruling = stage.alice();
    assert_eq!(by(&ruling), [DecidedBy::Store, DecidedBy::Allow]);
    assert_eq!(ruling.ruled[0].decision.remaining, 2);
    assert_eq!(stage.admitted(10), 2);
    assert!(stage.health().store.is_healthy() && !stage.health().keys.is_healthy());
    assert_eq!(stage.health().outages, 0);
}

#[test]
fn a_policy_that_denies_charges_nothing_elsewhere() {
    let stage = two("deny");
    for _ in 0..5 {
        let ruling = stage.alice();
        assert_eq!(by(&ruling), [DecidedBy::Store, DecidedBy::Deny]);
        assert_eq!((ruling.is_allowed(), ruling.ruled[0].decision.remaining), (false, 3));
    }
    stage.fail(None);
    assert_eq!(stage.admitted(10), 3);
}

#[test]
fn a_share_is_charged_only_if_the_store_admits() {
    let stage = two("{ local_percent: 50 }");
    assert_eq!(stage.admitted(10), 3);
    for _ in 0..5 {
        let ruling = stage.alice();
        assert_eq!(by(&ruling), [DecidedBy::Store, DecidedBy::Local]);
        assert_eq!(ruling.ruled[1].decision.remaining, 2);
        assert_eq!(ruling.deniers().map(|ruled| ruled.id.as_str()).collect::<Vec<_>>(), ["good"]);
    }
}

#[test]
fn a_share_that_is_used_up_charges_nothing_elsewhere() {
    let stage = two("{ local_percent: 20 }");
    assert_eq!(stage.admitted(10), 2);
    let ruling = stage.alice();
    assert_eq!((ruling.ruled[0].decision.remaining, ruling.ruled[1].decision.is_allowed()), (1, false));
}

#[test]
fn if_all_keys_are_unusable_all_are_decided_by_policy() {
    let stage = Stage::new("rules: [{ id: bad, key: user, limit: 10/h, on_store_failure: { local_percent: 20 } }]");
    stage.fail(unusable("bad"));
    assert_eq!((stage.admitted(10), stage.limiter.store().questions()), (2, 3));
}

#[test]
fn fail_open_ends_for_a_key_too() {
    let stage = two("{ allow_for: 30s }");
    assert_eq!(by(&stage.alice()), [DecidedBy::Store, DecidedBy::Allow]);
    // Decisions on other keys do not affect this key.
    stage.fail(None);
    stage.wait(30_000);
    stage.alice();
    stage.fail(unusable("bad"));
    assert_eq!(by(&stage.alice()), [DecidedBy::Store, DecidedBy::AllowEnded]);
    stage.fail(None);
    stage.wait(60_000);
    stage.alice();
    assert!(stage.health().keys.is_healthy());
}

#[test]
fn a_shadow_does_not_suffer_from_a_key_that_is_not_its_own() {
    let stage = Stage::new(
        "
rules:
  - { id: bad, key: user, limit: 1/h, on_store_failure: allow }
  - { id: dark, key: user, limit: 2/h, mode: shadow }
",
    );
    stage.fail(unusable("bad"));
    let left: Vec<_> = (0..3).map(|_| stage.alice().ruled[1].decision.remaining).collect();
    assert_eq!(left, [1, 0, 0]);
}

/// A store in memory with room for some reservations.
fn narrow() -> (Limiter<MemoryStore<ManualClock>, ManualClock>, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let rules = crate::failing::support::rules(
        "rules: [{ id: r, key: user, limits: [{ limit: 1000/h, reserve: 1h }], on_store_failure: { local_percent: 1 } }]",
    );
    let store = MemoryStore::with_clock_and_cap(clock.clone(), 200);
    (Limiter::with_clock(rules, store, clock.clone()), clock)
}

#[test]
fn a_store_that_has_no_room_for_reservations_is_not_away() {
    let (limiter, clock) = narrow();
    let request = crate::failing::support::alice();
    let allowed = (0..100).filter(|_| limiter.check_now(&request).is_allowed()).count();
    let held = limiter.store().stats().reservations;
    assert!((5..50).contains(&held), "{held}");
    assert_eq!(allowed, held + 10, "what can be held, and one in a hundred of the limit");
    assert!(limiter.health().store.is_healthy() && !limiter.health().keys.is_healthy());
    clock.advance(Micros::from_secs(3_601));
    assert_eq!(by(&limiter.check_now(&request)), [DecidedBy::Store]);
}

#[test]
fn keys_without_room_are_decided_by_their_rule_at_once() {
    let (limiter, _) = narrow();
    let request = crate::failing::support::alice();
    let check = || limiter.check_then(&request, |_, ruling| (ruling.is_allowed(), ruling.ruled[0].by)).now().unwrap();
    let said: Vec<_> = (0..100).map(|_| check()).collect();
    let held = limiter.store().stats().reservations;
    let (by_store, rest) = said.split_at(held);
    let (by_share, denied) = rest.split_at(10);
    assert!(held > 0 && by_store.iter().all(|said| *said == (true, DecidedBy::Store)));
    assert!(by_share.iter().all(|said| *said == (true, DecidedBy::Local)));
    assert!(denied.iter().all(|said| *said == (false, DecidedBy::Local)));
}

#[test]
fn a_store_that_may_wait_is_not_asked_on_the_spot() {
    let stage = Stage::new("rules: [{ id: a, key: user, limit: 1/h }]");
    assert_eq!(
        stage.limiter.check_then(&crate::failing::support::alice(), |_, ruling| ruling.is_allowed()).now(),
        None
    );
    assert_eq!(stage.limiter.store().questions(), 0);
    assert!(stage.alice().is_allowed());
}
