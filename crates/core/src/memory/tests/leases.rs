//! Leases in the memory store.

use super::*;
use crate::lease::{Grant, LeaseRequest, Renewal};

crate::store_contract!(InMemory::new(), leases);

fn lease(store: &MemoryStore<ManualClock>, rule: &RuleId, key: &Key<'_>, limit: &Limit, renewal: Renewal) -> Grant {
    store.lease(&[LeaseRequest { rule, key, limit, renewal }])[0]
}

fn wanting(tokens: u64) -> Renewal {
    Renewal { wanted: tokens, least: tokens, ..Renewal::default() }
}

#[test]
fn keys_are_small_again_when_their_leases_are_over() {
    let (store, clock) = small(100_000);
    let (rule, limit): (_, Limit) = (RuleId::new("rule"), "10/s burst 100".parse().unwrap());
    let keys: Vec<Key<'_>> = (0..100).map(|number| Key::of([format!("key {number}")])).collect();
    for key in &keys {
        assert!(store.decide(&[Charge::new(&rule, key, &limit)]).unwrap().is_allowed());
    }
    let before = store.stats().used;
    for key in &keys {
        assert_eq!(lease(&store, &rule, key, &limit, wanting(40)).tokens, 40);
    }
    assert!(store.stats().used > 3 * before, "leases are counted: {:?}", store.stats());
    clock.advance(Micros::from_secs(5));
    for key in &keys {
        assert!(store.decide(&[Charge::new(&rule, key, &limit)]).unwrap().is_allowed());
    }
    assert_eq!(store.stats().used, before);
    assert_eq!(store.stats().keys, 100);
}

#[test]
fn a_leased_key_is_not_swept_before_its_leases_end() {
    let (store, clock) = small(10_000);
    let (rule, limit): (_, Limit) = (RuleId::new("rule"), "1000/s burst 1000".parse().unwrap());
    let key = Key::from("alice");
    assert_eq!(lease(&store, &rule, &key, &limit, wanting(400)).tokens, 400);
    clock.advance(Micros::from_secs(3));
    // Enough new keys to sweep every slot.
    for number in 0..5_000 {
        store.decide(&[Charge::new(&rule, &Key::of([format!("other {number}")]), &limit)]).unwrap();
    }
    assert_eq!(store.peek_one(&Charge::new(&rule, &key, &limit).cost(0)).remaining, 600);
    clock.advance(Micros::from_secs(3));
    for number in 0..5_000 {
        store.decide(&[Charge::new(&rule, &Key::of([format!("another {number}")]), &limit)]).unwrap();
    }
    assert!(!store.reset(&rule, &key), "it has been swept");
}

#[test]
fn a_key_without_room_is_not_leased() {
    let (store, _) = small(10);
    let (rule, limit): (_, Limit) = (RuleId::new("rule"), "10/h burst 100".parse().unwrap());
    for number in 0..20 {
        store.decide(&[Charge::new(&rule, &Key::of([format!("key {number}")]), &limit)]).unwrap();
    }
    let grant = lease(&store, &rule, &Key::from("alice"), &limit, wanting(10));
    assert_eq!((grant.tokens, grant.outstanding), (0, 0));
    assert!(store.stats().used <= 10);
}

#[test]
fn a_request_over_leased_and_other_keys_is_charged_to_all_or_none() {
    let (store, _) = small(10_000);
    let (leased, plain): (Limit, Limit) = ("10/h burst 100".parse().unwrap(), "fixed 50/day".parse().unwrap());
    let (one, other, key) = (RuleId::new("one"), RuleId::new("other"), Key::from("alice"));
    assert_eq!(lease(&store, &one, &key, &leased, wanting(40)).tokens, 40);
    let charges = |cost| [Charge::new(&one, &key, &leased).cost(cost), Charge::new(&other, &key, &plain).cost(cost)];
    assert!(store.decide(&charges(30)).unwrap().is_allowed());
    assert!(!store.decide(&charges(30)).unwrap().is_allowed());
    assert!(store.decide(&charges(20)).unwrap().is_allowed());
    let remaining = |charge: Charge<'_>| store.peek_one(&charge.cost(0)).remaining;
    assert_eq!(charges(0).map(remaining), [10, 0]);
}
