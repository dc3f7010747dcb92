//! Extremes: the largest limits, costs and instants do not overflow.

use proptest::prelude::*;
use proptest::sample::select;
use tidegate_core::limit::{Calendar, Concurrency, FixedWindow, LONGEST_PERIOD, Rate, SlidingLog, SlidingWindow};
use tidegate_core::receipt::ReceiptId;
use tidegate_core::store::Adjustment;
use tidegate_core::time::MAX_EXACT;
use tidegate_core::{Charge, Key, Limit, ManualClock, MemoryStore, Micros, Outcome, RuleId, Settlement, Timestamp};

use tidegate_test_support::limits::{Bucket, most_tokens};

/// The largest limit of every algorithm, at the shortest and the longest of periods.
fn largest() -> Vec<Limit> {
    let (short, long) = (Micros::from_millis(1), LONGEST_PERIOD);
    let mut limits = Vec::new();
    for (tokens, period) in
        [(1, long), (1, Micros::new(1)), (u64::from(u32::MAX), Micros::new(2)), (10, Micros::new(1))]
    {
        let rate = Rate::new(tokens, period).unwrap();
        let bucket = Bucket { capacity: most_tokens(rate), rate };
        limits.extend([bucket.token_bucket(), bucket.gcra(), bucket.meter(), bucket.shaper()]);
    }
    for window in [short, long] {
        limits.push(FixedWindow::new(MAX_EXACT / 2, window).unwrap().into());
        limits.push(SlidingWindow::new((MAX_EXACT / 4 / window.get()).min(1 << 40), window).unwrap().into());
        limits.push(SlidingLog::new(1_000_000, window).unwrap().into());
        limits.push(Concurrency::new(1_000_000, window).unwrap().into());
    }
    limits.push(SlidingWindow::with_parts(MAX_EXACT / 4 / (long.get() / 360), long, 360).unwrap().into());
    limits.push(FixedWindow::calendar(MAX_EXACT / 2, Calendar::Week).unwrap().into());
    limits.push(FixedWindow::calendar(MAX_EXACT / 2, Calendar::Year).unwrap().into());
    limits
}

fn instants() -> impl Strategy<Value = Timestamp> {
    let last = Timestamp::MAX.as_micros();
    prop_oneof![select(vec![0, 1, 999, last / 2, last - 1_000, last - 1, last]), 0..=last]
        .prop_map(Timestamp::from_micros)
}

fn costs() -> impl Strategy<Value = u64> {
    prop_oneof![
        select(vec![0, 1, MAX_EXACT / 2, MAX_EXACT, u64::MAX / 2, u64::MAX - 1, u64::MAX]),
        // The largest limits are a little above or below a power of two.
        (0_u32..64, 0_u64..3).prop_map(|(bit, off)| (1_u64 << bit).saturating_sub(1) + off),
        any::<u64>(),
    ]
}

fn scenes() -> impl Strategy<Value = Vec<(Timestamp, u64, u32)>> {
    prop::collection::vec((instants(), costs(), 0_u32..8), 1..40)
}

fn all_of(limit: &Limit, cost: u64) -> u64 {
    // Sometimes exactly the capacity, which a random number would never hit.
    if cost.is_multiple_of(3) { limit.capacity() } else { cost }
}

proptest! {
    #![proptest_config(crate::properties::cases(2_000))]

    #[test]
    fn no_limit_overflows(limit in select(largest()), other in select(largest()), scenes in scenes()) {
        let (mut state, mut marks) = (limit.fresh(), Vec::new());
        for (number, (now, cost, what)) in (1..).zip(scenes) {
            let (id, cost) = (ReceiptId::new(number), all_of(&limit, cost));
            match what {
                0 => marks.push((limit.charge(&mut state, cost, now, id), id)),
                1 => prop_assert!(limit.credit(&mut state, cost, now) <= cost),
                2 if !marks.is_empty() => {
                    let (mark, id) = marks[marks.len() / 2];
                    limit.refund(&mut state, cost, mark, now, id);
                }
                3 if !marks.is_empty() => {
                    let (mark, id) = marks[marks.len() / 2];
                    limit.renew(&mut state, mark, now, id);
                }
                4 => {
                    let carried = other.carry(&limit, &state, now);
                    other.decide(&mut carried.clone(), cost, now);
                    state = limit.carry(&other, &carried, now);
                }
                _ => {
                    let decision = limit.decide(&mut state, cost, now);
                    prop_assert!(decision.remaining <= limit.capacity());
                    prop_assert!(decision.retry_after().is_none_or(|wait| !wait.is_zero()));
                    prop_assert_eq!(matches!(decision.outcome, Outcome::TooLarge { .. }), cost > limit.capacity());
                }
            }
            prop_assert!(limit.is_recovered(&limit.fresh(), now));
            let _ = limit.is_recovered(&state, now);
        }
    }

    #[test]
    fn looking_at_a_key_from_any_instant_never_overflows(
        limit in select(largest()), cost in costs(), spent in costs(), then in instants(), now in instants(),
    ) {
        let mut state = limit.fresh();
        limit.charge(&mut state, all_of(&limit, spent), then, ReceiptId::new(1));
        let decision = limit.evaluate(&state, all_of(&limit, cost), now);
        prop_assert!(decision.remaining <= limit.capacity());
    }

    #[test]
    fn no_store_overflows(
        limits in prop::collection::vec(select(largest()), 3..4), start in instants(), scenes in scenes(),
    ) {
        let clock = ManualClock::at(start);
        let store = MemoryStore::with_clock_and_cap(clock.clone(), 2);
        let rules = ["a", "b", "c"].map(RuleId::new);
        let keys = ["x", "y"].map(Key::from);
        let mut receipts = Vec::new();
        for (number, (now, cost, what)) in scenes.into_iter().enumerate() {
            clock.set(now);
            let charges: Vec<_> = (0..3)
                .map(|rule| {
                    let (key, cost) = (&keys[(number + rule) % 2], all_of(&limits[rule], cost));
                    Charge::new(&rules[rule], key, &limits[rule]).cost(cost).reserve(Micros::new(cost))
                })
                .collect();
            match what {
                0 => { store.adjust(&charges[number % 3], Adjustment::Penalty); }
                1 => { store.adjust(&charges[number % 3], Adjustment::Credit); }
                2 => if let Some(receipt) = receipts.pop() { store.settle(&receipt, &[cost, cost]); }
                3 => if let Some(receipt) = receipts.last() { store.renew(receipt); }
                4 => { store.peek(&charges); }
                5 => receipts.extend(store.decide(&charges[..1]).ok().and_then(|answer| answer.receipt)),
                _ => receipts.extend(store.decide(&charges).ok().and_then(|answer| answer.receipt)),
            }
        }
    }
}

#[test]
fn the_largest_numbers_settle_without_overflow() {
    let store = MemoryStore::with_clock_and_cap(ManualClock::at(Timestamp::MAX), 200);
    let (limit, rules, key) = ("fixed 10/day".parse().unwrap(), ["a", "b"].map(RuleId::new), Key::from("key"));
    let charges = [0, 1].map(|rule| Charge::new(&rules[rule], &key, &limit).reserve(Micros::new(u64::MAX)));
    // At the last instant no reservation stays open, so this one is made a little earlier.
    store.clock().set(Timestamp::from_secs(1_772_000_000));
    let receipt = store.decide(&charges).unwrap().receipt.unwrap();
    assert!(matches!(store.settle(&receipt, &[u64::MAX, u64::MAX]), Settlement::Settled { given_back: 0, .. }));
    assert_eq!(store.peek(&[charges[0].cost(0)])[0].remaining, 0);
}

#[test]
fn a_clock_that_falls_from_the_last_instant_to_the_first_overflows_nothing() {
    let rate = Rate::new(u64::from(u32::MAX), Micros::new(2)).unwrap();
    for limit in [Bucket { capacity: 10, rate }.token_bucket(), Bucket { capacity: 10, rate }.gcra()] {
        let mut state = limit.fresh();
        assert!(limit.decide(&mut state, 10, Timestamp::MAX).is_allowed());
        assert!(!limit.evaluate(&state, 10, Timestamp::EPOCH).is_allowed());
    }
}

#[test]
fn at_the_last_instant_a_denial_still_does_not_say_to_retry_at_once() {
    for text in ["1/s burst 5", "gcra 1/s burst 5", "fixed 5/s", "sliding 5/s", "log 5/s", "concurrent 5 ttl 1s"] {
        let limit: Limit = text.parse().unwrap();
        let mut state = limit.fresh();
        assert!(limit.decide(&mut state, 5, Timestamp::MAX).is_allowed(), "{text}");
        let wait = limit.decide(&mut state, 1, Timestamp::MAX).retry_after().unwrap();
        assert!(!wait.is_zero(), "{text}");
    }
}
