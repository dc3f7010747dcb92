//! Holds: reservations and slots.

use super::{Subject, assert_denied, five_of_each, limit, rule};
use crate::charge::Charge;
use crate::key::{Key, RuleId};
use crate::limit::Limit;
use crate::receipt::{Receipt, Settlement};
use crate::time::Micros;

const TTL: Micros = Micros::from_secs(10);

fn refundable_limits() -> impl Iterator<Item = Limit> {
    five_of_each().into_iter().filter(|limit| !limit.holds_slots())
}

#[track_caller]
pub(super) fn hold(subject: &impl Subject, charges: &[Charge<'_>]) -> Receipt {
    let answer = subject.decide(charges);
    assert!(answer.is_allowed(), "{answer:?}");
    answer.receipt.unwrap_or_else(|| panic!("nothing to give back"))
}

/// The difference from the actual cost is refunded, or charged in addition, even into debt.
pub fn a_reservation_is_settled_at_what_it_really_cost(subject: &impl Subject) {
    let key = Key::from("alice");
    for limit in refundable_limits() {
        let rule = rule("settle", &limit);
        let charge = Charge::new(&rule, &key, &limit);
        let receipt = hold(subject, &[charge.cost(4).reserve(TTL)]);
        assert_eq!(subject.peek(charge.cost(0)).remaining, 1, "{limit}: reserving takes");
        assert_eq!(subject.settle(&receipt, &[1]), Settlement::Settled { given_back: 3, charged: 0 }, "{limit}");
        assert_eq!(subject.peek(charge.cost(0)).remaining, 4, "{limit}");

        let receipt = hold(subject, &[charge.cost(2).reserve(TTL)]);
        assert_eq!(subject.settle(&receipt, &[7]), Settlement::Settled { given_back: 0, charged: 5 }, "{limit}");
        assert_denied(&subject.peek(charge.cost(0)));
    }
}

/// An additional charge is limited by the bound on debt, and the settlement reports the limited amount.
pub fn additional_charges_stop_at_the_largest_debt(subject: &impl Subject) {
    let key = Key::from("alice");
    for limit in refundable_limits() {
        let rule = rule("debt", &limit);
        let charge = Charge::new(&rule, &key, &limit);
        let receipt = hold(subject, &[charge.cost(5).reserve(TTL)]);
        assert_eq!(subject.settle(&receipt, &[400]), Settlement::Settled { given_back: 0, charged: 5 }, "{limit}");
    }
}

/// A second settlement changes nothing.
pub fn a_receipt_settles_once(subject: &impl Subject) {
    let key = Key::from("alice");
    for limit in refundable_limits() {
        let rule = rule("once", &limit);
        let charge = Charge::new(&rule, &key, &limit);
        let receipt = hold(subject, &[charge.cost(3).reserve(TTL)]);
        assert_eq!(subject.settle(&receipt, &[3]), Settlement::Settled { given_back: 0, charged: 0 }, "{limit}");
        for actual in [0, 3, 5] {
            assert_eq!(subject.settle(&receipt, &[actual]), Settlement::Gone, "{limit}");
        }
        assert_eq!(subject.peek(charge.cost(0)).remaining, 2, "{limit}");
    }
}

/// A reservation that is not settled in time counts at its reserved cost.
pub fn an_abandoned_reservation_expires_and_stays_spent(subject: &impl Subject) {
    let key = Key::from("alice");
    let limit = limit("fixed 5/month calendar");
    let rule = rule("abandoned", &limit);
    let charge = Charge::new(&rule, &key, &limit);
    let receipt = hold(subject, &[charge.cost(3).reserve(TTL)]);
    subject.wait(TTL);
    assert_eq!(subject.settle(&receipt, &[0]), Settlement::Gone);
    assert_eq!(subject.peek(charge.cost(0)).remaining, 2);
}

/// A receipt releases its own slots, once.
pub fn slots_are_given_back_once(subject: &impl Subject) {
    let (rule, key, limit) = (RuleId::new("slots"), Key::from("alice"), limit("concurrent 2 ttl 30s"));
    let charge = Charge::new(&rule, &key, &limit);
    let (first, second) = (hold(subject, &[charge]), hold(subject, &[charge]));
    assert_ne!(first.id, second.id);
    assert_denied(&subject.decide_one(charge));
    assert_eq!(subject.settle(&first, &[]), Settlement::Settled { given_back: 1, charged: 0 });
    assert_eq!(subject.settle(&first, &[]), Settlement::Gone);
    assert_eq!(subject.peek(charge.cost(0)).remaining, 1);
    let _third = hold(subject, &[charge]);
    assert_eq!(subject.settle(&first, &[]), Settlement::Gone, "somebody else's slot was freed");
    assert_denied(&subject.decide_one(charge));
}

/// A holder that crashed keeps its slots until the lease ends, and no longer.
pub fn slots_of_a_crashed_holder_come_back_when_the_lease_ends(subject: &impl Subject) {
    let (rule, key, limit) = (RuleId::new("crash"), Key::from("alice"), limit("concurrent 2 ttl 30s"));
    let charge = Charge::new(&rule, &key, &limit);
    let crashed = hold(subject, &[charge]);
    subject.wait(Micros::from_secs(10));
    let _alive = hold(subject, &[charge]);
    assert_eq!(assert_denied(&subject.decide_one(charge)), Micros::from_secs(20));
    subject.wait(Micros::from_secs(20));
    assert!(subject.decide_one(charge).is_allowed());
    assert_eq!(subject.settle(&crashed, &[]), Settlement::Gone);
    assert_denied(&subject.decide_one(charge));
}

/// A holder can renew a lease that is too short.
pub fn a_renewed_lease_runs_anew(subject: &impl Subject) {
    let (slots_rule, cost_rule, key) = (RuleId::new("renew slots"), RuleId::new("renew cost"), Key::from("alice"));
    let (slots, cost) = (limit("concurrent 1 ttl 30s"), limit("fixed 100/month calendar"));
    let slot = Charge::new(&slots_rule, &key, &slots);
    let receipt = hold(subject, &[slot, Charge::new(&cost_rule, &key, &cost).cost(9).reserve(Micros::from_secs(30))]);
    for _ in 0..3 {
        subject.wait(Micros::from_secs(20));
        assert!(subject.renew(&receipt));
    }
    assert_denied(&subject.decide_one(slot));
    assert_eq!(subject.settle(&receipt, &[0, 4]), Settlement::Settled { given_back: 6, charged: 0 });
    assert!(!subject.renew(&receipt), "what was settled cannot be renewed");
    assert!(subject.decide_one(slot).is_allowed());
}

/// A denial takes no slot and no reservation, and has no receipt.
pub fn a_denied_request_holds_nothing(subject: &impl Subject) {
    let (slots_rule, tight_rule, key) = (RuleId::new("held"), RuleId::new("full"), Key::from("alice"));
    let (slots, none) = (limit("concurrent 5 ttl 30s"), limit("fixed 0/day"));
    let slot = Charge::new(&slots_rule, &key, &slots);
    for _ in 0..10 {
        let answer = subject.decide(&[slot, Charge::new(&tight_rule, &key, &none)]);
        assert!(!answer.is_allowed() && answer.receipt.is_none());
    }
    assert_eq!(subject.peek(slot.cost(0)).remaining, 5);
}

/// Spending in an old window does not count in the new one.
pub fn charges_of_past_windows_are_not_refunded(subject: &impl Subject) {
    let key = Key::from("alice");
    for limit in ["fixed 5/min", "log 5/min", "sliding 5/min", "sliding 5/min parts 6"].map(limit) {
        let rule = rule("passed", &limit);
        let charge = Charge::new(&rule, &key, &limit);
        let receipt = hold(subject, &[charge.cost(4).reserve(Micros::from_secs(3_600))]);
        subject.wait(Micros::from_secs(180));
        assert!(subject.decide_one(charge.cost(2)).is_allowed());
        assert_eq!(subject.settle(&receipt, &[0]), Settlement::Settled { given_back: 0, charged: 0 }, "{limit}");
        assert_eq!(subject.peek(charge.cost(0)).remaining, 3, "{limit}");
    }
}

/// Only the last place is refunded: if another one shortened the queue, two requests would leave at the same time.
pub fn only_the_last_in_a_shapers_queue_can_leave_it(subject: &impl Subject) {
    let (rule, key, limit) = (RuleId::new("leaving"), Key::from("alice"), limit("shaper 1/s queue 5"));
    let charge = Charge::new(&rule, &key, &limit).reserve(TTL);
    let receipts = [(); 3].map(|()| hold(subject, &[charge]));
    assert_eq!(subject.settle(&receipts[1], &[0]), Settlement::Settled { given_back: 0, charged: 0 });
    assert_eq!(subject.peek(charge).delay(), Micros::from_secs(3));
    assert_eq!(subject.settle(&receipts[2], &[0]), Settlement::Settled { given_back: 1, charged: 0 });
    assert_eq!(subject.peek(charge).delay(), Micros::from_secs(2));
}

/// A shaper and a GCRA of one rate have the same state, but a place in a queue is not refunded.
pub fn a_reservation_of_a_queue_that_became_a_bucket_is_refunded(subject: &impl Subject) {
    let (rule, alice) = (RuleId::new("queue to bucket"), Key::from("alice"));
    let [shaper, faster_shaper, gcra] = ["shaper 1/s queue 9", "shaper 2/s queue 9", "gcra 1/s burst 9"].map(limit);
    assert!(subject.decide(&[Charge::new(&rule, &Key::from("bob"), &shaper)]).is_allowed());
    let receipt = hold(subject, &[Charge::new(&rule, &alice, &faster_shaper).cost(4).reserve(TTL)]);
    assert!(subject.decide(&[Charge::new(&rule, &alice, &gcra)]).is_allowed());
    assert_eq!(subject.settle(&receipt, &[1]), Settlement::Settled { given_back: 3, charged: 0 });
    assert_eq!(subject.peek(Charge::new(&rule, &alice, &gcra).cost(0)).remaining, 7);
}
