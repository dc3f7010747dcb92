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
fn a_kill_switch_lets_everything_pass_and_can_be_taken_back() {
    let (limiter, _) = limiter("rules:\n- { id: one, limit: 1/h }\n- { id: two, limit: 1/h }");
    let request = Request::new("GET", "/");
    assert!(limiter.check_now(&request).is_allowed());
    assert_eq!(limiter.switch(|switches| switches.switch_all(Some(Mode::Off))), 2);
    let ruling = limiter.check_now(&request);
    assert_eq!((ruling.is_allowed(), ruling.ruled.len(), ruling.generation), (true, 0, 2));
    limiter.switch(|switches| switches.switch_all(None));
    assert!(!limiter.check_now(&request).is_allowed());
}

#[test]
fn a_rule_switched_to_the_shadow_goes_on_counting() {
    let (limiter, _) = limiter("rules:\n- { id: one, limit: 2/h }");
    let request = Request::new("GET", "/");
    limiter.switch(|switches| switches.switch("one", Some(Mode::Shadow)));
    let says: Vec<_> = (0..3)
        .map(|_| {
            let ruling = limiter.check_now(&request);
            (ruling.is_allowed(), ruling.ruled[0].mode, ruling.ruled[0].decision.is_allowed())
        })
        .collect();
    let (dark, yes, no) = (Mode::Shadow, true, false);
    assert_eq!(says, [(yes, dark, yes), (yes, dark, yes), (yes, dark, no)]);
    limiter.switch(|switches| switches.switch("one", None));
    assert!(!limiter.check_now(&request).is_allowed());
}

#[test]
fn switches_outlive_the_rules() {
    let (limiter, _) = limiter("rules:\n- { id: old, limit: 1/h }");
    limiter.switch(|switches| switches.switch("new", Some(Mode::Off)));
    assert_eq!(limiter.rules().rules.unknown_switches(), ["new"]);
    limiter.replace(rules("rules:\n- { id: new, limit: 1/h }"));
    let present = limiter.rules();
    assert_eq!((present.rules.mode_of("new"), present.number), (Some(Mode::Off), 3));
    assert!(present.rules.unknown_switches().is_empty());
    limiter.replace_switched(rules("rules:\n- { id: new, limit: 1/h }"));
    assert_eq!(limiter.rules().rules.mode_of("new"), Some(Mode::Enforce));
}

/// Rules are replaced by one thread and switched by two others. Whatever the order, none undoes what another did, and
/// each request sees rules and modes that belong together.
#[test]
fn rules_and_modes_change_together_and_at_once() {
    const TURNS: u64 = 300;
    let (limiter, _) = limiter("rules:\n- { id: a, limit: 1/h, mode: off }\n- { id: b, limit: 1/h, mode: off }");
    let text = "rules:\n- { id: a, limit: 1/h, mode: shadow }\n- { id: b, limit: 1/h, mode: shadow }";
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..TURNS {
                limiter.replace(rules(text));
            }
        });
        for id in ["x", "y"] {
            let limiter = &limiter;
            scope.spawn(move || {
                for turn in 0..TURNS {
                    limiter.switch(|switches| switches.switch(&format!("{id}{turn}"), Some(Mode::Off)));
                }
            });
        }
        scope.spawn(|| {
            let request = Request::new("GET", "/");
            for _ in 0..TURNS {
                // Both are off, or both are in the shadow.
                assert!([0, 2].contains(&limiter.check_now(&request).ruled.len()));
            }
        });
    });
    let present = limiter.rules();
    assert_eq!((present.number, present.rules.switches().rules().len()), (1 + 3 * TURNS, 600));
}
