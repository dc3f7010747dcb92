//! Requests over several slots that one of the slots denies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tidegate_core::{Charge, Key, Limit, ManualClock, Micros, RuleId, Settlement, Store, StoreError, Timestamp};
use tidegate_redis::{Names, RedisStore, Settings};
use tidegate_test_support::redis::Cluster;
use tidegate_test_support::{eventually, until};

use crate::slots::shared::{self, slot};

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_794_700_800))
}

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

/// Keys in three slots, in the order of the slots.
fn in_order() -> Vec<Key<'static>> {
    let mut names: Vec<String> = (0..3).map(|number| format!("in order {number}")).collect();
    names.sort_by_key(|name| slot(&name.replace(' ', "%20")));
    names.iter().map(|name| Key::of([name])).collect()
}

fn name_of(prefix: &str, key: &Key<'_>, rule: &str) -> String {
    let key = String::from_utf8_lossy(key.parts().next().unwrap()).replace(' ', "%20");
    format!("{prefix}:{{{key}}}:{rule}")
}

#[test]
fn whichever_slot_denies_the_others_are_as_they_were() {
    let (store, ask, keys) = (shared::store(&shared::prefix(), clock()), shared::runtime(), in_order());
    let all =
        ["100/h", "gcra 100/h", "meter 100/h", "shaper 100/h queue 100", "fixed 100/h", "sliding 100/h", "log 100/h"];
    for text in all.into_iter().chain(["concurrent 100 ttl 1h"]) {
        for denies in 0..3 {
            let rule = RuleId::new(&format!("{text} {denies}"));
            let (wide, narrow) = (limit(text), limit("fixed 10/year calendar"));
            let limits = [0, 1, 2].map(|place| if place == denies { &narrow } else { &wide });
            let charges: Vec<Charge<'_>> =
                keys.iter().zip(limits).map(|(key, limit)| Charge::new(&rule, key, limit).cost(7)).collect();
            assert!(ask.block_on(store.decide(&charges)).unwrap().is_allowed());
            let answer = ask.block_on(store.decide(&charges)).unwrap();
            for (place, decision) in answer.decisions.iter().enumerate() {
                assert_eq!(decision.is_allowed(), place != denies, "{text}, {denies}");
                assert_eq!(decision.remaining, if place == denies { 3 } else { 93 }, "{text}, {denies}");
            }
            assert!(answer.receipt.is_none());
            let left =
                ask.block_on(store.peek(&charges.iter().map(|charge| charge.cost(0)).collect::<Vec<_>>())).unwrap();
            for (decision, left) in answer.decisions.iter().zip(&left) {
                assert_eq!((decision.remaining, decision.reset_after), (left.remaining, left.reset_after), "{text}");
            }
        }
    }
    let counts = store.refunds();
    assert_eq!((counts.waiting, counts.lost), (0, 0));
    assert_eq!(counts.refunded, 8 * (1 + 2), "as many slots as were charged before the one that denied");
}

#[test]
fn two_places_in_one_queue_are_given_back() {
    let (store, ask, keys) = (shared::store(&shared::prefix(), clock()), shared::runtime(), in_order());
    let (rule, queue, narrow) = (RuleId::new("rule"), limit("shaper 1/min queue 12"), limit("fixed 0/h"));
    let place = Charge::new(&rule, &keys[0], &queue);
    let answer = ask.block_on(store.decide(&[place.cost(3), place.cost(6), Charge::new(&rule, &keys[1], &narrow)]));
    let left: Vec<u64> = answer.unwrap().decisions.iter().map(|decision| decision.remaining).collect();
    assert_eq!(left, [12, 12, 0]);
    assert_eq!(ask.block_on(shared::spent(&store, place)), 0);
}

#[test]
fn a_receipt_over_several_slots_is_renewed_and_settled_by_another_node() {
    let (prefix, ask, clock, keys) = (shared::prefix(), shared::runtime(), clock(), in_order());
    let (here, there) = (shared::store(&prefix, clock.clone()), shared::store(&prefix, clock.clone()));
    let rule = RuleId::new("rule");
    let (tokens, at_once) = (limit("100/h"), limit("concurrent 5 ttl 30s"));
    let charges = [
        Charge::new(&rule, &keys[2], &tokens).cost(40).reserve(Micros::from_secs(30)),
        Charge::new(&rule, &keys[1], &tokens).cost(5),
        Charge::new(&rule, &keys[0], &at_once).cost(2),
    ];
    let receipt = ask.block_on(here.decide(&charges)).unwrap().receipt.unwrap();
    assert_eq!(receipt.held.len(), 2);
    clock.advance(Micros::from_secs(20));
    assert!(ask.block_on(there.renew(&receipt)).unwrap());
    clock.advance(Micros::from_secs(20));
    let settled = ask.block_on(there.settle(&receipt, &[10, 0])).unwrap();
    assert_eq!(settled, Settlement::Settled { given_back: 32, charged: 0 });
    assert_eq!(ask.block_on(here.settle(&receipt, &[10, 0])).unwrap(), Settlement::Gone);
    assert!(!ask.block_on(here.renew(&receipt)).unwrap());
}

/// Keys with foreign data are reported for all slots at once, and earlier charges are refunded.
#[test]
fn foreign_keys_are_reported_in_every_slot() {
    let (prefix, ask, keys) = (shared::prefix(), shared::runtime(), in_order());
    let store = shared::store(&prefix, clock());
    let (rule, limit) = (RuleId::new("rule"), limit("log 10/h"));
    // Not in the order of slots, and twice in the last slot.
    let charges = [2, 0, 1, 2].map(|key| Charge::new(&rule, &keys[key], &limit));
    let intrude = |key: usize| {
        let name = name_of(&prefix, &keys[key], "rule");
        let node = Cluster::first_owner(tidegate_redis::slot_of(name.as_bytes()));
        shared::cluster().nodes[node].run::<()>(&["SADD", &name, "somebody else's"]);
    };
    let unusable = |store: &RedisStore| match ask.block_on(store.decide(&charges)).unwrap_err() {
        StoreError::UnusableKey { charges, .. } => charges.to_vec(),
        other => panic!("{other}"),
    };
    intrude(2);
    assert_eq!(unusable(&store), [0, 3]);
    assert_eq!(ask.block_on(shared::spent(&store, charges[1])), 0);
    assert_eq!(ask.block_on(shared::spent(&store, charges[2])), 0);
    assert_eq!(store.refunds().refunded, 2);
    intrude(1);
    assert_eq!(unusable(&store), [0, 2, 3]);
    assert_eq!(ask.block_on(shared::spent(&store, charges[1])), 0);
    match ask.block_on(store.peek(&charges)).unwrap_err() {
        StoreError::UnusableKey { charges, .. } => assert_eq!(charges[..], [0, 2, 3]),
        other => panic!("{other}"),
    }
    // Denied in the first slot, with state in the others.
    assert!(ask.block_on(store.decide(&[charges[1].cost(10)])).unwrap().is_allowed());
    assert_eq!(unusable(&store), [0, 2, 3]);
}

#[test]
fn charges_of_abandoned_calls_are_refunded() {
    let (store, ask, keys) = (shared::store(&shared::prefix(), clock()), shared::runtime(), in_order());
    let (rule, limit) = (RuleId::new("rule"), limit("1/h burst 100000"));
    let charges = [0, 1, 2].map(|key| Charge::new(&rule, &keys[key], &limit));
    ask.block_on(async {
        let mut admitted = 0;
        for round in 0..400_usize {
            let mut deciding = Box::pin(store.decide(&charges));
            // Polled several times, each after a delay in which answers, even to another call, may or may not have arrived.
            for _ in 0..round % 8 {
                match std::future::poll_fn(|cx| Poll::Ready(deciding.as_mut().poll(cx))).await {
                    Poll::Ready(answer) => {
                        admitted += u64::from(answer.unwrap().is_allowed());
                        break;
                    }
                    Poll::Pending if round % 5 == 0 => tokio::task::yield_now().await,
                    Poll::Pending => drop(shared::spent(&store, charges[round % 3]).await),
                }
            }
        }
        // Every certain or possible charge is refunded, except in the last slot, which is final.
        eventually("all given back", async || {
            let first = shared::spent(&store, charges[0]).await;
            let second = shared::spent(&store, charges[1]).await;
            (first == admitted && second == admitted).then_some(())
        })
        .await;
        assert!((admitted..=400).contains(&shared::spent(&store, charges[2]).await));
    });
    assert_eq!(store.refunds().lost, 0);
}

/// A process that crashes with requests half-way: its charges stay, and nothing is admitted twice.
#[test]
fn a_process_that_dies_half_way_has_spent_and_admits_nothing() {
    const CALLERS: u64 = 32;
    let (prefix, keys) = (shared::prefix(), in_order());
    let limits = ["1/h burst 100000", "log 100000/30d", "fixed 100000/year calendar"].map(limit);
    let admitted = Arc::new(AtomicU64::new(0));
    let doomed = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let store = {
        let _context = doomed.enter();
        let mut settings = Settings::cluster(shared::cluster().urls()).unwrap();
        settings.deadline = Duration::from_secs(10);
        Arc::new(RedisStore::open(settings).unwrap().with_names(Names::new(&prefix).unwrap()))
    };
    for _ in 0..CALLERS {
        let (store, keys, admitted) = (store.clone(), keys.clone(), admitted.clone());
        doomed.spawn(async move {
            let rule = RuleId::new("rule");
            loop {
                let charges: Vec<Charge<'_>> =
                    keys.iter().zip(&limits).map(|(key, limit)| Charge::new(&rule, key, limit)).collect();
                if store.decide(&charges).await.is_ok_and(|answer| answer.is_allowed()) {
                    admitted.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
    }
    until("some work", || (admitted.load(Ordering::SeqCst) > 500).then_some(()));
    doomed.shutdown_timeout(Duration::from_secs(10));
    let admitted = admitted.load(Ordering::SeqCst);

    let (ask, rule) = (shared::runtime(), RuleId::new("rule"));
    let heir = {
        let _context = ask.enter();
        let mut settings = Settings::cluster(shared::cluster().urls()).unwrap();
        settings.deadline = Duration::from_secs(10);
        RedisStore::open(settings).unwrap()
    };
    let heir = heir.with_names(Names::new(&prefix).unwrap());
    for (key, limit) in keys.iter().zip(&limits) {
        let spent = ask.block_on(shared::spent(&heir, Charge::new(&rule, key, limit)));
        // Calls in flight may still have reached the server, and answers that were not read are not counted.
        assert!((admitted..=admitted + 2 * CALLERS).contains(&spent), "{limit}: {spent} spent, {admitted} admitted");
    }
}
