//! `shed`: slots shared by priorities, each up to its part.

use tidegate_core::{ManualClock, MemoryStore, Settlement, Timestamp};
use tidegate_rules::{Limiter, Priority, Request};

use crate::rules::support::{charges, get, mistakes, rules};

const RULES: &str = "
rules:
  - { id: batch, match: { path: /batch }, limit: 1000000/s, priority: low }
  - { id: pay, match: { path: /pay }, limit: 1000000/s, priority: critical }
  - { id: fleet, shed: { slots: 10, ttl: 30s, high: 90%, normal: 80%, low: 50% } }
";

fn slots(request: &Request) -> String {
    charges(&rules(RULES), request).pop().unwrap()
}

#[test]
fn the_slots_depend_on_the_priority() {
    assert_eq!(slots(&get("/batch")), "fleet: 1 of concurrent 5 ttl 30s");
    assert_eq!(slots(&get("/")), "fleet: 1 of concurrent 8 ttl 30s");
    assert_eq!(slots(&Request::new("POST", "/")), "fleet: 1 of concurrent 9 ttl 30s");
    assert_eq!(slots(&get("/pay")), "fleet: 1 of concurrent 10 ttl 30s");
    let defaults = rules("rules: [{ id: fleet, shed: { slots: 1001 } }]");
    assert_eq!(charges(&defaults, &get("/")), ["fleet: 1 of concurrent 801 ttl 1min"], "rounded up");
}

#[test]
fn a_rule_that_sheds_may_stand_before_the_one_that_sets_the_priority() {
    let rules = rules(
        "rules: [{ id: fleet, shed: { slots: 10 } }, { id: batch, match: { path: /batch }, limit: 5/s, priority: low }]",
    );
    assert_eq!(charges(&rules, &get("/batch"))[0], "fleet: 1 of concurrent 5 ttl 1min");
    let explained = rules.explain(&get("/batch"));
    let shown = serde_json::to_value(&explained.rules[0]).unwrap().to_string();
    assert!(shown.contains("concurrent 5 ttl 1min") && shown.contains("priority"), "{shown}");
}

#[test]
fn a_rule_may_make_writes_normal_and_the_first_that_sets_a_priority_decides() {
    let priority = |text: &str| rules(text).matching(&Request::new("POST", "/")).priority();
    assert_eq!(priority("rules: [{ id: all, limit: 1/s }]"), None);
    assert_eq!(priority("rules: [{ id: all, limit: 1/s, priority: normal }]"), Some(Priority::Normal));
    let both = "rules: [{ id: all, limit: 1/s, priority: normal }, { id: more, limit: 1/s, priority: low }]";
    assert_eq!(priority(both), Some(Priority::Normal));
}

/// Requests of a rule that sets no priority have the one of their method, so none is shown.
#[test]
fn only_a_priority_that_a_rule_sets_is_shown() {
    for (field, shown) in [("", None), (", priority: normal", Some("normal")), (", priority: low", Some("low"))] {
        let rules = rules(&format!("rules: [{{ id: all, limit: 1/s{field} }}]"));
        let explained = serde_json::to_value(&rules.explain(&Request::new("POST", "/")).rules[0]).unwrap();
        let summary = serde_json::to_value(rules.shown().next().unwrap()).unwrap();
        let expected = shown.map(|shown| format!("\"priority\":\"{shown}\""));
        for json in [explained.to_string(), summary.to_string()] {
            match &expected {
                Some(expected) => assert!(json.contains(expected), "{json}"),
                None => assert!(!json.contains("priority"), "{json}"),
            }
        }
    }
}

#[test]
fn all_priorities_count_the_same_slots_and_the_least_important_are_denied_first() {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let store = MemoryStore::with_clock(clock.clone());
    let limiter = Limiter::with_clock(rules(RULES), store, clock);
    let check = |path: &str| limiter.check(&get(path)).now().unwrap();
    let admitted = |path: &str| (0..20).map(|_| check(path)).take_while(tidegate_rules::Ruling::is_allowed).count();
    assert_eq!(admitted("/batch"), 5);
    assert_eq!(admitted("/"), 3);
    assert_eq!(admitted("/batch"), 0);
    let last = check("/pay");
    assert!(last.is_allowed());
    assert_eq!(admitted("/pay"), 1);
    assert_eq!(admitted("/pay"), 0);
    for receipt in &last.receipts {
        assert_ne!(limiter.store().settle(receipt, &[0]), Settlement::Gone);
    }
    assert_eq!(admitted("/"), 0, "nine are taken");
    assert_eq!(admitted("/pay"), 1);
}

#[test]
fn in_shadow_mode_nothing_is_denied_and_the_decision_is_told() {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let text = "rules: [{ id: fleet, mode: shadow, shed: { slots: 10, low: 50%, normal: 50% } }]";
    let limiter = Limiter::with_clock(rules(text), MemoryStore::with_clock(clock.clone()), clock);
    let rulings: Vec<_> = (0..7).map(|_| limiter.check(&get("/")).now().unwrap()).collect();
    assert!(rulings.iter().all(tidegate_rules::Ruling::is_allowed));
    let decided: Vec<bool> = rulings.iter().map(|ruling| ruling.ruled[0].decision.is_allowed()).collect();
    assert_eq!(decided, [true, true, true, true, true, false, false]);
    let rules = rules(text);
    let request = get("/");
    let matched = rules.matching(&request);
    let shed: Vec<_> = matched.shed_limits().map(|(limit, priority)| (limit.as_str(), priority)).collect();
    assert_eq!(shed, [("fleet", Priority::Normal)]);
}

#[test]
fn mistakes_are_told_with_what_to_write() {
    for (shed, told) in [
        ("{ low: 50% }", "`shed` without `slots`"),
        ("{ slots: 10, low: 50 }", "`low` cannot be `50`"),
        ("{ slots: 10, low: 120% }", "write a share from `0%` to `100%`"),
        ("{ slots: 10, low: 90%, normal: 80% }", "a priority has a larger share than a more important one"),
        ("{ slots: 10, urgent: 80% }", "urgent"),
        ("{ slots: 99999999999999 }", "slots"),
        ("{ slots: 10 }, limit: 5/s", "`shed` and `limit` in one rule"),
        ("{ slots: 10 }, cost: 5", "`shed` and `cost` in one rule"),
    ] {
        let said = mistakes(&format!("rules: [{{ id: r, shed: {shed} }}]"));
        assert!(format!("{said:?}").contains(told), "{shed}: {said:?}");
    }
}
