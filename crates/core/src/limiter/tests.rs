use super::*;
use crate::clock::ManualClock;
use crate::facts::Request;
use crate::time::{Micros, Timestamp};

fn rules(text: &str) -> RuleSet {
    RuleSet::parse("test", text).unwrap_or_else(|findings| panic!("{findings}")).rules
}

fn limiter(text: &str) -> (Limiter<MemoryStore<ManualClock>>, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    (Limiter::new(rules(text), MemoryStore::with_clock(clock.clone())), clock)
}

#[test]
fn all_rules_must_admit_and_a_denial_charges_none() {
    let (limiter, _) = limiter(
        "rules:\n- { id: each, key: user, limit: 5/h }\n- { id: all, limit: 7/h }\n- { id: posts, match: { method: POST }, key: user, limit: 1/h }",
    );
    let get = Request::new("GET", "/").user("alice");
    let post = Request::new("POST", "/").user("alice");
    assert!(limiter.check_now(&post).is_allowed());
    let denied = limiter.check_now(&post);
    assert_eq!(denied.deniers().map(|ruled| ruled.id.as_str()).collect::<Vec<_>>(), ["posts"]);
    for left in (0..4).rev() {
        assert_eq!(limiter.check_now(&get).ruled[0].decision.remaining, left);
    }
    assert!(!limiter.check_now(&get).is_allowed());
    assert!(limiter.check_now(&Request::new("GET", "/").user("bob")).is_allowed());
}

#[test]
fn a_shadow_counts_and_reports_and_never_denies() {
    let (limiter, _) = limiter("rules:\n- { id: real, limit: 3/h }\n- { id: dark, limit: 1/h, mode: shadow }");
    let request = Request::new("GET", "/");
    let says: Vec<_> = (0..4)
        .map(|_| {
            let ruling = limiter.check_now(&request);
            let dark = ruling.ruled.iter().find(|ruled| ruled.mode == Mode::Shadow).unwrap();
            (ruling.is_allowed(), dark.decision.is_allowed())
        })
        .collect();
    assert_eq!(says, [(true, true), (true, false), (true, false), (false, false)]);
}

#[test]
fn a_replaced_rule_keeps_what_was_spent() {
    let (limiter, clock) = limiter("rules:\n- { id: api, limit: 10/h }");
    let request = Request::new("GET", "/");
    for _ in 0..8 {
        assert!(limiter.check_now(&request).is_allowed());
    }
    assert_eq!(limiter.replace(rules("rules:\n- { id: api, limit: sliding 12/h }\n- { id: new, limit: 100/h }")), 2);
    let ruling = limiter.check_now(&request);
    assert_eq!((ruling.generation, ruling.ruled[0].decision.remaining), (2, 3));
    clock.advance(Micros::from_secs(10));
    assert_eq!(limiter.check_now(&request).ruled[0].decision.remaining, 2);
}

#[test]
fn a_rule_may_refuse_what_lacks_its_key() {
    let (limiter, _) = limiter("rules:\n- { id: keyed, key: api_key, limit: 10/h, on_missing_key: refuse }");
    let ruling = limiter.check_now(&Request::new("GET", "/"));
    assert_eq!((ruling.is_allowed(), ruling.refused.as_deref()), (false, Some("keyed")));
    assert!(limiter.check_now(&Request::new("GET", "/").api_key("k")).is_allowed());
}
