//! Tiers and overrides: the limits of each key.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tidegate_core::store::now_or_never;
use tidegate_core::{ManualClock, MemoryStore, Micros, Timestamp};
use tidegate_rules::{FoundTier, KeyFault, Limiter, Secret, TierDirectory, TierLookup, TierSettings};

use crate::rules::support::{charges, compare, doubts, get, governs, mistakes, rules};

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
    // A verified tier takes precedence, and other sources are not read.
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
            "warning: {at} [i] the rule `r` does not limit requests whose tier it does not list; add `limit`, or name one of its tiers as the `default` of the file's `tiers`"
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
            "1:57 [10.0.0.0/8] `10.0.0.0/8` is not a key of this rule; the rule counts by `10.0.0.0`: write that",
        ),
        (
            "key: method, limit: 1/s, overrides: { get: 2/s, GET: 3/s }",
            "1:66 [GET] `GET` is a key that is listed above; keep one of them",
        ),
    ];
    compare(cases.map(|(rest, expected)| {
        let text = format!("rules: [{{ id: r, {rest} }}]");
        (text.clone(), mistakes(&text), vec![expected.to_owned()])
    }));
}

const STORED: &str = "
tiers: { from: store, api_keys: { k_here: paid }, default: free }
rules:
  - { id: r, key: api_key, tiers: { free: fixed 1/day, paid: fixed 3/day } }
";

/// A limiter whose tiers are looked up by the test.
struct Stored {
    limiter: Limiter<MemoryStore>,
    directory: Arc<TierDirectory>,
    clock: ManualClock,
}

impl Stored {
    fn new() -> Stored {
        let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
        let settings = TierSettings { most_keys: 8, ..TierSettings::default() };
        let directory = Arc::new(TierDirectory::with_clock(settings, clock.clone()));
        let limiter = Limiter::new(rules(STORED).with_tiers(Some(Arc::clone(&directory))), MemoryStore::new());
        directory.open();
        Stored { limiter, directory, clock }
    }

    fn lookups(&self) -> Vec<TierLookup> {
        now_or_never(self.directory.wanted()).unwrap_or_default()
    }

    /// The remaining quota after a request. If the request has to wait, the look-up is answered with `found`.
    fn left(&self, api_key: &str, found: Option<FoundTier>) -> u64 {
        let request = get("/").api_key(api_key);
        let mut check = pin!(self.limiter.check(&request).into_future());
        let mut context = Context::from_waker(Waker::noop());
        let mut polled = check.as_mut().poll(&mut context);
        if let Some(found) = found {
            assert!(polled.is_pending(), "it waits for its tier");
            for lookup in self.lookups() {
                self.directory.found(lookup, found.clone());
            }
            polled = check.as_mut().poll(&mut context);
        }
        let Poll::Ready(ruling) = polled else { panic!("nothing is to be waited for") };
        ruling.ruled[0].decision.remaining
    }
}

fn entry(tier: &str) -> Option<FoundTier> {
    Some(FoundTier::Entry(tier.as_bytes().to_vec()))
}

#[test]
fn a_tier_in_the_store_is_looked_up_once_and_then_known() {
    let stored = Stored::new();
    assert_eq!(stored.left("k_1", entry("paid")), 2);
    assert_eq!(stored.left("k_1", None), 1);
    assert_eq!(stored.left("k_here", None), 2, "the table in the rules comes first");
    assert_eq!(stored.directory.counts().found, 1);
    // A change takes effect after this time.
    stored.clock.advance(Micros::from_secs(60));
    assert_eq!(stored.left("k_1", entry("free")), 0);
}

#[test]
fn several_requests_wait_for_one_look_up() {
    let stored = Stored::new();
    let request = get("/").api_key("k_1");
    let mut context = Context::from_waker(Waker::noop());
    let mut checks: Vec<_> = (0..3).map(|_| Box::pin(stored.limiter.check(&request).into_future())).collect();
    assert!(checks.iter_mut().all(|check| check.as_mut().poll(&mut context).is_pending()));
    let lookups = stored.lookups();
    assert_eq!(lookups.len(), 1);
    stored.directory.found(lookups[0], FoundTier::Entry(b"paid".to_vec()));
    assert!(checks.iter_mut().all(|check| check.as_mut().poll(&mut context).is_ready()));
}

#[test]
fn an_entry_that_is_missing_or_broken_means_the_default_and_is_counted() {
    let stored = Stored::new();
    assert_eq!(stored.left("k_1", Some(FoundTier::Missing)), 0);
    assert_eq!(stored.left("k_2", entry("")), 0);
    assert_eq!(stored.left("k_3", entry(&"x".repeat(101))), 0);
    assert_eq!(stored.left("k_4", Some(FoundTier::Entry(vec![0xff, 0xfe]))), 0);
    assert_eq!(stored.left("k_5", entry("made up")), 0);
    let counts = stored.directory.counts();
    assert_eq!((counts.missing, counts.broken, counts.found), (1, 3, 1));
    assert!(counts.unknown > 0);
}

#[test]
fn a_store_that_does_not_answer_leaves_the_last_tier_and_is_asked_again_soon() {
    let stored = Stored::new();
    assert_eq!(stored.left("k_1", entry("paid")), 2);
    stored.clock.advance(Micros::from_secs(60));
    assert_eq!(stored.left("k_1", Some(FoundTier::Failed)), 1);
    assert_eq!(stored.left("k_1", None), 0, "not by every request");
    assert_eq!(stored.left("k_2", Some(FoundTier::Failed)), 0);
    stored.clock.advance(Micros::from_secs(1));
    let counts = stored.directory.counts();
    assert_eq!((counts.found, counts.failed), (1, 2));
    assert_eq!(stored.lookups(), []);
}

#[test]
fn the_cache_is_bounded() {
    let stored = Stored::new();
    for number in 0..100 {
        stored.clock.advance(Micros::from_millis(1));
        assert_eq!(stored.left(&format!("k_{number}"), entry("paid")), 2);
        assert!(stored.directory.counts().keys <= 8);
    }
}

#[test]
fn without_anybody_to_ask_the_default_applies() {
    let limiter = Limiter::new(rules(STORED), MemoryStore::new());
    assert_eq!(limiter.check_now(&get("/").api_key("k_1")).ruled[0].decision.remaining, 0);
    let stored = Stored::new();
    stored.directory.close();
    assert_eq!(stored.left("k_1", None), 0);
}

#[test]
fn a_check_that_does_not_wait_starts_the_look_up_and_has_the_tier_that_is_known() {
    let stored = Stored::new();
    let left = || stored.limiter.check_now(&get("/").api_key("k_1")).ruled[0].decision.remaining;
    assert_eq!(left(), 0, "the default tier");
    let lookups = stored.lookups();
    assert_eq!(lookups.len(), 1);
    stored.directory.found(lookups[0], FoundTier::Entry(b"paid".to_vec()));
    assert_eq!(left(), 1, "what the default tier was charged counts");
    stored.clock.advance(Micros::from_secs(60));
    assert_eq!(left(), 0, "the tier that was found last");
    assert_eq!(stored.lookups().len(), 1);
}

#[test]
fn new_rules_keep_the_directory_and_a_rotated_secret_looks_under_both() {
    let stored = Stored::new();
    assert_eq!(stored.left("k_1", entry("paid")), 2);
    stored.limiter.replace(rules(STORED));
    assert_eq!(stored.left("k_1", None), 1);
    let (old, new) = (Secret::new(b"0123456789abcdef"), Secret::new(b"fedcba9876543210"));
    let both = new.clone().with_previous(&old).unwrap();
    let names: Vec<String> = TierLookup::of("k_1", &both).names().collect();
    assert_eq!(names, [new.hide("k_1"), old.hide("k_1")]);
}
