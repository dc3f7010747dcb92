//! Leased keys in Redis: their size, their TTL, and renewals of many keys in one call.

use tidegate_core::lease::{EPOCH, Grant, LeaseRequest, Renewal};
use tidegate_core::{Charge, Key, Limit, ManualClock, Micros, RuleId, Store, Timestamp};
use tidegate_redis::RedisStore;

use crate::store::server;

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_794_700_800))
}

fn wanting(tokens: u64) -> Renewal {
    Renewal { wanted: tokens, least: tokens, demand: 10, ..Renewal::default() }
}

fn lease(store: &RedisStore, rule: &RuleId, limit: &Limit, renewal: Renewal) -> Grant {
    let request = LeaseRequest { rule, key: &Key::from("alice"), limit, renewal };
    server::runtime().block_on(store.lease(&[request])).unwrap()[0]
}

fn decide(store: &RedisStore, rule: &RuleId, limit: &Limit, cost: u64) -> u64 {
    let key = Key::from("alice");
    let charges = [Charge::new(rule, &key, limit).cost(cost)];
    server::runtime().block_on(store.decide(&charges)).unwrap().decisions[0].remaining
}

fn length(name: &str) -> usize {
    redis::cmd("STRLEN").arg(name).query(&mut server::connection()).unwrap()
}

/// 44 bytes are the maximum that Redis stores in one allocation together with the header of the value.
#[test]
fn a_leased_bucket_takes_43_bytes_and_an_ordinary_one_24_again() {
    let (prefix, clock) = (server::prefix(), clock());
    let store = server::store(&prefix, clock.clone());
    for text in ["10/s burst 100", "gcra 10/s burst 100", "meter 7/s burst 100000000"] {
        let (rule, limit) = (RuleId::new(text), limit(text));
        let name = format!("{prefix}:{{alice}}:{rule}");
        decide(&store, &rule, &limit, 50);
        assert_eq!(length(&name), 24, "{text}");
        let grant = lease(&store, &rule, &limit, wanting(20));
        assert_eq!((grant.tokens, length(&name)), (20, 43), "{text}");
        decide(&store, &rule, &limit, 1);
        assert_eq!(length(&name), 43, "{text}");
        let report = Renewal { generation: Some(grant.generation), used: 20, ..Renewal::default() };
        assert_eq!(lease(&store, &rule, &limit, report).outstanding, 0, "{text}");
        assert_eq!(length(&name), 43, "{text}: the demand is still known");
        clock.advance(Micros::new(2 * EPOCH.get()));
        decide(&store, &rule, &limit, 1);
        assert_eq!(length(&name), 24, "{text}");
    }
}

/// Tests on the server's own clock.
#[test]
fn a_leased_key_lives_until_its_leases_have_ended_and_their_tokens_recovered() {
    let prefix = server::prefix();
    let store = server::store_on_server_time(&prefix);
    // Limits that recover sooner than leases end, and limits that do not.
    for text in [
        "1000/s burst 200",
        "10/s burst 100",
        "gcra 1/min burst 100",
        "fixed 100/s",
        "fixed 100/week calendar",
        "sliding 100/s parts 2",
    ] {
        let (rule, limit) = (RuleId::new(text), limit(text));
        let grant = lease(&store, &rule, &limit, Renewal { least: 0, ..wanting(40) });
        assert!(grant.tokens > 0, "{text}");
        let left: i64 =
            redis::cmd("PTTL").arg(format!("{prefix}:{{alice}}:{rule}")).query(&mut server::connection()).unwrap();
        // Allows most of a second for a slow machine.
        let counts_for = grant.ends_after.max(grant.decision.reset_after).get() / 1_000;
        let counts_for = i64::try_from(counts_for).unwrap();
        assert!(left > counts_for - 900, "{text}: {left} ms are left of {counts_for}");
        assert!(left < counts_for + 5_000, "{text}: {left} ms are left of {counts_for}");
    }
}

#[test]
fn many_keys_are_renewed_in_one_call() {
    let store = server::store(&server::prefix(), clock());
    let limits = ["10/s burst 100", "fixed 100/min", "sliding 100/min", "log 100/min", "concurrent 100"].map(limit);
    let rules = limits.map(|limit| RuleId::new(&limit.to_string()));
    let keys: Vec<Key<'_>> = (0..50_u32).map(|number| Key::of([number.to_be_bytes()])).collect();
    let requests: Vec<LeaseRequest<'_>> = keys
        .iter()
        .flat_map(|key| rules.iter().zip(&limits).map(move |(rule, limit)| (key, rule, limit)))
        .map(|(key, rule, limit)| LeaseRequest { rule, key, limit, renewal: wanting(10) })
        .collect();
    let grants = server::runtime().block_on(store.lease(&requests)).unwrap();
    assert_eq!(grants.len(), requests.len());
    for (request, grant) in requests.iter().zip(&grants) {
        let tokens =
            if matches!(request.limit.to_string().split(' ').next(), Some("log" | "concurrent")) { 0 } else { 10 };
        assert_eq!((grant.tokens, grant.decision.remaining), (tokens, 100 - tokens), "{}", request.limit);
    }
    // The same key several times, each renewal after the previous one.
    let twice = [requests[0], requests[0], requests[0]];
    let grants = server::runtime().block_on(store.lease(&twice)).unwrap();
    assert_eq!(grants.iter().map(|grant| grant.outstanding).collect::<Vec<_>>(), [20, 30, 40]);
    assert!(server::runtime().block_on(store.lease(&[])).unwrap().is_empty());
}
