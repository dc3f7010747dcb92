//! Refunds: never more than was taken, and only once.

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::sample::Index;
use tidegate_core::{
    Charge, Clock, Key, Limit, ManualClock, MemoryStore, Micros, Receipt, RuleId, Settlement, Timestamp,
};

use tidegate_test_support::limits::{any_limit, any_spending_limit, span_of};
use tidegate_test_support::traces::{Cost, costs};

/// An action on reservations. Actual costs are in 64ths of the reserved cost.
#[derive(Clone, Copy, Debug)]
enum ReservationAction {
    Reserve(Cost),
    Settle(Index, u64),
    SettleTwice(Index, u64),
    Renew(Index),
    Wait(u64),
}

fn acts() -> impl Strategy<Value = Vec<ReservationAction>> {
    let actual = || prop_oneof![3 => 0_u64..=64, 1 => 64_u64..200];
    let act = prop_oneof![
        6 => costs().prop_map(ReservationAction::Reserve),
        4 => (any::<Index>(), actual()).prop_map(|(which, actual)| ReservationAction::Settle(which, actual)),
        2 => (any::<Index>(), actual()).prop_map(|(which, actual)| ReservationAction::SettleTwice(which, actual)),
        2 => any::<Index>().prop_map(ReservationAction::Renew),
        3 => (0_u64..100).prop_map(ReservationAction::Wait),
    ];
    prop::collection::vec(act, 1..60)
}

/// A reservation, as the test tracks it.
struct TrackedReservation {
    receipt: Receipt,
    taken: u64,
    expires: Timestamp,
    is_settled: bool,
}

impl TrackedReservation {
    fn is_open(&self, now: Timestamp) -> bool {
        !self.is_settled && now < self.expires
    }
}

proptest! {
    #![proptest_config(crate::properties::cases(800))]

    #[test]
    fn a_receipt_settles_once_and_given_back_never_exceeds_taken(limit in any_spending_limit(), acts in acts()) {
        let clock = ManualClock::at(Timestamp::from_secs(1_772_000_000));
        let store = MemoryStore::with_clock(clock.clone());
        let (rule, key) = (RuleId::new("rule"), Key::from("key"));
        let ttl = Micros::new(span_of(&limit) / 2 + 1);
        let mut opened: Vec<TrackedReservation> = Vec::new();
        let mut given_and_taken: (u128, u128) = (0, 0);
        for act in acts {
            let now = clock.now();
            match act {
                ReservationAction::Reserve(cost) => {
                    let charge = Charge::new(&rule, &key, &limit).cost(cost.of(&limit)).reserve(ttl);
                    let answer = store.decide(&[charge]).unwrap();
                    prop_assert_eq!(answer.receipt.is_some(), answer.is_allowed() && charge.cost > 0);
                    if let Some(receipt) = answer.receipt {
                        given_and_taken.1 += u128::from(charge.cost);
                        opened.push(TrackedReservation { receipt, taken: charge.cost, expires: now + ttl, is_settled: false });
                    }
                }
                ReservationAction::Settle(which, actual) | ReservationAction::SettleTwice(which, actual) if !opened.is_empty() => {
                    let index = which.index(opened.len());
                    let open = &mut opened[index];
                    let actual = open.taken / 64 * actual;
                    let before = store.peek(&[Charge::new(&rule, &key, &limit)]);
                    match store.settle(&open.receipt, &[actual]) {
                        Settlement::Settled { given_back, charged } => {
                            prop_assert!(open.is_open(now));
                            prop_assert!(given_back <= open.taken.saturating_sub(actual));
                            let due = actual.saturating_sub(open.taken);
                            // Only a key at the bound on debt is charged less.
                            let stands = store.peek(&[Charge::new(&rule, &key, &limit).cost(0)])[0];
                            prop_assert!(charged <= due && (charged == due || stands.remaining == 0));
                            given_and_taken.0 += u128::from(given_back);
                            given_and_taken.1 += u128::from(charged);
                        }
                        Settlement::Gone => {
                            prop_assert!(!open.is_open(now));
                            prop_assert_eq!(store.peek(&[Charge::new(&rule, &key, &limit)]), before);
                        }
                    }
                    open.is_settled = true;
                    if matches!(act, ReservationAction::SettleTwice(..)) {
                        let before = store.peek(&[Charge::new(&rule, &key, &limit)]);
                        prop_assert_eq!(store.settle(&open.receipt, &[0]), Settlement::Gone);
                        prop_assert_eq!(store.peek(&[Charge::new(&rule, &key, &limit)]), before);
                    }
                }
                ReservationAction::Renew(which) if !opened.is_empty() => {
                    let index = which.index(opened.len());
                    let open = &mut opened[index];
                    prop_assert_eq!(store.renew(&open.receipt), open.is_open(now));
                    if open.is_open(now) {
                        open.expires = now + ttl;
                    }
                }
                ReservationAction::Wait(share) => clock.advance(Micros::new(span_of(&limit) / 64 * share)),
                _ => {}
            }
            prop_assert!(given_and_taken.0 <= given_and_taken.1);
            let stands = store.peek(&[Charge::new(&rule, &key, &limit).cost(0)])[0];
            prop_assert!(stands.remaining <= limit.capacity());
        }
    }

    #[test]
    fn immediate_refunds_undo_charges(
        limit in any_limit(), spent in costs(), cost in costs(), wait in 0_u64..64,
    ) {
        let clock = ManualClock::at(Timestamp::from_secs(1_772_000_000));
        let store = MemoryStore::with_clock(clock.clone());
        let (rule, key) = (RuleId::new("rule"), Key::from("key"));
        let charge = Charge::new(&rule, &key, &limit);
        store.decide(&[charge.cost(spent.of(&limit))]).unwrap();
        clock.advance(Micros::new(span_of(&limit) / 64 * wait));
        let before = store.peek(&[charge.cost(0)]);
        let reserved = charge.cost(cost.of(&limit)).reserve(Micros::from_secs(1));
        if let Some(receipt) = store.decide(&[reserved]).unwrap().receipt {
            let settlement = store.settle(&receipt, &[0]);
            prop_assert_eq!(settlement, Settlement::Settled { given_back: cost.of(&limit), charged: 0 });
        }
        prop_assert_eq!(store.peek(&[charge.cost(0)]), before);
    }

    #[test]
    fn a_settled_cost_stands_as_if_it_had_been_known(
        limit in any_spending_limit(), spent in costs(), estimate in costs(), actual in 0_u64..=64,
    ) {
        let clock = ManualClock::at(Timestamp::from_secs(1_772_000_000));
        let store = MemoryStore::with_clock(clock.clone());
        let (rule, other, key) = (RuleId::new("rule"), RuleId::new("other"), Key::from("key"));
        let charge = Charge::new(&rule, &key, &limit);
        let same = Charge::new(&other, &key, &limit);
        store.decide(&[charge.cost(spent.of(&limit)), same.cost(spent.of(&limit))]).unwrap();
        let estimate = estimate.of(&limit);
        let Some(receipt) = store.decide(&[charge.cost(estimate).reserve(Micros::from_secs(1))]).unwrap().receipt else {
            return Ok(());
        };
        let actual = u64::try_from(u128::from(estimate) * u128::from(actual) / 64).unwrap();
        store.settle(&receipt, &[actual]);
        prop_assert!(store.decide(&[same.cost(actual)]).unwrap().is_allowed());
        prop_assert_eq!(store.peek(&[charge.cost(0)]), store.peek(&[same.cost(0)]));
    }

    #[test]
    fn every_charge_of_a_receipt_is_settled_by_its_own_number(
        limits in prop::collection::vec(any_spending_limit(), 1..4),
        charges in prop::collection::vec((0_usize..3, 0_usize..2, 0_u64..4, 0_u64..4), 1..6),
    ) {
        let store = MemoryStore::with_clock(ManualClock::at(Timestamp::from_secs(1_772_000_000)));
        let rules = ["a", "b", "c"].map(RuleId::new);
        let keys = ["x", "y"].map(Key::from);
        let of = |rule: usize| &limits[rule % limits.len()];
        let made: Vec<_> = charges
            .iter()
            .map(|&(rule, key, cost, _)| {
                Charge::new(&rules[rule], &keys[key], of(rule)).cost(cost).reserve(Micros::from_secs(1))
            })
            .collect();
        let Some(receipt) = store.decide(&made).unwrap().receipt else { return Ok(()) };
        let taken: Vec<_> = charges.iter().filter(|charge| charge.2 > 0).collect();
        prop_assert_eq!(receipt.held.len(), taken.len());
        let actual: Vec<u64> = taken.iter().map(|&&(_, _, cost, actual)| actual.min(cost)).collect();
        let due: u64 = taken.iter().zip(&actual).map(|(charge, actual)| charge.2 - actual).sum();
        // Only the last request in a shaper's queue can be refunded, so if there are several, not all can be.
        let all_can = !limits.iter().any(|limit| matches!(limit.algorithm(), tidegate_core::limit::Algorithm::Shaper(_)));
        match store.settle(&receipt, &actual) {
            Settlement::Settled { given_back, charged: 0 } if all_can => prop_assert_eq!(given_back, due),
            Settlement::Settled { given_back, charged: 0 } => prop_assert!(given_back <= due),
            other => prop_assert!(false, "{:?}", other),
        }
        let mut spent: HashMap<(usize, usize), u64> = HashMap::new();
        for (charge, actual) in taken.iter().zip(&actual) {
            *spent.entry((charge.0, charge.1)).or_default() += actual;
        }
        for (&(rule, key), &spent) in spent.iter().filter(|_| all_can) {
            let stands = store.peek(&[Charge::new(&rules[rule], &keys[key], of(rule)).cost(0)])[0];
            prop_assert_eq!(stands.remaining, of(rule).capacity() - spent);
        }
        prop_assert_eq!(store.settle(&receipt, &actual), Settlement::Gone);
        prop_assert_eq!(store.stats().reservations, 0);
    }
}

fn store() -> MemoryStore<ManualClock> {
    MemoryStore::with_clock_and_cap(ManualClock::at(Timestamp::from_secs(1_772_000_000)), 10_000)
}

#[test]
fn settling_above_the_estimate_forgives_nothing_where_another_rule_has_a_smaller_burst() {
    let store = store();
    let (large, small): (Limit, Limit) = ("10/s burst 1000".parse().unwrap(), "10/s burst 10".parse().unwrap());
    let (one, other, key) = (RuleId::new("one"), RuleId::new("other"), Key::from("key"));
    let charge = Charge::new(&one, &key, &large);
    let receipt = store.decide(&[charge.cost(900).reserve(Micros::from_secs(60))]).unwrap().receipt.unwrap();
    store.decide(&[Charge::new(&other, &key, &small)]).unwrap();
    store.settle(&receipt, &[901]);
    assert_eq!(store.peek(&[charge.cost(0)])[0].remaining, 99);
}

#[test]
fn settling_above_the_estimate_charges_all_of_it_where_another_rule_has_a_smaller_limit() {
    for (large, small) in
        [("fixed 1000/day", "fixed 10/day"), ("sliding 1000/day", "sliding 10/day"), ("log 1000/day", "log 10/day")]
    {
        let store = store();
        let (large, small): (Limit, Limit) = (large.parse().unwrap(), small.parse().unwrap());
        let (one, other, key) = (RuleId::new("one"), RuleId::new("other"), Key::from("key"));
        let charge = Charge::new(&one, &key, &large);
        let receipt = store.decide(&[charge.cost(500).reserve(Micros::from_secs(60))]).unwrap().receipt.unwrap();
        store.decide(&[Charge::new(&other, &key, &small)]).unwrap();
        store.settle(&receipt, &[900]);
        assert_eq!(store.peek(&[charge.cost(0)])[0].remaining, 100, "{large}");
    }
}

#[test]
fn settling_above_the_estimate_forgives_nothing_after_the_limit_was_raised() {
    for (before, after) in [
        ("10/s burst 10", "10/s burst 1000"),
        ("gcra 10/s burst 10", "gcra 10/s burst 1000"),
        ("fixed 10/day", "fixed 1000/day"),
        ("sliding 10/day", "sliding 1000/day"),
        ("log 10/day", "log 1000/day"),
    ] {
        let store = store();
        let (before, after): (Limit, Limit) = (before.parse().unwrap(), after.parse().unwrap());
        let (rule, key) = (RuleId::new("rule"), Key::from("key"));
        let reserved = Charge::new(&rule, &key, &before).cost(5).reserve(Micros::from_secs(60));
        let receipt = store.decide(&[reserved]).unwrap().receipt.unwrap();
        let raised = Charge::new(&rule, &key, &after);
        assert_eq!(store.decide(&[raised.cost(900)]).unwrap().decisions[0].remaining, 95, "{after}");
        store.settle(&receipt, &[6]);
        assert!(store.peek(&[raised.cost(0)])[0].remaining <= 95, "{after}");
    }
}

#[test]
fn settling_above_the_estimate_forgives_nothing_after_the_rate_was_changed() {
    let store = store();
    let limit = |text: &str| -> Limit { text.parse().unwrap() };
    let (before, after, small) = (limit("1/s burst 1000"), limit("10/s burst 1000"), limit("10/s burst 10"));
    let (one, other, key) = (RuleId::new("one"), RuleId::new("other"), Key::from("key"));
    let reserved = Charge::new(&one, &key, &before).cost(900).reserve(Micros::from_secs(60));
    let receipt = store.decide(&[reserved]).unwrap().receipt.unwrap();
    assert_eq!(store.decide(&[Charge::new(&one, &key, &after)]).unwrap().decisions[0].remaining, 99);
    store.decide(&[Charge::new(&other, &key, &small)]).unwrap();
    store.settle(&receipt, &[901]);
    assert!(store.peek(&[Charge::new(&one, &key, &after).cost(0)])[0].remaining <= 99);
}

#[test]
fn a_log_keeps_its_entries_when_another_rule_has_a_shorter_window() {
    let store = store();
    let (long, short): (Limit, Limit) = ("log 10/day".parse().unwrap(), "log 10/s".parse().unwrap());
    let (one, other, key) = (RuleId::new("one"), RuleId::new("other"), Key::from("key"));
    let charge = Charge::new(&one, &key, &long);
    let receipt = store.decide(&[charge.cost(8).reserve(Micros::from_secs(60))]).unwrap().receipt.unwrap();
    store.clock().advance(Micros::from_secs(10));
    store.decide(&[Charge::new(&other, &key, &short)]).unwrap();
    store.settle(&receipt, &[7]);
    assert_eq!(store.peek(&[charge.cost(0)])[0].remaining, 3);
}

#[test]
fn expired_reservations_make_room_for_others() {
    let store = MemoryStore::with_clock_and_cap(ManualClock::at(Timestamp::from_secs(1_772_000_000)), 100);
    let (rule, key, limit) = (RuleId::new("rule"), Key::from("key"), "fixed 1000/day".parse().unwrap());
    let charge = Charge::new(&rule, &key, &limit).reserve(Micros::from_secs(1));
    for _ in 0..20 {
        while store.decide(&[charge]).is_ok() {
            assert!(store.stats().used <= 100);
        }
        store.clock().advance(Micros::from_secs(1));
        assert!(store.decide(&[charge]).is_ok());
    }
}

#[test]
fn a_slot_needs_no_room_among_the_reservations() {
    let store = MemoryStore::with_clock_and_cap(ManualClock::at(Timestamp::from_secs(1_772_000_000)), 2);
    let (rule, slots, key) = (RuleId::new("rule"), RuleId::new("slots"), Key::from("key"));
    let (limit, concurrency) = ("fixed 1000/day".parse().unwrap(), "concurrent 5 ttl 30s".parse().unwrap());
    let reserve = || store.decide(&[Charge::new(&rule, &key, &limit).reserve(Micros::from_secs(60))]);
    assert!((0..10).any(|_| reserve().is_err()));
    assert!(store.decide(&[Charge::new(&slots, &key, &concurrency)]).unwrap().is_allowed());
}
