//! Charges of requests.

use tidegate_core::limit::FixedWindow;
use tidegate_core::{Charge, Key, Limit, ManualClock, MemoryStore, Micros, Timestamp};
use tidegate_rules::envoy::{Allowance, PerUnit, RateUnit, mark_replaced};

use super::{entries, found, rules};

/// Whether two requests are charged to the same bucket.
fn share(text: &str, one: &str, other: &str) -> bool {
    let rules = rules(text);
    let domain = rules.domain("d").unwrap();
    found(domain, one, |one| {
        found(domain, other, |other| {
            let (one, other) = (one.unwrap(), other.unwrap());
            one.rule == other.rule && one.key == other.key
        })
    })
}

#[test]
fn every_value_that_the_file_leaves_open_has_its_own_bucket() {
    let text = "
domain: d
descriptors:
  - { key: a, rate_limit: { unit: second, requests_per_unit: 1 } }
  - { key: a, value: x, rate_limit: { unit: second, requests_per_unit: 1 } }
  - { key: p, value: x*, rate_limit: { unit: second, requests_per_unit: 1 } }
  - { key: user, value: '*', rate_limit: { unit: second, requests_per_unit: 1 } }
  - { key: t, descriptors: [{ key: u, rate_limit: { unit: second, requests_per_unit: 1 } }] }
";
    for (one, other, shared) in [
        ("a=1", "a=1", true),
        ("a=1", "a=2", false),
        ("a=1", "a=x", false),
        ("a=x", "a=x", true),
        ("p=x1", "p=x2", false),
        ("user=1", "user_id=1", false),
        ("t=1 u=2", "t=2 u=2", false),
        ("t=1 u=2", "t=1 u=2", true),
    ] {
        assert_eq!(share(text, one, other), shared, "{one} and {other}");
    }
}

#[test]
fn a_shared_threshold_is_one_bucket_for_all_that_match_the_pattern() {
    let text = "
domain: d
descriptors:
  - { key: f, value: top/*, share_threshold: true, rate_limit: { unit: hour, requests_per_unit: 10 } }
  - { key: f, value: top/x, rate_limit: { unit: hour, requests_per_unit: 10 } }
  - key: g
    value: '*.pdf'
    share_threshold: true
    descriptors: [{ key: who, rate_limit: { unit: hour, requests_per_unit: 10 } }]
";
    for (one, other, shared) in [
        ("f=top/1", "f=top/2", true),
        ("f=top/1", "f=top/x", false),
        ("g=1.pdf who=me", "g=2.pdf who=me", true),
        ("g=1.pdf who=me", "g=1.pdf who=you", false),
    ] {
        assert_eq!(share(text, one, other), shared, "{one} and {other}");
    }
}

#[test]
fn rules_are_told_apart_by_their_path_as_written() {
    let text = "
domain: a|b
descriptors:
  - { key: c, descriptors: [{ key: d, value: '1', rate_limit: { unit: hour, requests_per_unit: 10 } }] }
";
    let rules = rules(text);
    let domain = rules.domain("a|b").unwrap();
    found(domain, "c=x d=1", |found| {
        let found = found.unwrap();
        assert_eq!(found.rule.as_str(), "@a\\|b|c|d_1");
        assert_eq!(found.key, Key::from("x"));
    });
}

#[test]
fn windows_are_counted_from_the_epoch() {
    for (unit, seconds) in [
        (RateUnit::Second, 1),
        (RateUnit::Minute, 60),
        (RateUnit::Hour, 3_600),
        (RateUnit::Day, 86_400),
        (RateUnit::Week, 7 * 86_400),
        (RateUnit::Month, 30 * 86_400),
        (RateUnit::Year, 365 * 86_400),
    ] {
        let name = unit.name();
        let text =
            format!("domain: d\ndescriptors: [{{ key: a, rate_limit: {{ unit: {name}, requests_per_unit: 3 }} }}]");
        let rules = rules(&text);
        let expected = Limit::from(FixedWindow::new(3, Micros::from_secs(seconds)).unwrap());
        found(rules.domain("d").unwrap(), "a=x", |found| {
            assert_eq!(found.unwrap().allowance, Allowance::Limited(expected), "{name}");
        });
    }
}

#[test]
fn our_fields_choose_another_algorithm_and_window() {
    for (fields, notation) in [
        ("", "fixed 20/min"),
        ("unit_multiplier: 5", "fixed 20/5min"),
        ("algorithm: fixed", "fixed 20/min"),
        ("algorithm: sliding", "sliding 20/min"),
        ("algorithm: log", "log 20/min"),
        ("algorithm: token-bucket", "20/min"),
        ("algorithm: token-bucket, burst: 50", "20/min burst 50"),
        ("algorithm: gcra, burst: 5, unit_multiplier: 2", "gcra 20/2min burst 5"),
        ("algorithm: meter", "meter 20/min"),
    ] {
        let limit = format!("{{ unit: minute, requests_per_unit: 20, {fields} }}");
        let rules = rules(&format!("domain: d\ndescriptors: [{{ key: a, rate_limit: {limit} }}]"));
        let expected: Limit = notation.parse().unwrap();
        found(rules.domain("d").unwrap(), "a=x", |found| {
            let found = found.unwrap();
            assert_eq!(found.allowance, Allowance::Limited(expected), "{fields}");
            assert_eq!(found.per_unit, Some(PerUnit { requests: 20, unit: RateUnit::Minute }));
        });
    }
}

#[test]
fn no_requests_per_unit_are_none_at_all() {
    for algorithm in ["fixed", "sliding", "log", "token-bucket", "gcra", "meter"] {
        let limit = format!("{{ unit: minute, requests_per_unit: 0, algorithm: {algorithm} }}");
        let rules = rules(&format!("domain: d\ndescriptors: [{{ key: a, rate_limit: {limit} }}]"));
        let store = MemoryStore::new();
        found(rules.domain("d").unwrap(), "a=x", |found| {
            let found = found.unwrap();
            let charges = [found.charge(1).unwrap()];
            let answer = store.decide(&charges).unwrap();
            assert!(!answer.decisions[0].is_allowed(), "{algorithm}");
        });
    }
}

#[test]
fn a_window_ends_where_theirs_does() {
    let rules = rules("domain: d\ndescriptors: [{ key: a, rate_limit: { unit: minute, requests_per_unit: 2 } }]");
    let domain = rules.domain("d").unwrap();
    let store = MemoryStore::with_clock(ManualClock::at(Timestamp::from_secs(1_000 * 60 + 59)));
    let asked = entries("a=x");
    let found = domain.find(&asked).unwrap();
    let allowed = |charge: Charge<'_>| store.decide(&[charge]).unwrap().decisions[0].is_allowed();
    assert!(allowed(found.charge(2).unwrap()));
    assert!(!allowed(found.charge(1).unwrap()));
    store.clock().advance(Micros::from_secs(1));
    assert!(allowed(found.charge(2).unwrap()));
}

const REPLACING: &str = "
domain: d
descriptors:
  - { key: plain, rate_limit: { name: one, unit: second, requests_per_unit: 1 } }
  - { key: nameless, rate_limit: { unit: second, requests_per_unit: 1 } }
  - { key: better, rate_limit: { name: two, replaces: [{ name: one }], unit: second, requests_per_unit: 2 } }
  - { key: best, rate_limit: { replaces: [{ name: two }, { name: free }], unit: second, requests_per_unit: 3 } }
  - { key: free, rate_limit: { name: free, unlimited: true, replaces: [{ name: two }] } }
  - { key: listed }
";

#[test]
fn replaced_limits_are_marked_and_charge_nothing() {
    let rules = rules(REPLACING);
    let domain = rules.domain("d").unwrap();
    for (asked, replaced) in [
        ("plain=x", ""),
        ("plain=x nameless=x", ""),
        ("plain=x better=x", "plain"),
        ("better=x plain=x", "plain"),
        // A replaced limit still replaces others.
        ("plain=x better=x best=x", "plain better"),
        // An unlimited descriptor replaces others, but is not replaced.
        ("better=x free=x best=x", "better"),
        ("listed=x plain=x unknown=x", ""),
    ] {
        let asked = entries(asked);
        let found = domain.find_all(asked.chunks(1));
        assert_eq!(found.len(), asked.len());
        let marked: Vec<&str> = asked
            .iter()
            .zip(&found)
            .filter(|(_, found)| found.as_ref().is_some_and(|found| found.replaced))
            .map(|((key, _), _)| *key)
            .collect();
        assert_eq!(marked.join(" "), replaced, "{asked:?}");
        for found in found.iter().flatten() {
            let limited = matches!(found.allowance, Allowance::Limited(_));
            assert_eq!(found.charge(1).is_some(), limited && !found.replaced);
        }
    }
}

#[test]
fn a_limit_that_comes_with_a_request_has_a_bucket_of_its_own() {
    let rules = rules(REPLACING);
    let domain = rules.domain("d").unwrap();
    let asked = entries("plain=x");
    let other = entries("plain=y");
    let day = PerUnit { requests: 42, unit: RateUnit::Day };
    let hour = PerUnit { requests: 42, unit: RateUnit::Hour };
    let found = domain.overridden(&asked, day).unwrap();
    let again = domain.overridden(&asked, PerUnit { requests: 43, ..day }).unwrap();
    assert_eq!((found.rule, &found.key), (again.rule, &again.key));
    assert_ne!(found.key, domain.overridden(&other, day).unwrap().key);
    assert_ne!(found.rule, domain.overridden(&asked, hour).unwrap().rule);
    assert_ne!(found.rule, domain.find(&asked).unwrap().rule);
    assert_eq!(found.charge(1).unwrap().limit.to_string(), "fixed 42/day");
    assert_eq!(found.metric(), "d.plain_x");
    assert!(!found.shadow_mode() && !found.quota_mode() && found.metadata().is_none());

    let better = entries("better=x");
    let mut both = [Some(found), domain.find(&better)];
    mark_replaced(&mut both);
    assert!(both.iter().flatten().all(|found| !found.replaced));
}
