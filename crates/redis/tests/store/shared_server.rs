//! Several nodes, other programs, and a server that loses data.

use tidegate_core::{Charge, Key, Limit, ManualClock, Micros, RuleId, Settlement, Store, StoreError, Timestamp};

use crate::store::server;

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_794_700_800))
}

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

#[test]
fn a_receipt_can_be_settled_and_renewed_by_another_node() {
    let (prefix, ask, clock) = (server::prefix(), server::runtime(), clock());
    let (here, there) = (server::store(&prefix, clock.clone()), server::store(&prefix, clock.clone()));
    let (key, cost, slots) = (Key::of(["acme", "alice"]), RuleId::new("cost"), RuleId::new("slots"));
    let (tokens, at_once) = (limit("100/h"), limit("concurrent 2 ttl 30s"));
    let charges = [
        Charge::new(&cost, &key, &tokens).cost(40).reserve(Micros::from_secs(30)),
        Charge::new(&slots, &key, &at_once),
    ];
    let receipt = ask.block_on(here.decide(&charges)).unwrap().receipt.unwrap();
    clock.advance(Micros::from_secs(20));
    assert!(ask.block_on(there.renew(&receipt)).unwrap());
    clock.advance(Micros::from_secs(20));
    let settled = ask.block_on(there.settle(&receipt, &[10, 0])).unwrap();
    assert_eq!(settled, Settlement::Settled { given_back: 31, charged: 0 });
    assert_eq!(ask.block_on(here.settle(&receipt, &[10, 0])).unwrap(), Settlement::Gone);
    assert_eq!(ask.block_on(here.peek(&[charges[1].cost(0)])).unwrap()[0].remaining, 2);
}

#[test]
fn a_lost_script_is_loaded_again() {
    let (store, ask) = (server::store(&server::prefix(), clock()), server::runtime());
    let (rule, key, limit) = (RuleId::new("rule"), Key::from("alice"), limit("10/h"));
    for left in (0..10).rev() {
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut server::connection()).unwrap();
        let answer = ask.block_on(store.decide(&[Charge::new(&rule, &key, &limit)])).unwrap();
        assert_eq!(answer.decisions[0].remaining, left);
    }
}

/// Foreign keys are reported, by charge, and not modified; nothing of the request is charged.
#[test]
fn foreign_keys_are_left_alone() {
    let (prefix, ask) = (server::prefix(), server::runtime());
    let store = server::store(&prefix, clock());
    let mut connection = server::connection();
    let (alice, fine) = (Key::from("alice"), RuleId::new("fine"));
    let intruders: [&[&str]; 11] = [
        &["SET", "string", "a few words of somebody else's, quite a few of them"],
        &["SET", "short", "x"],
        &["SET", "kind", "\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"],
        &["SET", "window", "\x04 and too short"],
        &["SET", "sliding", "\x06 too short"],
        &["SET", "leased", "\x11 a leased bucket is longer"],
        // As a later version might write.
        &["SET", "unknown", "\x41 is the first byte of no state, however long it may be"],
        &["RPUSH", "list", "a"],
        &["SADD", "set", "a"],
        &["HSET", "hash", "a", "b"],
        &["ZADD", "zset", "1", "a", "1e17", "b"],
    ];
    for text in ["10/h", "gcra 10/h", "fixed 10/h", "sliding 10/h", "log 10/h", "concurrent 10 ttl 1h"] {
        let limit = limit(text);
        let free = Charge::new(&fine, &alice, &limit);
        for intruder in intruders {
            let rule = RuleId::new(intruder[1]);
            let name = format!("{prefix}:{{alice}}:{rule}");
            redis::cmd("DEL").arg(&name).exec(&mut connection).unwrap();
            redis::cmd(intruder[0]).arg(&name).arg(&intruder[2..]).exec(&mut connection).unwrap();
            let image = |connection: &mut redis::Connection| {
                redis::cmd("DUMP").arg(&name).query::<Vec<u8>>(connection).unwrap()
            };
            let before = image(&mut connection);
            let taken = Charge::new(&rule, &alice, &limit);
            let is_reported = |error: StoreError, which: usize| match error {
                StoreError::UnusableKey { charges, .. } => assert_eq!(charges[..], [which], "{text} on a {rule}"),
                other => panic!("{text} on a {rule}: {other}"),
            };
            is_reported(ask.block_on(store.decide(&[free, taken.reserve(Micros::from_secs(1))])).unwrap_err(), 1);
            is_reported(ask.block_on(store.decide(&[taken])).unwrap_err(), 0);
            is_reported(ask.block_on(store.peek(&[free, free, taken])).unwrap_err(), 2);
            is_reported(ask.block_on(store.adjust(&taken, tidegate_core::store::Adjustment::Penalty)).unwrap_err(), 0);
            is_reported(ask.block_on(store.reset(&rule, &alice)).unwrap_err(), 0);
            let both = ask.block_on(store.decide(&[taken, free, taken])).unwrap_err();
            assert!(matches!(both, StoreError::UnusableKey { charges, .. } if charges[..] == [0, 2]));
            assert_eq!(image(&mut connection), before, "{text} on a {rule}");
            assert_eq!(ask.block_on(store.peek(&[free.cost(0)])).unwrap()[0].remaining, 10, "{text} beside a {rule}");
        }
    }
}
