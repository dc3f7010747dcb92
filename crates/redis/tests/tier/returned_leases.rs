//! Tokens that a node returns, and the count of those that it does not.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::contract::faulty::Fault;
use tidegate_core::lease::Leasing;
use tidegate_core::{Charge, Key, MemoryStore, Micros, Store};
use tidegate_redis::tier::{LeaseSettings, Settings, Tier};

use crate::tier::leases::Named;
use crate::tier::nodes::{Common, Fleet, Network};
use crate::tier::support::{finish, start};

#[test]
fn idle_tokens_are_returned() {
    let (fleet, api) = (Fleet::new(2), Named::new("api", "1/h burst 2000"));
    let admitted = fleet.load(0, api.charge(), 1, 400);
    assert!(fleet.leases(0).outstanding > 0);
    fleet.wait(300);
    let leases = fleet.leases(0);
    assert_eq!(leases.outstanding, 0, "{leases:?}");
    assert!(leases.returned > 0);
    // Nothing was lost: another node can spend the whole rest.
    assert!(fleet.is_allowed(1, api.charge().cost(2_000 - admitted)));
    assert!(!fleet.is_allowed(1, api.charge()));
}

#[test]
fn tokens_that_will_not_be_used_are_returned_before_they_end() {
    let (fleet, api) = (Fleet::new(1), Named::new("api", "1/h burst 10000"));
    fleet.load(0, api.charge(), 5, 400);
    // The demand falls, but the key is not idle.
    let mut admitted = 0;
    for _ in 0..60 {
        admitted += u64::from(fleet.is_allowed(0, api.charge()));
        fleet.wait(100);
    }
    let leases = fleet.leases(0);
    assert_eq!((admitted, leases.ended, leases.outstanding), (60, 0, 0), "{leases:?}");
}

#[test]
fn a_node_that_shuts_down_returns_all_and_takes_no_more() {
    let (fleet, api) = (Fleet::new(1), Named::new("api", "1/h burst 10000"));
    let admitted = fleet.load(0, api.charge(), 2, 500);
    assert!(fleet.leases(0).outstanding > 0);
    finish(fleet.nodes[0].return_leases());
    assert_eq!(fleet.leases(0).outstanding, 0);
    let charge = api.charge().cost(0);
    assert_eq!(finish(fleet.store.peek(&[charge])).unwrap()[0].remaining, 10_000 - admitted);
    let renewals = fleet.leases(0).renewals;
    assert_eq!(fleet.load(0, api.charge(), 2, 500), 1_000);
    assert_eq!(fleet.leases(0).renewals, renewals);
}

#[test]
fn a_changed_limit_returns_what_was_leased_under_the_old_one() {
    let (fleet, old) = (Fleet::new(1), Named::new("api", "1/h burst 10000"));
    let new = Named::new("api", "1/h burst 20000");
    let mut admitted = fleet.load(0, old.charge(), 2, 500);
    assert!(fleet.leases(0).outstanding > 100);
    admitted += fleet.load(0, new.charge(), 2, 30);
    let leases = fleet.leases(0);
    assert!(leases.returned > 100 && leases.keys == 1, "{leases:?}");
    let left = finish(fleet.store.peek(&[new.charge().cost(0)])).unwrap()[0].remaining;
    assert_eq!(left + leases.outstanding, 20_000 - admitted);
}

#[test]
fn a_quiet_key_is_returned_without_harm_to_a_limit_that_was_raised() {
    let old = Named::new("api", "1/h burst 2000");
    for text in ["1/h burst 20000", "gcra 1/h burst 20000", "1/day burst 20000", "fixed 20000/day", "sliding 20000/day"]
    {
        let (fleet, new) = (Fleet::new(2), Named::new("api", text));
        let admitted = fleet.load(0, old.charge(), 1, 400);
        assert!(fleet.leases(0).outstanding > 0);
        // The rule's limit has changed, but this node has not had a request for the key since.
        assert!(fleet.is_allowed(1, new.charge().cost(10_000)), "{text}");
        fleet.wait(300);
        let leases = fleet.leases(0);
        assert!(leases.outstanding == 0 && leases.returned > 0, "{text}: {leases:?}");
        let left = finish(fleet.store.peek(&[new.charge().cost(0)])).unwrap()[0].remaining;
        assert_eq!(left, 20_000 - 10_000 - admitted, "{text}");
    }
}

#[test]
fn returns_that_fail_again_and_again_do_not_lengthen_the_pause() {
    let (fleet, api) = (Fleet::new(1), Named::new("api", "10000/s burst 10000"));
    fleet.load(0, api.charge(), 2, 500);
    assert!(fleet.leases(0).outstanding > 0);
    fleet.nodes[0].behind().fail(Fault::Failed);
    let failed = fleet.leases(0).failed;
    fleet.wait(400);
    assert!(fleet.leases(0).failed > failed + 10, "{:?}", fleet.leases(0));
    fleet.nodes[0].behind().fail(None);
    let granted = fleet.leases(0).granted;
    // The first pause is a second.
    fleet.load(0, api.charge(), 2, 1_500);
    assert!(fleet.leases(0).granted > granted, "{:?}", fleet.leases(0));
}

#[test]
fn a_limit_that_is_not_leased_any_more_returns_what_was_leased_under_the_old_one() {
    let old = Named::new("api", "1/h burst 2000");
    let (raised, window) = (Named::new("api", "1/h burst 20000"), Named::new("api", "log 20000/h"));
    let off = Charge { leasing: Leasing::OFF, ..raised.charge() };
    for new in [off, window.charge()] {
        let fleet = Fleet::new(1);
        let mut admitted = fleet.load(0, old.charge(), 1, 400);
        assert!(fleet.leases(0).outstanding > 0);
        admitted += fleet.load(0, new, 1, 3);
        let leases = fleet.leases(0);
        assert!(leases.outstanding == 0 && leases.keys == 0, "{leases:?}");
        let left = finish(fleet.store.peek(&[new.cost(0)])).unwrap()[0].remaining;
        assert_eq!(left, 20_000 - admitted - leases.ended, "{}", new.limit);
        // A limit that cannot be leased accepts no returned tokens.
        assert_eq!(
            (leases.returned > 0, leases.ended > 0),
            (new.leasing.is_off(), !new.leasing.is_off()),
            "{leases:?}"
        );
    }
}

#[test]
fn every_token_is_spent_returned_held_or_ended() {
    for fault in [Fault::Unreachable, Fault::Failed, Fault::QuestionLost, Fault::AnswerLost] {
        let (fleet, api) = (Fleet::new(1), Named::new("api", "10000/s burst 10000"));
        let check = |when: &str| {
            let leases = fleet.leases(0);
            let sum = leases.admitted + leases.returned + leases.outstanding + leases.ended;
            assert_eq!(leases.granted, sum, "{fault:?}, {when}: {leases:?}");
        };
        let load = |a_milli: u64, millis: u64| {
            for _ in 0..millis {
                fleet.wait(1);
                (0..a_milli).for_each(|_| drop(fleet.decide(0, &[api.charge()])));
            }
        };
        load(2, 500);
        check("before the fault");
        // Returns fail.
        fleet.nodes[0].behind().fail(fault.clone());
        let returned = fleet.leases(0).returned;
        fleet.wait(400);
        assert_eq!(fleet.leases(0).returned, returned, "{fault:?}");
        check("a return that failed");
        fleet.nodes[0].behind().fail(None);
        load(2, 3_000);
        check("after the fault");
        // Renewals fail.
        fleet.nodes[0].behind().fail(fault.clone());
        load(2, 1_000);
        fleet.nodes[0].behind().fail(None);
        load(2, 3_000);
        check("renewals that failed");
        if fault == Fault::Failed {
            // The store decides the requests of the key for some time.
            continue;
        }
        assert!(fleet.leases(0).outstanding > 0, "{fault:?}");
        // The node is suspended, and its lease ends. Then the key is not used any longer, and is removed from the table.
        fleet.wait(1);
        let ended = fleet.leases(0).ended;
        fleet.clock.advance(Micros::from_secs(15));
        fleet.wait(1);
        assert!(fleet.leases(0).keys == 0 && fleet.leases(0).ended > ended, "{fault:?}: {:?}", fleet.leases(0));
        check("the end of a lease");
    }
}

#[tokio::test]
async fn renewals_without_an_answer_do_not_keep_a_node_from_returning_others() {
    let clock = start();
    let (hung, api) = (Named::new("hung", "1/h burst 10000"), Named::new("api", "1/h burst 10000"));
    let store = Common(Arc::new(MemoryStore::with_clock(clock.clone())));
    let hung_keys = [Key::of(["bob"]), Key::of(["carol"]), Key::of(["dave"])];
    let network = Network::new(&store, &clock).hung(&hung.rule);
    let tier = Tier::with_clock(network, Settings::default(), clock.clone()).with_leases(LeaseSettings::default());
    let mut admitted = 0;
    for _ in 0..500 {
        clock.advance(Micros::from_millis(1));
        for key in &hung_keys {
            // Without a deadline, it would wait for the renewal that is never answered.
            let charge = Charge::new(&hung.rule, key, &hung.limit).deadline(Micros::new(1));
            drop(tier.decide(&[charge]).await);
        }
        admitted += u64::from(tier.decide(&[api.charge()]).await.unwrap().is_allowed());
        tokio::task::yield_now().await;
    }
    let leases = tier.stats().leases.unwrap();
    assert!(leases.leased == 1 && leases.keys == 4, "{leases:?}");
    // As long as a server waits during shutdown.
    let returned = tokio::time::timeout(Duration::from_secs(1), tier.return_leases()).await;
    assert!(returned.is_ok(), "it takes longer than a server waits");
    assert_eq!(tier.stats().leases.unwrap().outstanding, 0);
    let left = finish(store.peek(&[api.charge().cost(0)])).unwrap()[0].remaining;
    assert_eq!(left, 10_000 - admitted);
}
