use super::*;
use crate::Mode;
use crate::facts::Request;
use tidegate_core::store::now_or_never;
use tidegate_core::{ManualClock, Micros, Outcome, Timestamp};

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
fn no_charge_comes_with_the_decision_on_another() {
    const BOTH: &str = "rules: [{ id: one, limit: 1/h }, { id: two, limit: 2/h }]";
    let request = Request::new("GET", "/");
    let ruling = limiter(BOTH).0.check_now(&request);
    let charged = |text| {
        let rules = rules(text);
        let matched = rules.matching(&request);
        ruling.charges(&matched).map(|paired| paired.charge.rule.as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(charged(BOTH), ["one", "two"]);
    assert_eq!(charged("rules: [{ id: one, limit: 1/h }, { id: three, limit: 2/h }]"), ["one"]);
    assert_eq!(charged("rules: [{ id: two, limit: 2/h }]"), [""; 0]);
}

/// A clock that goes on at every reading.
#[derive(Debug, Default)]
struct Ticking(std::sync::atomic::AtomicU64);

impl Clock for Ticking {
    fn now(&self) -> Timestamp {
        let read = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Timestamp::from_secs(1_700_000_000) + Micros::new(1_000 * read)
    }
}

#[test]
fn a_peek_reads_the_clock_of_its_store_once() {
    let limiter = Limiter::new(rules("rules: [{ id: one, limit: 1/h }]"), MemoryStore::with_clock(Ticking::default()));
    let request = Request::new("GET", "/");
    assert!(limiter.check_now(&request).is_allowed());
    let ruling = at_once(limiter.peek(&request));
    let decision = ruling.ruled[0].decision;
    assert_eq!(decision.retry_after(), Some(decision.reset_after));
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
fn on_the_spot_the_answers_are_the_same() {
    let text = "rules:
- { id: real, key: user, limit: 3/h, on_missing_key: refuse }
- { id: all, limits: [4/h, { limit: 9/h, reserve: 1min }] }
- { id: dark, limit: 1/h, mode: shadow }
- { id: narrow, match: { method: POST }, limit: concurrent 1 ttl 30s }";
    let (one, other) = (limiter(text).0, limiter(text).0);
    let requests = ["", "alice", "bob"].map(|user| ["GET", "POST"].map(|method| (user, method)));
    for (user, method) in requests.iter().flatten().cycle().take(30) {
        let request = Request::new(method, "/");
        let request = if user.is_empty() { request } else { request.user(user) };
        let said = one.check_then(&request, |_, ruling| format!("{:?}", without_receipts(ruling.clone())));
        assert_eq!(said.now(), Some(format!("{:?}", without_receipts(other.check_now(&request)))));
    }
}

/// Receipts have unpredictable ids, so only their holds can be compared.
fn without_receipts(mut ruling: Ruling<'_>) -> (Ruling<'_>, usize) {
    let held = ruling.receipts.drain(..).map(|receipt| receipt.held.len()).sum();
    (ruling, held)
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
    assert_eq!(
        (ruling.is_allowed(), ruling.refused.map(|refused| refused.rule.to_string())),
        (false, Some("keyed".to_owned()))
    );
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

/// One thread replaces the rules and two threads switch them. In any order, no thread undoes a change of another, and each
/// request gets rules and modes that belong together.
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
                // Both are off, or both are in shadow mode.
                assert!([0, 2].contains(&limiter.check_now(&request).ruled.len()));
            }
        });
    });
    let present = limiter.rules();
    assert_eq!((present.number, present.rules.switches().rules().len()), (1 + 3 * TURNS, 600));
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
fn a_key_is_read_and_reset_by_its_rule_and_its_parts() {
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
    assert_eq!(wrong("api", &["k"]), "the key of `api` has 2 parts, `api_key`, `address`; 1 is given");
    assert!(wrong("api", &["k", "here"]).starts_with("`here` is not an address"));
}

#[test]
fn reservations_are_settled_under_any_rule() {
    let (limiter, _) = limiter("rules:\n- { id: tokens, key: user, limit: 100/h, cost: hits }");
    let request = Request::new("POST", "/").user("alice").hits(40);
    let ruling = at_once(limiter.reserve(&request, Micros::from_secs(60)));
    assert_eq!(ruling.ruled[0].decision.remaining, 60);
    let settled = at_once(limiter.settle(&ruling.receipts[0], &[25])).unwrap();
    assert_eq!(settled, Settlement::Settled { given_back: 15, charged: 0 });
    assert_eq!(at_once(limiter.peek(&request)).ruled[0].decision.remaining, 75);
}

fn at_once<A: IntoFuture>(answer: A) -> A::Output {
    now_or_never(answer).expect("a store in memory never makes anyone wait")
}

#[test]
fn abandoned_queue_places_can_be_refunded() {
    let (limiter, _) = limiter("rules:\n- { id: paced, limit: shaper 1/s queue 3 }\n- { id: plain, limit: 9/s }");
    let request = Request::new("GET", "/");
    limiter.check_now(&request);
    let waiting = limiter.check_now(&request);
    assert_eq!(waiting.verdict.outcome, Outcome::Allow { delay: Micros::from_secs(1) });
    let [receipt] = &waiting.receipts[..] else { panic!("{:?}", waiting.receipts) };
    assert_eq!(receipt.held.len(), 1);
    assert!(limiter.store().settle(receipt, &[0]) != Settlement::Gone);
    assert_eq!(limiter.check_now(&request).verdict.outcome, waiting.verdict.outcome);
}
