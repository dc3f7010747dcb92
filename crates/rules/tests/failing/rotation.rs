//! Keys with two names, while the secret that names them is rotated.

use tidegate_core::contract::faulty::Fault;
use tidegate_core::{Charge, Key, RuleId, Settlement};
use tidegate_rules::{DecidedBy, Request, Secret};

use crate::failing::support::{OUTAGES, Stage, by, finish};

fn old() -> Secret {
    Secret::new(b"the previous one")
}

fn new() -> Secret {
    Secret::new(b"the present one!")
}

fn rotating(rules: &str) -> Stage {
    let stage = Stage::new(rules);
    stage.limiter.hide_under(new().with_previous(&old()).unwrap());
    stage
}

fn request() -> Request {
    Request::new("GET", "/").api_key("k1")
}

/// The remaining quota of ten per day in the store, under each of the names.
fn left(stage: &Stage) -> [u64; 2] {
    let (rule, limit) = (RuleId::new("a"), "fixed 10/day".parse().unwrap());
    [new(), old()].map(|secret| {
        let key = Key::of([secret.hide("k1")]);
        stage.limiter.store().within().peek(&[Charge::new(&rule, &key, &limit).cost(0)])[0].remaining
    })
}

#[test]
fn policies_decide_once_and_are_counted_once() {
    for (policy, decided_by, is_allowed) in [("allow", DecidedBy::Allow, true), ("deny", DecidedBy::Deny, false)] {
        for fault in OUTAGES {
            let text = format!("rules: [{{ id: a, key: api_key, limit: fixed 10/day, on_store_failure: {policy} }}]");
            let stage = rotating(&text);
            stage.fail(fault);
            let ruling = stage.check(&request());
            assert_eq!((ruling.is_allowed(), by(&ruling)), (is_allowed, vec![decided_by]));
            assert_eq!(stage.health().decided.allow + stage.health().decided.deny, 1);
        }
    }
}

#[test]
fn a_local_share_holds_both_names_and_the_store_is_told_of_both() {
    let text = "rules: [{ id: a, key: api_key, limit: fixed 10/day, on_store_failure: { local_percent: 30 } }]";
    let stage = rotating(text);
    assert!(stage.check(&request()).is_allowed());
    assert_eq!(left(&stage), [9, 9]);
    stage.fail(Fault::Unreachable);
    let allowed = (0..10).filter(|_| stage.check(&request()).is_allowed()).count();
    assert_eq!(allowed, 3);
    assert_eq!((stage.health().decided.local_allowed, stage.health().decided.local_denied), (3, 7));
    let peeked = finish(stage.limiter.peek(&request()));
    assert_eq!((by(&peeked), peeked.ruled[0].decision.remaining), (vec![DecidedBy::Local], 0));
    stage.fail(None);
    while stage.report() > 0 {}
    assert_eq!(left(&stage), [6, 6]);
}

#[test]
fn local_reservations_are_settled_under_both_names() {
    let text = "
rules:
  - id: a
    key: api_key
    limits: [{ limit: fixed 10/day, cost: 4, reserve: 1h }]
    on_store_failure: local
";
    let stage = rotating(text);
    stage.fail(Fault::Unreachable);
    let ruling = stage.check(&request());
    assert_eq!(ruling.receipts[0].unaliased().count(), 1);
    let settled = finish(stage.limiter.settle(&ruling.receipts[0], &[1, 1])).unwrap();
    assert_eq!(settled, Settlement::Settled { given_back: 3, charged: 0 });
    stage.fail(None);
    while stage.report() > 0 {}
    assert_eq!(left(&stage), [9, 9]);
}

#[test]
fn a_rule_whose_keys_the_store_cannot_use_is_decided_by_policy_once() {
    let text = "
rules:
  - { id: a, key: api_key, limit: fixed 10/day, on_store_failure: deny }
  - { id: b, limit: fixed 10/day }
";
    let stage = rotating(text);
    stage.fail(Fault::Unusable(RuleId::new("a")));
    let ruling = stage.check(&request());
    assert_eq!((ruling.is_allowed(), by(&ruling)), (false, vec![DecidedBy::Deny, DecidedBy::Store]));
    stage.fail(Fault::Unusable(RuleId::new("b")));
    let ruling = stage.check(&request());
    assert_eq!((ruling.is_allowed(), by(&ruling)), (true, vec![DecidedBy::Store, DecidedBy::Allow]));
    assert_eq!(left(&stage), [9, 9]);
}
