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

#[test]
fn a_peek_spends_nothing_and_says_what_is_left() {
    let (limiter, _) =
        limiter("rules:\n- { id: api, key: user, limit: 2/h }\n- { id: dark, limit: 1/h, mode: shadow }");
    let request = Request::new("GET", "/").user("alice");
    for left in [2, 1, 0] {
        let peeked = at_once(limiter.peek(&request));
        assert_eq!(peeked.ruled.iter().map(|ruled| ruled.mode).collect::<Vec<_>>(), [Mode::Enforce, Mode::Shadow]);
        assert_eq!((peeked.ruled[0].decision.remaining, peeked.is_allowed()), (left, left > 0));
        assert_eq!(limiter.check_now(&request).is_allowed(), left > 0);
    }
}

#[test]
fn a_key_is_looked_at_and_forgotten_by_its_rule_and_its_parts() {
    let (limiter, _) = limiter(
        "rules:\n- { id: api, key: [api_key, address], limits: [2/h, 3/day], tiers: { paid: 100/h } }\n- { id: other, key: user, limit: 5/h }",
    );
    let request = Request::new("GET", "/").api_key("k").address("2001:db8::7".parse().unwrap());
    assert!(limiter.check_now(&request).is_allowed());
    let key = ["k", "2001:db8::1"];
    let remaining = |tier| {
        let peeked = at_once(limiter.peek_key("api", &key, tier)).unwrap();
        peeked.ruled.iter().map(|ruled| ruled.decision.remaining).collect::<Vec<_>>()
    };
    assert_eq!(remaining(None), [1, 2]);
    assert_eq!(at_once(limiter.reset_key("api", &key)), Ok(2));
    assert_eq!(remaining(None), [2, 3]);
    assert_eq!(at_once(limiter.reset_key("api", &key)), Ok(0));

    assert!(limiter.check_now(&request).is_allowed());
    assert_eq!(at_once(limiter.reset(&request)), Ok(3));
    assert_eq!(remaining(None), [2, 3]);

    let wrong = |rule, parts: &[&str]| at_once(limiter.peek_key(rule, parts, None)).unwrap_err().to_string();
    assert_eq!(wrong("apj", &key), "there is no rule `apj`: did you mean `api`?");
    assert_eq!(wrong("api", &["k"]), "the key of `api` has 2 parts (api_key, address), and 1 are given");
    assert!(wrong("api", &["k", "here"]).starts_with("`here` is no address"));
}

#[test]
fn what_is_reserved_is_settled_under_any_rule() {
    let (limiter, _) = limiter("rules:\n- { id: tokens, key: user, limit: 100/h, cost: hits }");
    let request = Request::new("POST", "/").user("alice").hits(40);
    let ruling = at_once(limiter.reserve(&request, Micros::from_secs(60)));
    assert_eq!(ruling.ruled[0].decision.remaining, 60);
    let settled = at_once(limiter.settle(&ruling.receipts[0], &[25])).unwrap();
    assert_eq!(settled, Settlement::Settled { given_back: 15, charged: 0 });
    assert_eq!(at_once(limiter.peek(&request)).ruled[0].decision.remaining, 75);
}

fn at_once<T>(answer: impl Future<Output = T>) -> T {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("a store in memory never makes anyone wait"),
    }
}
