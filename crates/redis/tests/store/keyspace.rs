//! Keys in Redis: their size, their TTL, and that denials create none.

use std::collections::BTreeMap;

use tidegate_core::contract::seed::seed;
use tidegate_core::limit::Algorithm;
use tidegate_core::store::Adjustment;
use tidegate_core::{Charge, Key, Limit, ManualClock, Micros, Outcome, RuleId, Store, Timestamp};

use crate::store::server;

fn limits() -> Vec<Limit> {
    [
        "5/s burst 9",
        "1/month burst 3",
        "10000000/s burst 1000000",
        "gcra 7/3s burst 100",
        "gcra 999983/s burst 3000000",
        "meter 2/min burst 6",
        "shaper 11/s queue 40",
        "fixed 20/min",
        "fixed 30/day",
        "fixed 12/month calendar",
        "fixed 100/week calendar",
        "sliding 25/min",
        "sliding 90/min parts 60",
        "sliding 1000000/day parts 48",
        "log 9/10s",
        "log 2000/h",
        "concurrent 4 ttl 20s",
        "concurrent 500 ttl 60s",
    ]
    .map(|text| text.parse().unwrap())
    .to_vec()
}

/// All keys that begin with `prefix`, with their expiry in milliseconds.
fn keys(prefix: &str) -> BTreeMap<String, i64> {
    let mut connection = server::connection();
    let names: Vec<String> = redis::cmd("KEYS").arg(format!("{prefix}:*")).query(&mut connection).unwrap();
    let expiry = |name: &String| redis::cmd("PEXPIRETIME").arg(name).query::<i64>(&mut server::connection()).unwrap();
    names.into_iter().map(|name| (name.clone(), expiry(&name))).collect()
}

fn server_micros() -> i64 {
    let (seconds, micros): (i64, i64) = redis::cmd("TIME").query(&mut server::connection()).unwrap();
    seconds * 1_000_000 + micros
}

/// The time that a key may be kept after it has recovered. Buckets are kept for some additional seconds, so that not every
/// request needs to set their TTL; other keys only for the time that setting it takes.
fn longest_while(limit: &Limit) -> i64 {
    match limit.algorithm() {
        Algorithm::TokenBucket(_) | Algorithm::Gcra(_) | Algorithm::Meter(_) | Algorithm::Shaper(_) => 4_005_000,
        Algorithm::FixedWindow(_)
        | Algorithm::SlidingWindow(_)
        | Algorithm::SlidingLog(_)
        | Algorithm::Concurrency(_) => 5_000,
    }
}

/// After random traffic on the server's own clock, every key is kept at least until none of its spending counts, and not
/// much longer.
#[test]
fn every_key_expires_when_it_has_recovered_and_not_before() {
    let prefix = server::prefix();
    let store = server::store_on_server_time(&prefix);
    let ask = server::runtime();
    let limits = limits();
    let rules: Vec<RuleId> = limits.iter().map(|limit| RuleId::new(&limit.to_string())).collect();
    let clients: Vec<Key<'_>> = ["alice", "bob", "carol"].map(Key::from).to_vec();
    let mut dice = fastrand::Rng::with_seed(seed(7));
    let mut receipts = Vec::new();
    for _ in 0..1_500 {
        let (index, key) = (dice.usize(..limits.len()), dice.choice(&clients).unwrap());
        let charge = Charge::new(&rules[index], key, &limits[index]).cost(dice.u64(0..5));
        let charge = if dice.bool() { charge.reserve(Micros::from_secs(dice.u64(1..100))) } else { charge };
        let other = dice.usize(..limits.len());
        let other = Charge::new(&rules[other], key, &limits[other]);
        match dice.u32(..10) {
            0 => drop(ask.block_on(store.adjust(&charge, Adjustment::Penalty)).unwrap()),
            1 => drop(ask.block_on(store.adjust(&charge, Adjustment::Credit)).unwrap()),
            2 => drop(ask.block_on(store.peek(&[charge])).unwrap()),
            3 if !receipts.is_empty() => {
                let receipt = receipts.swap_remove(dice.usize(..receipts.len()));
                ask.block_on(store.settle(&receipt, &[dice.u64(..6), 1])).unwrap();
            }
            4 if !receipts.is_empty() => drop(ask.block_on(store.renew(dice.choice(&receipts).unwrap())).unwrap()),
            5 => receipts.extend(ask.block_on(store.decide(&[charge, other])).unwrap().receipt),
            _ => receipts.extend(ask.block_on(store.decide(&[charge])).unwrap().receipt),
        }
    }
    let mut states = 0;
    for (limit, rule) in limits.iter().zip(&rules) {
        for key in &clients {
            let name = format!("{prefix}:{{{}}}:{rule}", String::from_utf8_lossy(key.parts().next().unwrap()));
            let before = server_micros();
            let look = ask.block_on(store.peek(&[Charge::new(rule, key, limit).cost(0)])).unwrap()[0];
            let after = server_micros();
            let expires: i64 = redis::cmd("PEXPIRETIME").arg(&name).query(&mut server::connection()).unwrap();
            let counts_for = i64::try_from(look.reset_after.get()).unwrap();
            if expires == -2 {
                let is_new = look.remaining == limit.capacity();
                assert!(is_new, "{name} is gone, but counts for {counts_for} us: {look:?}");
                continue;
            }
            states += 1;
            assert!(expires * 1_000 >= before + counts_for, "{name} counts for {counts_for} us, but ends before");
            let is_late = expires * 1_000 > after + counts_for + longest_while(limit);
            // A released slot does not shorten the TTL of a key with other slots.
            assert!(!is_late || limit.holds_slots() || counts_for == 0, "{name} stays after it has recovered");
        }
    }
    assert!(states > 20, "only {states} states to look at");
    let holds = keys(&prefix).into_iter().filter(|(name, _)| name.contains('~')).collect::<Vec<_>>();
    assert!(holds.len() > 20, "only {} reservations to look at", holds.len());
    let all = keys(&prefix);
    // -1 is a key without an end, and -2 one that has ended since it was listed.
    assert!(all.values().all(|expires| *expires != -1), "{all:?}");
}

/// One string of at most 24 bytes, for any limit and any debt.
#[test]
fn a_bucket_takes_at_most_24_bytes() {
    let clock = ManualClock::at(Timestamp::from_secs(1_794_700_800));
    let prefix = server::prefix();
    let store = server::store(&prefix, clock.clone());
    let key = Key::from("alice");
    let texts = [
        "5/s burst 9",
        "gcra 5/s burst 9",
        "1/year burst 142",
        "gcra 1/year burst 142",
        "meter 4294967295/2us burst 2000000000",
        "shaper 999983/s queue 5000000",
    ];
    for limit in texts.map(|text| text.parse::<Limit>().unwrap()) {
        let rule = RuleId::new(&limit.to_string());
        let charge = Charge::new(&rule, &key, &limit);
        for _ in 0..3 {
            server::runtime()
                .block_on(store.adjust(&charge.cost(limit.capacity() / 2 + 1), Adjustment::Penalty))
                .unwrap();
            clock.advance(Micros::new(1));
            let length: usize = redis::cmd("STRLEN")
                .arg(format!("{prefix}:{{alice}}:{rule}"))
                .query(&mut server::connection())
                .unwrap();
            assert!((1..=24).contains(&length), "{limit}: {length} bytes");
        }
    }
}

/// The bytes and the expiry of every key.
fn image(prefix: &str) -> BTreeMap<String, (Vec<u8>, i64)> {
    let dump = |name: &String| redis::cmd("DUMP").arg(name).query(&mut server::connection()).unwrap();
    keys(prefix).into_iter().map(|(name, expires)| (name.clone(), (dump(&name), expires))).collect()
}

#[test]
fn a_flood_of_denials_stores_nothing() {
    let prefix = server::prefix();
    let clock = ManualClock::at(Timestamp::from_secs(1_794_700_800));
    let store = server::store(&prefix, clock.clone());
    let ask = server::runtime();
    let (key, stranger) = (Key::from("alice"), Key::from("stranger"));
    for limit in limits() {
        let rule = RuleId::new(&limit.to_string());
        let charge = Charge::new(&rule, &key, &limit);
        assert!(ask.block_on(store.decide(&[charge.cost(limit.capacity())])).unwrap().is_allowed(), "{limit}");
        let before = image(&prefix);
        for _ in 0..50 {
            clock.advance(Micros::new(1));
            let reserved = charge.cost(limit.capacity()).reserve(Micros::from_secs(60));
            for charges in [
                &[charge.cost(limit.capacity())][..],
                &[reserved],
                &[charge.cost(limit.capacity()), Charge::new(&rule, &stranger, &limit)],
            ] {
                assert!(!ask.block_on(store.decide(charges)).unwrap().is_allowed(), "{limit}");
            }
            let never = ask.block_on(store.decide(&[Charge::new(&rule, &stranger, &limit).cost(limit.capacity() + 1)]));
            assert!(matches!(never.unwrap().decisions[0].outcome, Outcome::TooLarge { .. }), "{limit}");
        }
        assert_eq!(image(&prefix), before, "{limit}");
    }
}

/// A refund leaves no key either.
#[test]
fn a_key_that_owes_nothing_is_not_there() {
    let prefix = server::prefix();
    let store = server::store(&prefix, ManualClock::at(Timestamp::from_secs(1_794_700_800)));
    let ask = server::runtime();
    let key = Key::from("alice");
    for limit in limits() {
        let rule = RuleId::new(&limit.to_string());
        let charge = Charge::new(&rule, &key, &limit).cost(3).reserve(Micros::from_secs(60));
        let receipt = ask.block_on(store.decide(&[charge])).unwrap().receipt.unwrap();
        assert!(!keys(&prefix).is_empty(), "{limit}");
        ask.block_on(store.settle(&receipt, &[0])).unwrap();
        assert_eq!(keys(&prefix), BTreeMap::new(), "{limit}");
    }
}
