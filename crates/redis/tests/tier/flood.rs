//! Floods: from a blocked client, and with new keys.

use tidegate_core::contract::faulty::Fault;
use tidegate_core::store::Adjustment;
use tidegate_core::{Charge, Key, Limit, Micros, RuleId, Store};
use tidegate_redis::tier::Settings;

use crate::tier::support::{Tiered, finish};

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

#[test]
fn a_blocked_client_costs_the_store_a_question_a_second() {
    for text in
        ["10/min", "gcra 10/min", "meter 10/min", "shaper 10/min queue 10", "fixed 10/h", "sliding 10/h", "log 10/h"]
    {
        let tiered = Tiered::new();
        let (rule, key, limit) = (RuleId::new("r"), Key::from("mallory"), limit(text));
        let charge = Charge::new(&rule, &key, &limit);
        // Ten seconds at ten thousand requests per second.
        let admitted = (0..100_000)
            .filter(|_| {
                tiered.clock.advance(Micros::new(100));
                tiered.is_allowed(charge)
            })
            .count();
        // Ten admissions, one more after six seconds for limits that recover gradually, and the calls between them.
        let questions = tiered.tier.behind().questions();
        assert!((10..=11).contains(&admitted), "{text}: {admitted}");
        assert!(questions <= 30, "{text}: {questions}");
        assert_eq!(tiered.tier.stats().spared, 100_000 - questions, "{text}");
    }
}

#[test]
fn a_blocked_client_is_known_whatever_else_its_requests_are_charged_to() {
    let tiered = Tiered::new();
    let (by_address, by_key) = (RuleId::new("address"), RuleId::new("key"));
    let (strict, wide) = (limit("fixed 5/h"), limit("100/s"));
    let address = Key::from("203.0.113.7");
    // Credentials are tried once each, so every request has a new key.
    let admitted = (0..100_000)
        .filter(|number| {
            tiered.clock.advance(Micros::new(100));
            let tried = Key::of([format!("key {number}")]);
            let charges = [Charge::new(&by_key, &tried, &wide), Charge::new(&by_address, &address, &strict)];
            tiered.decide(&charges).is_allowed()
        })
        .count();
    assert_eq!(admitted, 5);
    assert!(tiered.tier.behind().questions() <= 16, "{}", tiered.tier.behind().questions());
}

#[test]
fn costs_that_a_client_chooses_do_not_get_through_either() {
    let tiered = Tiered::new();
    let (rule, key, limit) = (RuleId::new("r"), Key::from("mallory"), limit("7/min burst 1000"));
    let charge = Charge::new(&rule, &key, &limit);
    assert!(tiered.is_allowed(charge.cost(1_000)));
    for cost in 1..5_000 {
        assert!(!tiered.is_allowed(charge.cost(cost)), "{cost}");
    }
    assert_eq!(tiered.tier.behind().questions(), 2);
}

#[test]
fn a_larger_cost_under_a_window_or_a_log_asks_the_store() {
    for text in ["sliding 10/h", "log 10/h"] {
        let tiered = Tiered::new();
        let (rule, key, limit) = (RuleId::new("r"), Key::from("alice"), limit(text));
        let charge = Charge::new(&rule, &key, &limit);
        assert!(tiered.is_allowed(charge.cost(10)));
        assert!(!tiered.spares(&[charge.cost(2)]));
        assert!(tiered.spares(&[charge.cost(2)]));
        tiered.wait(1);
        assert!(!tiered.spares(&[charge.cost(3)]), "{text}");
        assert!(!tiered.spares(&[charge.cost(2)]), "{text}: a smaller one than the last");
        assert!(tiered.spares(&[charge.cost(11)]), "{text}: never, whatever was spent");
    }
}

#[test]
fn a_flood_of_denied_keys_stays_within_its_bound() {
    let tiered = Tiered::with(Settings { most_keys: 1_000, ..Settings::default() });
    let (rule, limit) = (RuleId::new("r"), limit("fixed 0/h"));
    for number in 0..50_000 {
        assert!(!tiered.is_allowed(Charge::new(&rule, &Key::of([format!("key {number}")]), &limit)));
    }
    let keys = tiered.tier.stats().keys;
    assert!((900..=1_000).contains(&keys), "{keys}");
}

#[test]
fn ended_denials_make_room() {
    let tiered = Tiered::with(Settings { most_keys: 8, ..Settings::default() });
    let (rule, limit) = (RuleId::new("r"), limit("fixed 0/h"));
    let denied = |name: &str| tiered.spares(&[Charge::new(&rule, &Key::from(name), &limit)]);
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        assert!(!denied(name));
    }
    tiered.wait(1_000);
    assert!(!denied("i"));
    assert_eq!(tiered.tier.stats().keys, 1);
}

#[test]
fn another_limit_is_another_question() {
    let tiered = Tiered::new();
    let (rule, key) = (RuleId::new("r"), Key::from("alice"));
    let (old, new) = (limit("5/h"), limit("6/h"));
    assert!(tiered.is_allowed(Charge::new(&rule, &key, &old).cost(5)));
    assert!(!tiered.is_allowed(Charge::new(&rule, &key, &old)));
    assert!(tiered.spares(&[Charge::new(&rule, &key, &old)]));
    assert!(!tiered.spares(&[Charge::new(&rule, &key, &new)]));
}

#[test]
fn a_store_that_fails_teaches_nothing_and_what_is_known_still_denies() {
    let tiered = Tiered::new();
    let (rule, key, limit) = (RuleId::new("r"), Key::from("alice"), limit("fixed 1/h"));
    let charge = Charge::new(&rule, &key, &limit);
    assert!(tiered.is_allowed(charge));
    assert!(!tiered.is_allowed(charge));
    tiered.tier.behind().fail(Fault::Unreachable);
    assert!(!tiered.is_allowed(charge));
    tiered.wait(1_000);
    assert!(finish(tiered.tier.decide(&[charge])).is_err());
}

#[test]
fn the_wait_of_a_key_in_debt_is_exact_after_a_request_that_costs_nothing() {
    let tiered = Tiered::new();
    // The waits of 3 and 4 tokens are not whole microseconds.
    let (rule, key, limit) = (RuleId::new("r"), Key::from("mallory"), limit("gcra 7/s burst 6"));
    let charge = Charge::new(&rule, &key, &limit);
    finish(tiered.tier.adjust(&charge.cost(9), Adjustment::Penalty)).unwrap();
    for cost in [0, 1, 1] {
        let real = finish(tiered.tier.behind().peek(&[charge.cost(cost)])).unwrap()[0];
        assert_eq!(tiered.decide(&[charge.cost(cost)]).decisions[0], real, "cost {cost}");
    }
}
