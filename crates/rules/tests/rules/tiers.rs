//! Tiers and overrides: who is allowed what.

use tidegate_rules::KeyFault;

use crate::support::{charges, compare, doubts, get, governs, mistakes, rules};

const BY_TIER: &str = "
tiers:
  from: header:X-Tier
  api_keys: { k_paid: paid, k_free: free, 123: paid }
  default: free
rules:
  - id: r
    limit: 5/s
    tiers: { free: 10/s, paid: [100/s, { name: daily, limit: fixed 9/day }], enterprise: unlimited }
";

#[test]
fn each_tier_has_its_own_limits() {
    let rules = rules(BY_TIER);
    assert_eq!(charges(&rules, &get("/").tier("free")), ["r: 1 of 10/s"]);
    assert_eq!(charges(&rules, &get("/").tier("paid")), ["r: 1 of 100/s", "r/daily: 1 of fixed 9/day"]);
    assert_eq!(charges(&rules, &get("/").tier("enterprise")), [""; 0]);
    assert!(governs(&rules, &get("/").tier("enterprise")));
    assert_eq!(charges(&rules, &get("/").tier("other")), ["r: 1 of 5/s"]);
}

#[test]
fn a_tier_is_verified_then_looked_up_then_said_then_the_default() {
    let rules = rules(BY_TIER);
    let of = |request| charges(&rules, &request)[0].clone();
    assert_eq!(of(get("/")), "r: 1 of 10/s");
    assert_eq!(of(get("/").header("X-Tier", "paid")), "r: 1 of 100/s");
    assert_eq!(of(get("/").api_key("k_paid")), "r: 1 of 100/s");
    assert_eq!(of(get("/").api_key("123")), "r: 1 of 100/s");
    assert_eq!(of(get("/").api_key("unknown")), "r: 1 of 10/s");
    assert_eq!(of(get("/").api_key("k_free").header("X-Tier", "paid")), "r: 1 of 10/s");
    assert_eq!(of(get("/").tier("free").api_key("k_paid")), "r: 1 of 10/s");
}

#[test]
fn a_tier_that_is_made_up_is_none() {
    let text =
        "{ tiers: { from: 'header:X-Tier', default: free }, rules: [{ id: r, tiers: { free: 10/s, paid: 100/s } }] }";
    let rules = rules(text);
    assert_eq!(charges(&rules, &get("/").header("X-Tier", "made up")), ["r: 1 of 10/s"]);
    assert_eq!(charges(&rules, &get("/").header("X-Tier", "paid")), ["r: 1 of 100/s"]);
}

#[test]
fn a_tier_that_is_told_more_than_once_is_none_to_go_by() {
    let limited = rules(BY_TIER);
    let fault = |request| limited.matching(&request).refused.map(|refused| refused.fault);
    let twice = get("/").header("X-Tier", "free").header("X-Tier", "paid");
    assert_eq!(fault(twice.clone()), Some(KeyFault::Repeated));
    assert_eq!(fault(get("/").header("X-Tier", "made up").header("X-Tier", "paid")), Some(KeyFault::Repeated));
    // What was verified comes first, and then nothing else is asked.
    assert_eq!(fault(twice.clone().tier("free")), None);
    let conditions = |wanted: &str| {
        rules(&format!(
            "{{ tiers: {{ from: 'header:X-Tier' }}, rules: [{{ id: r, match: {{ tier: {wanted} }}, limit: 1/s }}] }}"
        ))
    };
    for wanted in ["free", "paid", "{ not: free }"] {
        assert!(governs(&conditions(wanted), &twice), "{wanted}");
    }
    assert!(!governs(&conditions("gold"), &twice));
}

#[test]
fn a_tier_that_a_condition_speaks_of_is_known() {
    for condition in ["gold", "[silver, gold]", "'g*'", "{ regex: 'g...' }"] {
        let rules = rules(&format!(
            "{{ tiers: {{ from: 'header:X-Tier' }}, rules: [{{ id: r, match: {{ tier: {condition} }}, limit: 1/s }}] }}"
        ));
        assert!(governs(&rules, &get("/").header("X-Tier", "gold")), "{condition}");
        assert!(!governs(&rules, &get("/").header("X-Tier", "lead")), "{condition}");
    }
}

#[test]
fn those_of_no_tier_are_not_forgotten() {
    let expected = |at: &str| {
        format!(
            "warning: {at} [i] the rule `r` does not limit those who are of none of its tiers; add `limit`, or name one of its tiers as the `default` of the file's `tiers`"
        )
    };
    assert_eq!(doubts("rules:\n- id: r\n  tiers: { free: 1/s }"), [expected("2:3")]);
    for fine in [
        "rules: [{ id: r, limit: 1/s, tiers: { free: 1/s } }]",
        "{ tiers: { default: free }, rules: [{ id: r, tiers: { free: 1/s } }] }",
        "rules: [{ id: r, match: { tier: free }, tiers: { free: 1/s } }]",
    ] {
        assert_eq!(doubts(fine), [""; 0], "{fine}");
    }
}

#[test]
fn single_keys_have_overrides() {
    let rules = rules(
        "rules: [{ id: r, key: user, limit: 5/s, tiers: { paid: 9/s }, overrides: { alice: 50/s, bob: unlimited } }]",
    );
    assert_eq!(charges(&rules, &get("/").user("alice")), ["r: 1 of 50/s"]);
    assert_eq!(charges(&rules, &get("/").user("alice").tier("paid")), ["r: 1 of 50/s"]);
    assert_eq!(charges(&rules, &get("/").user("bob")), [""; 0]);
    assert_eq!(charges(&rules, &get("/").user("carol").tier("paid")), ["r: 1 of 9/s"]);
    assert_eq!(charges(&rules, &get("/").user("carol")), ["r: 1 of 5/s"]);
    assert_eq!(charges(&rules, &get("/")), ["r: 1 of 5/s"]);
}

#[test]
fn an_override_of_a_key_of_several_parts_names_each() {
    let rules = rules("rules: [{ id: r, key: ['header:X', user], limit: 5/s, overrides: { 'acme, alice': 50/s } }]");
    let of = |header: &str, user: &str| charges(&rules, &get("/").header("X", header).user(user))[0].clone();
    assert_eq!(of("acme", "alice"), "r: 1 of 50/s");
    assert_eq!(of("acme", "bob"), "r: 1 of 5/s");
    assert_eq!(of("acme, alice", ""), "r: 1 of 5/s", "one value must not pass for two");
    assert_eq!(of("", "acme, alice"), "r: 1 of 5/s");
}

#[test]
fn an_override_finds_its_key_however_it_is_spelled() {
    for (key, name, request) in [
        ("address", "203.0.113.7", get("/").address("203.0.113.7".parse().unwrap())),
        ("address", "203.0.113.7", get("/").address("::ffff:203.0.113.7".parse().unwrap())),
        ("address", "::ffff:203.0.113.7", get("/").address("203.0.113.7".parse().unwrap())),
        ("address", "2001:db8::5", get("/").address("2001:db8::1".parse().unwrap())),
        ("address", "2001:db8::/64", get("/").address("2001:db8::1".parse().unwrap())),
        ("{ address: { ipv4: 24 } }", "203.0.113.0/24", get("/").address("203.0.113.9".parse().unwrap())),
        ("method", "get", get("/")),
        ("host", "A.example.com", get("/").host("a.Example.com")),
        ("api_key", "k1", get("/").api_key("k1")),
    ] {
        let rules = rules(&format!("rules: [{{ id: r, key: {key}, limit: 5/s, overrides: {{ '{name}': 50/s }} }}]"));
        assert_eq!(charges(&rules, &request), ["r: 1 of 50/s"], "{key} {name}");
    }
}

#[test]
fn overrides_that_no_key_can_have_are_mistakes() {
    let cases = [
        (
            "limit: 1/s, overrides: { a: 2/s }",
            "1:41 [{] all requests share one key here, so none can be singled out; give the rule a `key`, or remove `overrides`",
        ),
        (
            "key: [user, method], limit: 1/s, overrides: { a: 2/s }",
            "1:64 [a] `a` is not a key of 2 parts; write a value for each, with commas between: `user, method`",
        ),
        (
            "key: address, limit: 1/s, overrides: { a: 2/s }",
            "1:57 [a] `a` is not an address; write one such as `203.0.113.7`",
        ),
        (
            "key: address, limit: 1/s, overrides: { 10.0.0.0/8: 2/s }",
            "1:57 [10.0.0.0/8] `10.0.0.0/8` is no key of this rule; the rule counts by `10.0.0.0`: write that",
        ),
        (
            "key: method, limit: 1/s, overrides: { get: 2/s, GET: 3/s }",
            "1:66 [GET] `GET` is a key that stands here already; keep one of them",
        ),
    ];
    compare(cases.map(|(rest, expected)| {
        let text = format!("rules: [{{ id: r, {rest} }}]");
        (text.clone(), mistakes(&text), vec![expected.to_owned()])
    }));
}
