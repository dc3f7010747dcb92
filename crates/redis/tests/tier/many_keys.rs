//! Leases of many keys of one rule.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Charge, Key, MemoryStore, Micros, Store};
use tidegate_redis::tier::{LeaseSettings, Settings, Tier};
use tokio::time::sleep;

use crate::tier::leases::Named;
use crate::tier::nodes::{Common, Fleet, Network};
use crate::tier::support::{finish, start};

/// More than are swept in one go.
const MANY: usize = 600;
/// The milliseconds until all of them are leased, at the latest.
const LONGEST: u64 = 2_000;

fn names() -> Vec<Key<'static>> {
    (0..MANY).map(|number| Key::of([number.to_string()])).collect()
}

#[test]
fn a_costly_request_for_each_of_many_keys_takes_no_place_in_the_table() {
    let (fleet, api) = (Fleet::new(1), Named::new("api", "1000/s burst 1000"));
    for key in &names() {
        assert!(fleet.is_allowed(0, Charge::new(&api.rule, key, &api.limit).cost(100)));
    }
    assert_eq!(fleet.leases(0).keys, 0);
}

#[test]
fn a_changed_limit_returns_the_leases_of_all_keys_as_they_are_used() {
    let (fleet, keys) = (Fleet::new(1), names());
    let (old, new) = (Named::new("api", "1/h burst 2000"), Named::new("api", "1/h burst 4000"));
    let admitted = (1..LONGEST).find(|_| {
        fleet.wait(1);
        for key in &keys {
            assert!(fleet.is_allowed(0, Charge::new(&old.rule, key, &old.limit)));
        }
        fleet.leases(0).leased == MANY
    });
    let admitted = admitted.unwrap();
    // Requests of this long ago do not make a key busy under the new limit.
    fleet.wait(200);
    // In an order in which keys are removed from everywhere in the table.
    for number in 0..MANY {
        let key = &keys[number * 7 % MANY];
        assert!(fleet.is_allowed(0, Charge::new(&new.rule, key, &new.limit)));
        assert_eq!(fleet.leases(0).keys, MANY - 1 - number);
    }
    fleet.wait(1);
    let leases = fleet.leases(0);
    assert_eq!((leases.leased, leases.ended), (0, 0), "{leases:?}");
    for key in &keys {
        let left = finish(fleet.store.peek(&[Charge::new(&new.rule, key, &new.limit).cost(0)])).unwrap()[0].remaining;
        assert_eq!(left, 4_000 - admitted - 1);
    }
}

#[tokio::test(start_paused = true)]
async fn idle_tokens_of_many_keys_are_returned_in_the_time_of_one() {
    let (clock, keys, api) = (start(), names(), Named::new("api", "1/h burst 2000"));
    let store = Common(Arc::new(MemoryStore::with_clock(clock.clone())));
    let tier = Tier::with_clock(Network::new(&store, &clock), Settings::default(), clock.clone());
    let tier = tier.with_leases(LeaseSettings::default());
    let pass = async |millis: u64| {
        for _ in 0..millis {
            clock.advance(Micros::from_millis(1));
            sleep(Duration::from_millis(1)).await;
        }
    };
    let (leases, mut admitted) = (|| tier.stats().leases.unwrap(), 0);
    while leases().leased < MANY {
        pass(1).await;
        for key in &keys {
            assert!(tier.decide(&[Charge::new(&api.rule, key, &api.limit)]).await.unwrap().is_allowed());
        }
        admitted += 1;
        assert!(admitted < LONGEST, "{:?}", leases());
    }
    // A key is idle after 250 ms, and is swept every 50 ms.
    pass(310).await;
    assert_eq!((leases().leased, leases().ended), (0, 0), "{:?}", leases());
    let left = |key| finish(store.peek(&[Charge::new(&api.rule, key, &api.limit).cost(0)])).unwrap()[0].remaining;
    assert!(keys.iter().all(|key| left(key) == 2_000 - admitted));
    // Keys leave the table when nobody has used them for ten seconds.
    pass(10_000).await;
    assert_eq!(leases().keys, 0);
}
