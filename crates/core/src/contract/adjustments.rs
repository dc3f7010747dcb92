//! Adjustments: penalties, credits, resets, changed limits and clock steps.

use super::holds::hold;
use super::{Subject, assert_denied, five_of_each, limit, rule};
use crate::charge::Charge;
use crate::key::{Key, RuleId};
use crate::receipt::Settlement;
use crate::store::Adjustment;
use crate::time::{Micros, Timestamp};

/// A penalty reaches at most one capacity below empty. A credit never lifts a key above full.
pub fn a_penalty_puts_a_key_into_debt_and_a_credit_takes_it_out(subject: &impl Subject) {
    let key = Key::from("alice");
    for limit in &five_of_each() {
        let rule = rule("penalty", limit);
        let charge = Charge::new(&rule, &key, limit);
        assert_eq!(subject.adjust(charge.cost(2), Adjustment::Penalty).remaining, 3, "{limit}");
        let deep = subject.adjust(charge.cost(u64::MAX), Adjustment::Penalty);
        assert_denied(&deep);
        assert_denied(&subject.decide_one(charge));
        assert_eq!(subject.adjust(charge.cost(1), Adjustment::Penalty), deep, "{limit}: a debt has an end");
        // Places in a queue and slots belong to their holders, so a credit does not free them.
        if ["shaper 1/s queue 5", "concurrent 5 ttl 30s"].contains(&limit.to_string().as_str()) {
            assert_eq!(subject.adjust(charge.cost(9), Adjustment::Credit), deep, "{limit}");
            continue;
        }
        assert_eq!(subject.adjust(charge.cost(7), Adjustment::Credit).remaining, 2, "{limit}");
        assert_eq!(subject.adjust(charge.cost(u64::MAX), Adjustment::Credit).remaining, 5, "{limit}");
    }
}

/// A refund leaves no debt, even if a part of the cost had already recovered.
pub fn refunds_of_a_bucket_that_refills_are_free(subject: &impl Subject) {
    let key = Key::from("alice");
    for limit in ["1/h burst 1", "gcra 1/h burst 1", "meter 1/h burst 1"].map(limit) {
        let (credited, settled) = (rule("credited", &limit), rule("settled", &limit));
        let charge = Charge::new(&credited, &key, &limit);
        assert!(subject.decide_one(charge).is_allowed(), "{limit}");
        let reserved = Charge::new(&settled, &key, &limit).reserve(Micros::from_secs(3_600));
        let receipt = hold(subject, &[reserved]);
        subject.wait(Micros::from_secs(600));
        assert_denied(&subject.peek(charge));
        assert!(subject.adjust(charge, Adjustment::Credit).is_allowed(), "{limit}");
        assert_eq!(subject.settle(&receipt, &[0]), Settlement::Settled { given_back: 1, charged: 0 }, "{limit}");
        for rule in [&credited, &settled] {
            assert!(subject.decide_one(Charge::new(rule, &key, &limit)).is_allowed(), "{limit}");
        }
    }
}

/// A reset affects only that key under that rule.
pub fn a_reset_key_is_as_good_as_new(subject: &impl Subject) {
    let (alice, bob) = (Key::from("alice"), Key::from("bob"));
    for limit in &five_of_each() {
        let (other, rule) = (rule("reset other", limit), rule("reset", limit));
        let charge = Charge::new(&rule, &alice, limit);
        let others = [Charge::new(&rule, &bob, limit), Charge::new(&other, &alice, limit)];
        assert!(!subject.reset(&rule, &alice), "{limit}: there is nothing to forget yet");
        for charge in [charge, others[0], others[1]] {
            assert!(subject.decide_one(charge.cost(5)).is_allowed());
        }
        assert!(subject.reset(&rule, &alice), "{limit}");
        assert_eq!(subject.peek(charge.cost(0)).remaining, 5, "{limit}");
        for other in others {
            assert_denied(&subject.decide_one(other));
        }
    }
}

/// For every pair of algorithms, spending under the old limit counts under the new one.
pub fn a_changed_limit_keeps_what_was_spent(subject: &impl Subject) {
    let key = Key::from("alice");
    let raised =
        ["2/s burst 8", "gcra 3/s burst 8", "shaper 7/s queue 8", "fixed 8/min", "sliding 8/min parts 2", "log 8/h"];
    for old in five_of_each().iter().filter(|limit| !limit.holds_slots()) {
        for new in raised.map(limit) {
            let rule = RuleId::new(&format!("raised: {old} to {new}"));
            assert!(subject.decide_one(Charge::new(&rule, &key, old).cost(3)).is_allowed());
            assert_eq!(subject.peek(Charge::new(&rule, &key, &new).cost(0)).remaining, 5, "{old} to {new}");
            assert!(subject.decide_one(Charge::new(&rule, &key, &new).cost(5)).is_allowed(), "{old} to {new}");
            assert_denied(&subject.decide_one(Charge::new(&rule, &key, &new)));
        }
    }
    let (rule, few, many) = (RuleId::new("more slots"), limit("concurrent 2 ttl 30s"), limit("concurrent 3 ttl 60s"));
    assert!(subject.decide_one(Charge::new(&rule, &key, &few).cost(2)).is_allowed());
    assert_eq!(subject.peek(Charge::new(&rule, &key, &many).cost(0)).remaining, 1);
}

/// A key that has spent more than the new limit holds has to wait.
pub fn a_lowered_limit_grants_nothing(subject: &impl Subject) {
    let key = Key::from("alice");
    let lowered =
        ["1/s burst 3", "gcra 1/s burst 3", "meter 1/min burst 3", "fixed 3/min", "sliding 3/min parts 6", "log 3/min"];
    for old in five_of_each().iter().filter(|limit| !limit.holds_slots()) {
        for new in lowered.map(limit) {
            let rule = RuleId::new(&format!("lowered: {old} to {new}"));
            assert!(subject.decide_one(Charge::new(&rule, &key, old).cost(4)).is_allowed());
            assert_denied(&subject.decide_one(Charge::new(&rule, &key, &new)));
        }
    }
}

/// Spending counts whatever the clock reads.
pub fn a_clock_that_steps_back_admits_nothing_twice(subject: &impl Subject) {
    let key = Key::from("alice");
    let start = subject.now();
    for back in [1, 1_000, 1_000_000, 90_000_000, 86_400_000_000, 40 * 86_400_000_000].map(Micros::new) {
        for limit in &five_of_each() {
            let rule = rule(&format!("back {back}"), limit);
            let charge = Charge::new(&rule, &key, limit);
            subject.clock().set(start);
            assert!(subject.decide_one(charge.cost(5)).is_allowed());
            subject.clock().set(start - back);
            assert_denied(&subject.decide_one(charge));
        }
    }
    subject.clock().set(start);
}

/// After a step of years a key waits as long as its limit takes to recover, not for years.
pub fn a_clock_that_steps_far_back_does_not_block_for_long(subject: &impl Subject) {
    let key = Key::from("alice");
    let start = subject.now();
    let years = Micros::from_secs(10 * 365 * 86_400);
    for limit in &five_of_each() {
        let rule = rule("far back", limit);
        let charge = Charge::new(&rule, &key, limit);
        subject.clock().set(start + years);
        assert!(subject.decide_one(charge.cost(5)).is_allowed());
        subject.clock().set(start);
        let wait = assert_denied(&subject.decide_one(charge));
        assert!(wait <= Micros::from_secs(31 * 86_400), "{limit}: {wait}");
        subject.wait(wait);
        assert!(subject.decide_one(charge).is_allowed(), "{limit}");
    }
    subject.clock().set(start);
}

/// A jump ahead admits as much as the skipped time would have, at most one capacity.
pub fn a_clock_that_leaps_ahead_admits_one_capacity(subject: &impl Subject) {
    let key = Key::from("alice");
    let start = subject.now();
    for limit in &five_of_each() {
        let rule = rule("ahead", limit);
        let charge = Charge::new(&rule, &key, limit);
        assert!(subject.decide_one(charge.cost(5)).is_allowed());
        for instant in [start + Micros::from_secs(100 * 365 * 86_400), Timestamp::MAX - Micros::from_secs(86_400)] {
            subject.clock().set(instant);
            assert!(subject.decide_one(charge.cost(5)).is_allowed(), "{limit}");
            assert_denied(&subject.decide_one(charge));
        }
        subject.clock().set(start);
    }
}
