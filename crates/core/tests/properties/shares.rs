//! Shares of rules: floods under other rules do not affect a rule, and the cap is never exceeded.

use proptest::prelude::*;
use tidegate_core::limit::Algorithm;
use tidegate_core::{Charge, Clock, Key, Limit, ManualClock, MemoryStore, Micros, RuleId, Timestamp};

use tidegate_test_support::limits::{any_limit, any_spending_limit, span_of};
use tidegate_test_support::traces::costs;

const CAP: usize = 2_000;

/// Room for a rule after three others were flooded. Keys and reservations are counted separately, so those three may have
/// six accounts, and the seventh gets one unit in 133 of the cap.
const SHARE: usize = CAP / 150;

fn store(max_keys: usize, clock: &ManualClock) -> MemoryStore<ManualClock> {
    MemoryStore::with_clock_and_cap(clock.clone(), max_keys)
}

/// Limits whose state is in the table, so that a key counts as one unit.
fn small_limits() -> impl Strategy<Value = Limit> {
    any_spending_limit().prop_filter("a large state", |limit| match limit.algorithm() {
        Algorithm::SlidingLog(_) | Algorithm::Concurrency(_) => false,
        Algorithm::SlidingWindow(window) => window.parts() == 1,
        _ => true,
    })
}

/// Part of a trace: a flood under one of three rules, followed by some requests under the rule under test.
#[derive(Clone, Debug)]
struct Scene {
    flooded: usize,
    keys: usize,
    reserve: bool,
    wait: u64,
    asks: Vec<(usize, tidegate_test_support::traces::Cost)>,
}

fn scenes() -> impl Strategy<Value = Vec<Scene>> {
    let asks = prop::collection::vec((0..SHARE, costs()), 0..40);
    let scene = (0_usize..3, 0_usize..1_500, any::<bool>(), 0_u64..40, asks);
    let scene = scene.prop_map(|(flooded, keys, reserve, wait, asks)| Scene { flooded, keys, reserve, wait, asks });
    prop::collection::vec(scene, 1..8)
}

proptest! {
    #![proptest_config(crate::properties::cases(150))]

    #[test]
    fn a_rule_below_its_share_decides_as_if_there_were_no_cap(
        floods in prop::collection::vec(any_limit(), 3),
        limit in small_limits(),
        scenes in scenes(),
    ) {
        let clock = ManualClock::at(Timestamp::from_secs(1_772_000_000));
        let (capped, roomy) = (store(CAP, &clock), store(1_000_000, &clock));
        let rules = ["flood 1", "flood 2", "flood 3", "watched"].map(RuleId::new);
        let names: Vec<_> = (0..SHARE).map(|number| format!("watched {number}")).collect();
        let mut number = 0;
        for scene in scenes {
            for _ in 0..scene.keys {
                number += 1;
                let name = format!("one-off {number}");
                let (key, limit) = (Key::from(&name), &floods[scene.flooded]);
                let charge = Charge::new(&rules[scene.flooded], &key, limit);
                let charge = if scene.reserve { charge.reserve(Micros::from_secs(600)) } else { charge };
                // A reservation for which there is no room is an error and takes nothing.
                let _ = capped.decide(&[charge]);
            }
            let (used, cap) = capped.used();
            prop_assert!(used <= cap);
            prop_assert_eq!(capped.usage_by_rule().iter().map(|usage| usage.used).sum::<u64>(), used);
            clock.advance(Micros::new(span_of(&limit) / 64 * scene.wait));
            for (index, cost) in scene.asks {
                let key = Key::from(&names[index]);
                let charges = [Charge::new(&rules[3], &key, &limit).cost(cost.of(&limit))];
                prop_assert_eq!(capped.peek(&charges), roomy.peek(&charges));
                prop_assert_eq!(capped.decide(&charges).unwrap(), roomy.decide(&charges).unwrap());
            }
        }
    }

    #[test]
    fn a_log_that_cannot_grow_admits_no_more_than_its_limit_in_any_window(
        most in 1_u64..300,
        steps in prop::collection::vec((0_u64..200, 1_u64..4), 1..800),
        others in 0_usize..60,
    ) {
        let clock = ManualClock::at(Timestamp::from_secs(1_772_000_000));
        let store = store(60, &clock);
        let (rule, window) = (RuleId::new("rule"), Micros::from_secs(10));
        let limit: Limit = format!("log {most}/10s").parse().unwrap();
        let key = Key::from("key");
        let charge = Charge::new(&rule, &key, &limit);
        prop_assert!(store.decide(&[charge]).unwrap().is_allowed());
        // The other rules leave between all and none of the room.
        for number in 0..others {
            let (name, long) = (format!("other {number}"), "1/day".parse().unwrap());
            store.decide(&[Charge::new(&rule, &Key::from(&name), &long)]).unwrap();
        }
        let mut admitted = vec![(clock.now(), 1)];
        for (wait, cost) in steps {
            clock.advance(Micros::from_millis(wait));
            if store.decide(&[charge.cost(cost)]).unwrap().is_allowed() {
                admitted.push((clock.now(), cost));
            }
            let within = admitted.iter().filter(|(at, _)| *at + window > clock.now());
            prop_assert!(within.map(|(_, cost)| cost).sum::<u64>() <= most);
            let (used, cap) = store.used();
            prop_assert!(used <= cap);
        }
    }
}

#[test]
fn a_key_that_has_no_room_for_another_lease_is_denied_and_can_go_on_when_one_ends() {
    let clock = ManualClock::at(Timestamp::from_secs(1_772_000_000));
    let store = store(120, &clock);
    let (rule, key) = (RuleId::new("rule"), Key::from("key"));
    let limit: Limit = "concurrent 1000 ttl 30s".parse().unwrap();
    let take = || store.decide(&[Charge::new(&rule, &key, &limit)]).unwrap();
    let mut receipts = Vec::new();
    let denied = loop {
        let answer = take();
        match answer.receipt {
            Some(receipt) => receipts.push(receipt),
            None => break answer.decisions[0],
        }
        assert!(receipts.len() < 1_000);
    };
    assert_eq!(denied.retry_after(), Some(Micros::from_secs(30)));
    assert!(receipts.len() >= 5, "{}", receipts.len());
    assert_eq!(store.stats().overflowed, 1);
    for receipt in receipts.drain(..).rev().take(5) {
        store.settle(&receipt, &[]);
    }
    assert!(take().is_allowed());
}

#[test]
fn reset_or_refunded_charges_do_not_count() {
    let clock = ManualClock::at(Timestamp::from_secs(1_772_000_000));
    let store = store(400_000, &clock);
    let limits =
        ["10/s", "log 100/s", "concurrent 9 ttl 1s", "sliding 10/s parts 10"].map(|text| text.parse().unwrap());
    let rules = ["a", "b", "c", "d"].map(RuleId::new);
    for number in 0..300 {
        let name = format!("key {number}");
        let key = Key::from(&name);
        for (rule, limit) in rules.iter().zip(&limits) {
            for _ in 0..number % 20 {
                clock.advance(Micros::new(1));
                store.decide(&[Charge::new(rule, &key, limit).reserve(Micros::from_secs(1))]).unwrap();
            }
        }
    }
    assert!(store.stats().used > 5_000);
    clock.advance(Micros::from_secs(60));
    let flood: Limit = "1/day".parse().unwrap();
    // A new key removes one expired reservation of its shard, and some shards have three times as many as others.
    const FLOOD: usize = 60_000;
    for number in 0..FLOOD {
        let name = format!("new {number}");
        store.decide(&[Charge::new(&rules[0], &Key::from(&name), &flood)]).unwrap();
    }
    let stats = store.stats();
    assert_eq!((stats.used, stats.keys, stats.reservations), (FLOOD, FLOOD, 0), "{stats:?}");
}
