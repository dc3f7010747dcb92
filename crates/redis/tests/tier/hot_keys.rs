//! Keys for which the store is called.

use tidegate_core::store::Adjustment;
use tidegate_core::{Charge, Key, Limit, RuleId, Store};

use crate::tier::nodes::Fleet;
use crate::tier::support::finish;

/// This many seconds with 500 requests per second for one key, and 20 for others.
fn load(fleet: &Fleet, charge: Charge<'_>, others: Charge<'_>, seconds: u64) {
    for milli in 0..seconds * 1_000 {
        fleet.wait(1);
        if milli % 2 == 0 {
            let _ = fleet.decide(0, &[charge]);
        }
        if milli % 50 == 0 {
            let key = Key::of([milli.to_string()]);
            let _ = fleet.decide(0, &[Charge { key: &key, ..others }]);
        }
    }
}

#[test]
fn a_key_is_hot_while_the_store_is_called_for_its_requests() {
    let (rule, others, key) = (RuleId::new("api"), RuleId::new("others"), Key::from("busy"));
    let small: Limit = "100/min".parse().unwrap();
    for (text, is_hot) in [
        // Limits that cannot be leased.
        ("shaper 10000/s queue 100000", true),
        ("log 100000/min", true),
        // Leased limits.
        ("10000/s burst 10000", false),
        // Denied; the denial is remembered.
        ("fixed 20/min", false),
    ] {
        let limit: Limit = text.parse().unwrap();
        let fleet = Fleet::new(1);
        load(&fleet, Charge::new(&rule, &key, &limit), Charge::new(&others, &key, &small), 12);
        let top = fleet.nodes[0].store_keys(1, 1_000);
        let busy = top.keys.iter().find(|found| found.key == key);
        assert_eq!(busy.is_some_and(|busy| busy.is_hot), is_hot, "{text}: {busy:?} of {}", top.calls);
        assert_eq!(top.keys.iter().filter(|key| key.is_hot).count(), usize::from(is_hot), "{text}");
        assert!(!is_hot || (5_900..=6_010).contains(&busy.map_or(0, |busy| busy.calls)), "{text}: {busy:?}");
        assert_eq!(fleet.nodes[0].leases_key(&rule, &key), text.starts_with("10000/s"), "{text}");
    }
}

#[test]
fn every_call_for_a_key_counts() {
    let (rule, key, limit) = (RuleId::new("api"), Key::from("busy"), "100/min".parse::<Limit>().unwrap());
    let (fleet, charge) = (Fleet::new(1), Charge::new(&rule, &key, &limit));
    let calls = || fleet.nodes[0].store_keys(1, 9).keys.first().map_or(0, |key| key.calls);
    assert!(fleet.is_allowed(0, charge));
    assert_eq!(calls(), 1);
    finish(fleet.nodes[0].peek(&[charge])).unwrap();
    assert_eq!(calls(), 2);
    finish(fleet.nodes[0].adjust(&charge, Adjustment::Penalty)).unwrap();
    assert_eq!(calls(), 3);
    finish(fleet.nodes[0].reset(&rule, &key)).unwrap();
    assert_eq!(calls(), 4);
}
