//! The cap on keys: the store respects it, and a flood of keys never makes it forget debt.

use proptest::prelude::*;
use tidegate_core::limit::State;
use tidegate_core::{Charge, Clock, Key, Limit, ManualClock, MemoryStore, Micros, RuleId, Timestamp};

use tidegate_test_support::limits::{any_limit, any_spending_limit, span_of};
use tidegate_test_support::traces::{Cost, costs};

fn store(max_keys: usize) -> (MemoryStore<ManualClock>, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_secs(1_772_000_000));
    (MemoryStore::with_clock_and_cap(clock.clone(), max_keys), clock)
}

/// One key with its expected state.
struct ExpectedKey {
    name: String,
    limit: Limit,
    state: State,
}

impl ExpectedKey {
    fn new(number: usize, limit: Limit) -> ExpectedKey {
        ExpectedKey { name: format!("watched {number}"), limit, state: limit.fresh() }
    }

    /// Requests `cost` from the store, and compares its decision with that of the limit itself.
    fn ask(&mut self, store: &MemoryStore<ManualClock>, rule: &RuleId, cost: u64) -> Result<(), TestCaseError> {
        let key = Key::from(&self.name);
        let answer = store.decide(&[Charge::new(rule, &key, &self.limit).cost(cost)]).unwrap();
        let decision = self.limit.decide(&mut self.state, cost, store.clock().now());
        prop_assert_eq!(answer.decisions[0], decision, "of {}", self.name);
        Ok(())
    }
}

proptest! {
    #![proptest_config(crate::properties::cases(800))]

    #[test]
    fn a_flood_of_keys_never_makes_the_store_forgive_a_debtor(
        limits in prop::collection::vec(any_limit(), 1..6),
        flood in prop::collection::vec((any_limit(), 1_usize..40, 0_u64..80, costs()), 1..25),
        max_keys in 300_usize..800,
    ) {
        let (store, clock) = store(max_keys);
        let rules = ["watched", "flood"].map(RuleId::new);
        let mut watched: Vec<_> = limits.into_iter().enumerate().map(|(n, limit)| ExpectedKey::new(n, limit)).collect();
        for watched in &mut watched {
            watched.ask(&store, &rules[0], watched.limit.capacity())?;
        }
        let mut number = 0;
        for (limit, keys, wait, cost) in flood {
            for _ in 0..keys {
                number += 1;
                let name = format!("one-off {number}");
                store.decide(&[Charge::new(&rules[1], &Key::from(&name), &limit)]).unwrap();
                let stats = store.stats();
                prop_assert!(stats.keys <= max_keys + rules.len() && stats.used <= max_keys, "{stats:?}");
            }
            let span = span_of(&watched[number % watched.len()].limit);
            clock.advance(Micros::new(span / 64 * wait));
            // A recovered key may be forgotten and then find no room, so it is no longer checked.
            watched.retain(|watched| !watched.limit.is_recovered(&watched.state, clock.now()));
            for watched in &mut watched {
                watched.ask(&store, &rules[0], cost.of(&watched.limit))?;
            }
            if watched.is_empty() {
                break;
            }
        }
    }

    #[test]
    fn a_store_that_is_not_full_keeps_every_key_apart(
        limits in prop::collection::vec(any_limit(), 1..5),
        asks in prop::collection::vec((0_usize..40, costs(), 0_u64..20), 1..300),
    ) {
        let (store, clock) = store(20_000);
        let rule = RuleId::new("rule");
        let mut watched: Vec<_> = (0..40).map(|n| ExpectedKey::new(n, limits[n % limits.len()])).collect();
        for (index, cost, wait) in asks {
            let watched = &mut watched[index];
            clock.advance(Micros::new(span_of(&watched.limit) / 64 * wait / 16));
            watched.ask(&store, &rule, cost.of(&watched.limit))?;
        }
        prop_assert_eq!(store.stats().overflowed, 0);
    }

    #[test]
    fn a_store_never_holds_more_keys_than_its_cap_and_a_shared_bucket_for_each_rule(
        limits in prop::collection::vec(any_spending_limit(), 1..4),
        requests in prop::collection::vec(prop::collection::vec((0_usize..3, 0_usize..200), 1..8), 1..60),
        max_keys in 0_usize..20,
    ) {
        let (store, _clock) = store(max_keys);
        let rules = ["a", "b", "c"].map(RuleId::new);
        let names: Vec<_> = (0..200).map(|number| format!("key {number}")).collect();
        let keys: Vec<_> = names.iter().map(Key::from).collect();
        for request in requests {
            let charge = |&(rule, key): &(usize, usize)| {
                Charge::new(&rules[rule], &keys[key], &limits[rule % limits.len()])
            };
            let charges: Vec<_> = request.iter().map(charge).collect();
            let overflowed = store.stats().overflowed;
            store.decide(&charges).unwrap();
            let stats = store.stats();
            prop_assert!(stats.keys <= max_keys + rules.len() && stats.used <= max_keys, "{stats:?}");
            if overflowed == 0 && stats.overflowed == 0 {
                prop_assert!(stats.keys <= max_keys, "{stats:?}");
            }
        }
    }

    #[test]
    fn keys_without_room_share_what_one_key_would_have(limit in any_spending_limit(), keys in 2_usize..40) {
        let (store, _clock) = store(0);
        let rule = RuleId::new("rule");
        let mut got = 0;
        for number in 0..keys {
            let name = format!("key {number}");
            let key = Key::from(&name);
            let charge = Charge::new(&rule, &key, &limit).cost(Cost::Share(20).of(&limit));
            got += u128::from(charge.cost) * u128::from(store.decide(&[charge]).unwrap().is_allowed());
        }
        prop_assert!(got <= u128::from(limit.capacity()));
    }
}

#[test]
fn new_keys_of_one_request_do_not_pass_the_cap_together() {
    let (store, _clock) = store(1);
    let (rule, limit) = (RuleId::new("rule"), "1/h burst 5".parse().unwrap());
    let keys = ["a", "b", "c", "d"].map(Key::from);
    let charges: Vec<_> = keys.iter().map(|key| Charge::new(&rule, key, &limit)).collect();
    assert!(store.decide(&charges).unwrap().is_allowed());
    assert!(store.stats().keys <= 2, "one key, and one bucket shared by the others: {:?}", store.stats());
}

#[test]
fn a_log_is_swept_by_its_own_window() {
    let (store, clock) = store(20);
    let (long, short): (Limit, Limit) = ("log 1/day".parse().unwrap(), "log 1/s".parse().unwrap());
    let (rule, flood, key) = (RuleId::new("rule"), RuleId::new("flood"), Key::from("debtor"));
    assert!(store.decide(&[Charge::new(&rule, &key, &long)]).unwrap().is_allowed());
    for number in 0..100 {
        clock.advance(Micros::from_secs(1));
        let name = format!("one-off {number}");
        store.decide(&[Charge::new(&flood, &Key::from(&name), &short)]).unwrap();
    }
    assert!(!store.decide(&[Charge::new(&rule, &key, &long)]).unwrap().is_allowed());
}
