//! Several rules: order, `replaces`, `stop`, `mode`.

use crate::rules::support::{get, ids, rule, rules};

#[test]
fn a_request_meets_every_rule_that_matches_in_the_order_of_the_file() {
    let rules = rules(
        "rules:
  - { id: z, limit: 1/s }
  - { id: path, match: { path: /a }, limit: 1/s }
  - { id: other, match: { path: /b }, limit: 1/s }
  - { id: method, match: { method: GET }, limit: 1/s }
  - { id: a, limit: 1/s }",
    );
    assert_eq!(ids(&rules.matching(&get("/a"))), ["z", "path", "method", "a"]);
}

#[test]
fn a_rule_that_stops_is_the_last() {
    let rules = rules(
        "rules:
  - { id: first, limit: 1/s }
  - { id: stop, match: { path: /a }, limit: 1/s, stop: true }
  - { id: last, limit: 1/s }",
    );
    assert_eq!(ids(&rules.matching(&get("/a"))), ["first", "stop"]);
    assert_eq!(ids(&rules.matching(&get("/b"))), ["first", "last"]);
}

#[test]
fn a_rule_replaces_others_wherever_they_stand() {
    let rules = rules(
        "rules:
  - { id: before, limit: 1/s }
  - { id: vip, match: { user: alice }, limit: 9/s, replaces: [before, after] }
  - { id: after, limit: 1/s }
  - { id: kept, limit: 1/s }",
    );
    assert_eq!(ids(&rules.matching(&get("/").user("alice"))), ["vip", "kept"]);
    assert_eq!(ids(&rules.matching(&get("/").user("bob"))), ["before", "after", "kept"]);
}

#[test]
fn a_replaced_rule_still_replaces() {
    let rules = rules(
        "rules:
  - { id: a, limit: 1/s }
  - { id: b, limit: 1/s, replaces: a }
  - { id: c, limit: 1/s, replaces: b }",
    );
    assert_eq!(ids(&rules.matching(&get("/"))), ["c"]);
}

#[test]
fn a_rule_that_is_off_does_nothing() {
    let rules = rules(
        "rules:
  - { id: off, limit: 1/s, mode: off, stop: true, replaces: on }
  - { id: on, limit: 1/s }",
    );
    assert_eq!(ids(&rules.matching(&get("/"))), ["on"]);
}

#[test]
fn a_rule_in_shadow_changes_nothing_that_is_enforced() {
    let rules = rules(
        "rules:
  - { id: shadow, limit: 1/s, mode: shadow, stop: true, replaces: enforced }
  - { id: enforced, limit: 1/s }",
    );
    let request = get("/");
    let matched = rules.matching(&request);
    assert_eq!(ids(&matched), ["shadow", "enforced"]);
    assert_eq!(matched.charges().map(|charge| charge.rule.to_string()).collect::<Vec<_>>(), ["enforced"]);
}

#[test]
fn a_rule_that_is_skipped_keeps_no_other_from_limiting() {
    let rules = rules(
        "rules:
  - { id: vip, key: user, on_missing_key: skip, limit: 9/s, stop: true, replaces: basic }
  - { id: basic, limit: 1/s }",
    );
    assert_eq!(ids(&rules.matching(&get("/"))), ["basic"]);
    assert_eq!(ids(&rules.matching(&get("/").user("alice"))), ["vip"]);
}

#[test]
fn a_rule_for_other_tiers_keeps_no_other_from_limiting() {
    let rules = rules(
        "rules:
  - { id: paid, tiers: { paid: 9/s, gold: unlimited }, stop: true, replaces: basic }
  - { id: basic, limit: 1/s }",
    );
    assert_eq!(ids(&rules.matching(&get("/"))), ["basic"]);
    assert_eq!(ids(&rules.matching(&get("/").tier("paid"))), ["paid"]);
    assert_eq!(ids(&rules.matching(&get("/").tier("gold"))), ["paid"], "unlimited is a limit");
}

#[test]
fn a_rule_that_refuses_can_be_replaced() {
    let rules = rules(
        "rules:
  - { id: strict, key: user, on_missing_key: refuse, limit: 1/s }
  - { id: health, match: { path: /health }, limit: unlimited, replaces: strict }",
    );
    assert!(rules.matching(&get("/")).refused.is_some());
    assert!(rules.matching(&get("/health")).refused.is_none());
}

#[test]
fn a_rule_of_three_lines_works() {
    let rules = rules("rules:\n  - id: everything\n    limit: 100/s\n");
    assert_eq!(ids(&rules.matching(&get("/any"))), ["everything"]);
    assert_eq!(rules.rules()[0].priority(), None);
    assert_eq!(rules.rules()[0].place().to_string(), "rules.yaml:2:5");
}

#[test]
fn priorities_have_an_order() {
    let priority = |word: &str| rule(&format!("limit: 1/s, priority: {word}")).rules()[0].priority();
    assert!(priority("critical") > priority("high"));
    assert!(priority("high") > priority("normal"));
    assert!(priority("normal") > priority("low"));
}
