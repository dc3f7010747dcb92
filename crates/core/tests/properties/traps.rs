//! Known mistakes of other rate limiters.

use proptest::prelude::*;
use tidegate_core::{Charge, Clock, Gate, Key, Limit, ManualClock, MemoryStore, Micros, Outcome, RuleId, Timestamp};

use tidegate_test_support::limits::{any_limit, span_of};

const START: Timestamp = Timestamp::from_secs(1_772_000_000);

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

fn gate(text: &str) -> (Gate<ManualClock>, ManualClock) {
    let clock = ManualClock::at(START);
    (Gate::in_store(MemoryStore::with_clock(clock.clone()).into(), "rule", limit(text)), clock)
}

#[test]
fn a_key_is_not_forgotten_before_its_bucket_is_full() {
    for text in ["1/s burst 61", "gcra 1/s burst 61", "meter 1/s burst 61"] {
        let clock = ManualClock::at(START);
        let store = MemoryStore::with_clock_and_cap(clock.clone(), 32);
        let (rule, flood, limit) = (RuleId::new("rule"), RuleId::new("flood"), limit(text));
        let mut admitted = 0;
        for number in 0..=6_000 {
            admitted +=
                u32::from(store.decide(&[Charge::new(&rule, &Key::from("greedy"), &limit)]).unwrap().is_allowed());
            let name = format!("one-off {number}");
            store.decide(&[Charge::new(&flood, &Key::from(&name), &limit)]).unwrap();
            clock.advance(Micros::from_millis(10));
        }
        assert_eq!(admitted, 61 + 60, "{text}");
    }
}

#[test]
fn no_rate_is_so_high_that_everything_is_admitted() {
    for (text, each_micro) in [("10_000_000/s burst 100", 10), ("gcra 3_000_000/s burst 100", 3)] {
        let (gate, clock) = gate(text);
        let take_all = || (0..1_000).filter(|_| gate.check("key").is_allowed()).count();
        assert_eq!(take_all(), 100, "{text}");
        for _ in 0..1_000 {
            clock.advance(Micros::new(1));
            assert_eq!(take_all(), each_micro, "{text}");
        }
    }
}

#[test]
fn a_rate_that_divides_nothing_evenly_does_not_drift() {
    let limit = limit("7/3s burst 7");
    let (mut state, mut admitted) = (limit.fresh(), 0_u64);
    for tick in 0..300_000 {
        // Steps of 13 ms, for an hour and five minutes.
        let now = START + Micros::from_millis(13 * tick);
        admitted += u64::from(limit.decide(&mut state, 1, now).is_allowed());
    }
    assert_eq!(admitted, 7 + 13 * 299_999 * 7 / 3_000);
}

#[test]
fn a_client_that_keeps_trying_recovers_as_fast_as_one_that_waits() {
    for text in ["1/s burst 5", "gcra 1/s burst 5", "meter 1/s burst 5", "fixed 5/min", "sliding 5/min", "log 5/min"] {
        let (gate, clock) = gate(text);
        for _ in 0..5 {
            assert!(gate.check("stubborn").is_allowed() && gate.check("patient").is_allowed(), "{text}");
        }
        let wait = gate.check("patient").retry_after().unwrap();
        for _ in 0..999 {
            clock.advance(Micros::new(wait.get() / 1_000));
            assert!(!gate.check("stubborn").is_allowed(), "{text}");
        }
        clock.set(START + wait);
        assert!(gate.check("stubborn").is_allowed() && gate.check("patient").is_allowed(), "{text}");
    }
}

#[test]
fn a_wait_in_whole_seconds_or_milliseconds_is_always_long_enough() {
    for text in ["3/s burst 1", "7/s burst 2", "gcra 999_983/s burst 1", "sliding 3/s parts 4", "log 1/1500ms"] {
        let (gate, clock) = gate(text);
        for round in 0..200 {
            let wait = (0..10).find_map(|_| gate.check("key").retry_after()).unwrap();
            assert!(wait.as_secs_ceil() > 0 && wait.as_millis_ceil() > 0, "{text}");
            let millis = Micros::from_millis(wait.as_millis_ceil());
            clock.advance(if round % 2 == 0 { millis } else { Micros::from_secs(wait.as_secs_ceil()) });
            assert!(gate.check("key").is_allowed(), "{text}");
            clock.advance(Micros::new(round * 37));
        }
    }
}

#[test]
fn costs_above_the_capacity_are_told_never() {
    for text in [
        "1/s burst 5",
        "gcra 1/s burst 5",
        "shaper 1/s queue 5",
        "fixed 5/s",
        "sliding 5/s",
        "log 5/s",
        "concurrent 5 ttl 1s",
    ] {
        let (gate, clock) = gate(text);
        for cost in [6, 7, u64::MAX] {
            assert_eq!(gate.check_cost("key", cost).outcome, Outcome::TooLarge { max: 5 }, "{text}");
            clock.advance(Micros::from_secs(1_000));
        }
        assert!(gate.check_cost("key", 5).is_allowed(), "{text}");
    }
}

#[test]
fn a_key_left_idle_for_centuries_is_just_full_again() {
    for text in
        ["1/s burst 5", "gcra 4000000000/s burst 5", "fixed 5/ms", "sliding 5/ms", "log 5/ms", "concurrent 5 ttl 1ms"]
    {
        let limit = limit(text);
        let mut state = limit.fresh();
        assert!(limit.decide(&mut state, 5, Timestamp::EPOCH).is_allowed(), "{text}");
        assert!(limit.decide(&mut state, 5, Timestamp::MAX).is_allowed(), "{text}");
        assert!(!limit.decide(&mut state, 1, Timestamp::MAX).is_allowed(), "{text}");
    }
}

#[test]
fn raising_a_rate_or_a_burst_does_not_deny_and_lowering_does_not_grant() {
    let clock = ManualClock::at(START);
    let store = MemoryStore::with_clock(clock.clone());
    let (rule, key) = (RuleId::new("rule"), Key::from("key"));
    let ask =
        |text: &str, cost| store.decide(&[Charge::new(&rule, &key, &limit(text)).cost(cost)]).unwrap().decisions[0];
    assert_eq!(ask("1/h burst 10", 6).remaining, 4);
    assert_eq!(ask("100/s burst 10", 0).remaining, 4);
    assert_eq!(ask("gcra 100/s burst 20", 1).remaining, 13);
    assert_eq!(ask("1/h burst 8", 0).remaining, 1);
    assert_eq!(ask("fixed 8/day", 0).remaining, 1);
    assert!(!ask("fixed 5/day", 1).is_allowed());
}

#[test]
fn the_previous_window_is_forgotten_after_an_idle_gap() {
    for (parts, gap) in [(1, 2), (4, 5), (4, 9), (1, 1_000_000)] {
        let limit = limit(&format!("sliding 10/4s parts {parts}"));
        let part = Micros::from_millis(4_000 / parts);
        let start = Timestamp::from_secs(4_000);
        let mut state = limit.fresh();
        assert!(limit.decide(&mut state, 10, start).is_allowed());
        let later = start + Micros::new(part.get() * gap.max(parts + 1));
        assert_eq!(limit.evaluate(&state, 0, later).remaining, 10, "{parts} parts, {gap} later");
        assert!(limit.decide(&mut state, 10, later).is_allowed());
        assert!(!limit.decide(&mut state, 1, later).is_allowed());
    }
}

#[test]
fn a_limit_admits_as_many_as_it_says() {
    for text in [
        "1/h burst 5",
        "gcra 1/h burst 5",
        "meter 1/h burst 5",
        "shaper 1/h queue 5",
        "fixed 5/day",
        "fixed 5/day calendar",
        "sliding 5/day",
        "log 5/day",
        "concurrent 5 ttl 1h",
    ] {
        let (gate, _clock) = gate(text);
        assert_eq!((0..100).filter(|_| gate.check("key").is_allowed()).count(), 5, "{text}");
    }
}

#[test]
fn flooding_the_store_with_keys_does_not_flush_ones_own_counter() {
    for text in [
        "1/h burst 5",
        "gcra 1/h burst 5",
        "fixed 5/day",
        "sliding 5/day",
        "sliding 5/day parts 6",
        "log 5/day",
        "concurrent 5 ttl 1h",
    ] {
        let clock = ManualClock::at(START);
        let store = MemoryStore::with_clock_and_cap(clock.clone(), 100);
        let (rule, limit) = (RuleId::new("rule"), limit(text));
        let ask = |name: &str| store.decide(&[Charge::new(&rule, &Key::from(name), &limit)]).unwrap().is_allowed();
        assert_eq!((0..6).filter(|_| ask("attacker")).count(), 5, "{text}");
        for number in 0..5_000 {
            ask(&format!("one-off {number}"));
            clock.advance(Micros::from_millis(1));
        }
        assert!(!ask("attacker"), "{text}");
        assert!(store.stats().keys <= 101, "{text}");
    }
}

proptest! {
    #![proptest_config(crate::properties::cases(300))]

    #[test]
    fn keys_of_other_parts_are_other_keys(
        one in prop::collection::vec("[a:/|\\x00]{0,3}", 0..4),
        other in prop::collection::vec("[a:/|\\x00]{0,3}", 0..4),
    ) {
        let (gate, _clock) = gate("1/h burst 1");
        let (one, other) = (Key::of(&one), Key::of(&other));
        let are_same = one.parts().eq(other.parts());
        prop_assert_eq!(one == other, are_same);
        prop_assert!(gate.check(one).is_allowed());
        prop_assert_eq!(gate.check(other).is_allowed(), !are_same);
    }

    #[test]
    fn a_sweep_never_changes_an_answer(limit in any_limit(), waits in prop::collection::vec(0_u64..20, 1..200)) {
        let clock = ManualClock::at(START);
        let store = MemoryStore::with_clock_and_cap(clock.clone(), 100);
        let (rule, flood, key) = (RuleId::new("rule"), RuleId::new("flood"), Key::from("key"));
        let mut state = limit.fresh();
        for (number, wait) in waits.into_iter().enumerate() {
            clock.advance(Micros::new(span_of(&limit) / 256 * wait));
            let name = format!("one-off {number}");
            store.decide(&[Charge::new(&flood, &Key::from(&name), &limit)]).unwrap();
            let charge = Charge::new(&rule, &key, &limit).cost(1 + limit.capacity() / 3);
            // A key without room uses its rule's shared bucket alone: no other key is charged under that rule.
            let decision = store.decide(&[charge]).unwrap().decisions[0];
            prop_assert_eq!(decision, limit.decide(&mut state, charge.cost, clock.now()));
        }
    }
}

#[test]
fn parts_joined_by_any_separator_stay_apart() {
    let (gate, _clock) = gate("1/h burst 1");
    for parts in [&["a:b", "c"][..], &["a", "b:c"], &["a", "b", "c"], &["a:b:c"], &["a:b:c", ""], &["", "a:b:c"]] {
        assert!(gate.check(Key::of(parts)).is_allowed(), "{parts:?} is its own key");
    }
    assert!(!gate.check("a:b:c").is_allowed(), "a key of one part is the same however it is made");
}
