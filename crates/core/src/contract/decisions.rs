//! Decisions, peeks and the separation of keys.

use super::{Subject, assert_denied, five_of_each, limit, rule};
use crate::charge::Charge;
use crate::decision::Outcome;
use crate::key::{Key, RuleId};
use crate::time::Micros;

/// Five requests are admitted, the sixth is denied, and its wait is exactly long enough.
pub fn every_algorithm_admits_its_capacity_and_says_when_to_come_back(subject: &impl Subject) {
    let key = Key::from("alice");
    for limit in &five_of_each() {
        let rule = rule("capacity", limit);
        let charge = Charge::new(&rule, &key, limit);
        for left in (0..5).rev() {
            let decision = subject.decide_one(charge);
            assert!(decision.is_allowed(), "{limit}: {decision:?}");
            assert_eq!((decision.limit, decision.remaining), (5, left), "{limit}");
            assert!(!decision.reset_after.is_zero(), "{limit}");
        }
        let wait = assert_denied(&subject.decide_one(charge));
        subject.wait(Micros::new(wait.get() - 1));
        assert_eq!(assert_denied(&subject.decide_one(charge)), Micros::new(1), "{limit}");
        subject.wait(Micros::new(1));
        assert!(subject.decide_one(charge).is_allowed(), "{limit}: the wait was not long enough");
    }
}

/// Attempts of a denied client do not change when it is admitted.
pub fn a_denied_request_spends_nothing(subject: &impl Subject) {
    let key = Key::from("alice");
    for limit in &five_of_each() {
        let rule = rule("denied", limit);
        let charge = Charge::new(&rule, &key, limit);
        assert!(subject.decide_one(charge.cost(4)).is_allowed());
        let first = subject.decide_one(charge.cost(3));
        for _ in 0..10 {
            assert_eq!(subject.decide_one(charge.cost(3)), first, "{limit}");
        }
        assert!(subject.decide_one(charge).is_allowed(), "{limit}: what was left is still there");
    }
}

/// If one limit denies, none is charged, and the others report what they have left.
pub fn a_request_is_charged_to_all_of_its_limits_or_to_none(subject: &impl Subject) {
    let (wide, narrow) = (Key::from("tenant"), Key::from("user"));
    let tight = limit("fixed 1/day");
    for roomy in &five_of_each() {
        let (roomy_rule, tight_rule) = (rule("roomy", roomy), rule("tight", roomy));
        let charges = [Charge::new(&roomy_rule, &wide, roomy), Charge::new(&tight_rule, &narrow, &tight)];
        assert!(subject.decide(&charges).is_allowed(), "{roomy}");
        for _ in 0..10 {
            let answer = subject.decide(&charges);
            assert!(answer.decisions[0].is_allowed() && !answer.decisions[1].is_allowed(), "{roomy}");
            assert_eq!(answer.decisions[0].remaining, 4, "{roomy}: was charged although the request was denied");
            assert!(answer.receipt.is_none());
        }
        assert_eq!(subject.peek(charges[0].cost(0)).remaining, 4, "{roomy}");
    }
}

/// Two charges to one bucket in one request cannot both take the last unit.
pub fn charges_to_one_key_are_judged_by_their_sum(subject: &impl Subject) {
    let key = Key::from("alice");
    for limit in &five_of_each() {
        let rule = rule("sum", limit);
        let charge = Charge::new(&rule, &key, limit);
        let answer = subject.decide(&[charge.cost(2), charge.cost(2)]);
        assert!(answer.is_allowed(), "{limit}");
        assert_eq!((answer.decisions[0].remaining, answer.decisions[1].remaining), (3, 1), "{limit}");
        let answer = subject.decide(&[charge, charge]);
        assert!(answer.decisions[0].is_allowed() && !answer.decisions[1].is_allowed(), "{limit}");
        assert_eq!(subject.peek(charge.cost(0)).remaining, 1, "{limit}");
        let never = subject.decide(&[charge.cost(3), charge.cost(3)]).decisions[1];
        assert_eq!(never.outcome, Outcome::TooLarge { max: 5 }, "{limit}");
    }
}

/// The decision contains no wait, because no wait helps.
pub fn costs_above_the_capacity_never_succeed(subject: &impl Subject) {
    let key = Key::from("alice");
    for limit in &five_of_each() {
        let rule = rule("too large", limit);
        let charge = Charge::new(&rule, &key, limit);
        for cost in [6, u64::MAX] {
            let decision = subject.decide_one(charge.cost(cost));
            assert_eq!(decision.outcome, Outcome::TooLarge { max: 5 }, "{limit}");
            assert_eq!((decision.remaining, decision.retry_after()), (5, None), "{limit}");
        }
        assert!(subject.decide_one(charge.cost(5)).is_allowed(), "{limit}: nothing was spent");
    }
}

/// A cost of zero is allowed even if nothing is left, and changes nothing.
pub fn a_cost_of_nothing_asks_without_taking(subject: &impl Subject) {
    let key = Key::from("alice");
    for limit in &five_of_each() {
        let rule = rule("nothing", limit);
        let charge = Charge::new(&rule, &key, limit);
        assert_eq!(subject.decide_one(charge.cost(0)).remaining, 5, "{limit}");
        assert!(!subject.reset(&rule, &key), "{limit}: a trace was left");
        assert!(subject.decide_one(charge.cost(5)).is_allowed());
        let decision = subject.decide_one(charge.cost(0));
        assert!(decision.is_allowed() && decision.remaining == 0, "{limit}: {decision:?}");
    }
}

/// A peek changes nothing.
pub fn peeking_says_what_deciding_would_and_changes_nothing(subject: &impl Subject) {
    let key = Key::from("alice");
    for limit in &five_of_each() {
        let rule = rule("peek", limit);
        let charge = Charge::new(&rule, &key, limit);
        for cost in [1, 3, 1, 2, 6, 1] {
            let peeked = subject.peek(charge.cost(cost));
            assert_eq!(peeked, subject.peek(charge.cost(cost)), "{limit}");
            assert_eq!(peeked, subject.decide_one(charge.cost(cost)), "{limit}");
        }
    }
}

/// A key has separate states under different rules. Parts of a key are not concatenated.
pub fn keys_and_rules_do_not_share_state(subject: &impl Subject) {
    let one = limit("1/h");
    let keys = [
        Key::GLOBAL,
        Key::from(""),
        Key::of(["a:b", "c"]),
        Key::of(["a", "b:c"]),
        Key::of(["a", "b", "c"]),
        Key::from("abc"),
        Key::from(&[0xff, 0x00, b'{', b'}', b'\n'][..]),
        Key::of(["x".repeat(10_000)]),
        Key::of(["x".repeat(10_001)]),
    ];
    for rule in ["apart: a", "apart: b", "apart: {a}", "apart: "].map(RuleId::new) {
        for key in &keys {
            assert!(subject.decide_one(Charge::new(&rule, key, &one)).is_allowed(), "{rule:?} {key:?}");
            assert!(!subject.decide_one(Charge::new(&rule, key, &one)).is_allowed(), "{rule:?} {key:?}");
        }
    }
}

/// A request without charges is allowed.
pub fn no_charges_mean_no_limits(subject: &impl Subject) {
    let answer = subject.decide(&[]);
    assert!(answer.is_allowed() && answer.decisions.is_empty() && answer.receipt.is_none());
}
