//! Keys with two names while the secret that names them is rotated.

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_core::store::now_or_never;
use tidegate_core::{Charge, Clock, Key, ManualClock, MemoryStore, Micros, Settlement, Timestamp};
use tidegate_rules::{Charging, DescriptorRequest, Hits, Limiter, Mode, Refundable, Request, Ruling, Secret};

use crate::rules::support::rules;

type Stage = Limiter<MemoryStore<ManualClock>, ManualClock>;

fn old() -> Secret {
    Secret::new(b"the previous one")
}

fn new() -> Secret {
    Secret::new(b"the present one!")
}

fn both() -> Secret {
    new().with_previous(&old()).unwrap()
}

fn ready<A: IntoFuture>(answer: A) -> A::Output {
    now_or_never(answer).expect("a store in memory never waits")
}

/// A limiter that charges under both names.
fn stage(text: &str) -> (Stage, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let store = MemoryStore::with_clock(clock.clone());
    (Limiter::with_clock(rules(text).with_secret(both()), store, clock.clone()), clock)
}

fn request(api_key: &str) -> Request {
    Request::new("GET", "/").api_key(api_key).user("alice")
}

/// The remaining quota of each of a rule's limits under one secret, even if the rule is off.
fn left_under(limiter: &Stage, secret: &Secret, request: &Request) -> Vec<u64> {
    let generation = limiter.rules();
    let rules = generation.rules.clone().with_secret(secret.clone());
    let matched = rules.matching(request);
    let charges = matched.rules.iter().flat_map(|rule| rule.charges().collect::<Vec<Charge<'_>>>());
    charges.map(|charge| limiter.store().peek(&[charge.cost(0)])[0].remaining).collect()
}

fn left(limiter: &Stage, request: &Request) -> [Vec<u64>; 2] {
    [&new(), &old()].map(|secret| left_under(limiter, secret, request))
}

fn told(ruling: &Ruling<'_>) -> Vec<(String, bool, u64)> {
    let one = |ruled: &tidegate_rules::Ruled<'_>| {
        (ruled.id.to_string(), ruled.decision.is_allowed(), ruled.decision.remaining)
    };
    ruling.ruled.iter().map(one).collect()
}

const TWO_LIMITS: &str = "
rules:
  - { id: all, limit: fixed 100/day }
  - { id: api, key: [method, api_key], limits: [fixed 5/day, { limit: fixed 8/day, cost: 2 }] }
  - { id: shadow, key: 'header:authorization', limit: fixed 2/day, mode: shadow }
  - { id: user, key: user, limit: fixed 50/day }
";

#[test]
fn a_request_is_charged_under_both_names_and_told_of_once() {
    let (limiter, _) = stage(TWO_LIMITS);
    let request = request("k1").header("authorization", "Bearer hunter2");
    let ids: Vec<String> = told(&limiter.check_now(&request)).into_iter().map(|(id, ..)| id).collect();
    assert_eq!(ids, ["all", "api", "api/2", "user", "shadow"]);
    // Rules without a secret in their key have one name, and are charged once.
    assert_eq!(left(&limiter, &request), [vec![99, 4, 6, 1, 49], vec![99, 4, 6, 1, 49]]);
}

#[test]
fn without_a_previous_secret_there_is_one_name() {
    let rules = rules(TWO_LIMITS).with_secret(new());
    let request = request("k1");
    let matched = rules.matching(&request);
    assert!(matched.rules.iter().all(|rule| rule.aliases().next().is_none()));
}

#[test]
fn requests_that_lack_the_key_share_one_name() {
    let rules = rules(TWO_LIMITS).with_secret(both());
    let request = Request::new("GET", "/");
    let matched = rules.matching(&request);
    assert_eq!(matched.rules[1].rule.id(), "api");
    assert_eq!(matched.rules[1].aliases().count(), 0);
}

#[test]
fn the_stricter_name_decides_and_a_denial_charges_neither() {
    let (limiter, clock) = stage("rules: [{ id: api, key: api_key, limits: [fixed 5/day, fixed 9/day] }]");
    let request = request("k1");
    // Like nodes that know only the previous secret.
    let node = Limiter::with_clock(limiter.rules().rules.clone().with_secret(old()), MemoryStore::new(), clock);
    let generation = node.rules();
    let matched = generation.rules.matching(&request);
    let charges: Vec<Charge<'_>> = matched.charges().map(|charge| charge.cost(3)).collect();
    limiter.store().decide(&charges).unwrap();

    assert_eq!(told(&limiter.check_now(&request)), [("api".into(), true, 1), ("api/2".into(), true, 5)]);
    assert_eq!(told(&limiter.check_now(&request)), [("api".into(), true, 0), ("api/2".into(), true, 4)]);
    let before = left(&limiter, &request);
    assert_eq!(before, [vec![3, 7], vec![0, 4]]);
    let denied = limiter.check_now(&request);
    assert_eq!(told(&denied), [("api".into(), false, 0), ("api/2".into(), true, 4)]);
    assert_eq!((denied.is_allowed(), denied.verdict.binding), (false, Some(0)));
    assert_eq!(left(&limiter, &request), before);
    let peeked = ready(limiter.peek(&request));
    assert_eq!(told(&peeked), [("api".into(), false, 0), ("api/2".into(), true, 4)]);
    let by_name = ready(limiter.peek_key("api", &["k1"], None)).unwrap();
    assert_eq!(told(&by_name), told(&peeked));
}

#[test]
fn refunds_reservations_and_slots_act_on_both_names() {
    let text = "
rules:
  - { id: plain, key: api_key, limit: fixed 10/day }
  - { id: tokens, key: api_key, limits: [{ limit: fixed 1000/day, cost: 100, reserve: 10min }] }
  - { id: slots, key: 'cookie:sid', limit: concurrent 3 ttl 1min }
  - { id: watched, key: api_key, limit: fixed 7/day, mode: shadow }
";
    let (limiter, clock) = stage(text);
    let request = request("k1").cookie("sid", "s1");
    let untouched = left(&limiter, &request);
    let (spent, receipts) = ready(limiter.check_then(&request, |matched, ruling| {
        (Refundable::by(matched, ruling, clock.now()), std::mem::take(&mut ruling.receipts))
    }));
    assert_eq!(left(&limiter, &request), [vec![9, 900, 2, 6], vec![9, 900, 2, 6]]);
    assert!(ready(limiter.renew(&receipts[0])).unwrap());
    let unaliased: Vec<&str> = receipts[0].unaliased().map(|held| held.rule.as_str()).collect();
    assert_eq!((unaliased, receipts[0].held.len()), (vec!["tokens", "slots"], 4));

    // Refunds are reported once.
    let actual: Vec<u64> =
        receipts[0].held.iter().map(|held| if held.rule.as_str() == "tokens" { 30 } else { 0 }).collect();
    let settled = ready(limiter.settle(&receipts[0], &actual)).unwrap();
    assert_eq!(settled, Settlement::Settled { given_back: 71, charged: 0 });
    assert_eq!(left(&limiter, &request), [vec![9, 970, 3, 6], vec![9, 970, 3, 6]]);
    ready(limiter.refund(spent)).unwrap();
    assert_eq!(left(&limiter, &request), [vec![10, 970, 3, 7], vec![10, 970, 3, 7]]);
    // Each limit is reported once.
    assert_eq!(ready(limiter.reset(&request)).unwrap(), 4);
    assert_eq!(left(&limiter, &request), untouched);
}

#[test]
fn a_reset_by_name_forgets_both_names() {
    let (limiter, _) = stage(TWO_LIMITS);
    let request = request("k1");
    let untouched = left(&limiter, &request);
    limiter.check_now(&request);
    assert_eq!(ready(limiter.reset_key("api", &["GET", "k1"])).unwrap(), 2);
    let [new, old] = left(&limiter, &request);
    assert_eq!((&new[1..3], &old[1..3]), (&untouched[0][1..3], &untouched[1][1..3]));
}

/// A late refund must not be credited to a name whose window has passed while that of the other name has not.
#[test]
fn nothing_is_refunded_once_one_of_the_names_has_recovered() {
    let (limiter, clock) = stage("rules: [{ id: api, key: api_key, limit: 10/min }]");
    let request = request("k1");
    let rules = limiter.rules().rules.clone().with_secret(old());
    let matched = rules.matching(&request);
    let charges: Vec<Charge<'_>> = matched.charges().map(|charge| charge.cost(8)).collect();
    limiter.store().decide(&charges).unwrap();
    let spent = ready(limiter.check_then(&request, |matched, ruling| Refundable::by(matched, ruling, clock.now())));
    // The present name has recovered after six seconds, the previous one after almost a minute.
    clock.advance(Micros::from_secs(7));
    limiter.check_now(&request);
    let before = left(&limiter, &request);
    ready(limiter.refund(spent)).unwrap();
    assert_eq!(left(&limiter, &request), before);
}

#[test]
fn descriptors_are_charged_and_given_back_under_both_names() {
    let (limiter, _) = stage("rules: [{ id: api, key: 'descriptor:api_key', limit: fixed 5/day, cost: hits }]");
    let generation = limiter.rules();
    let ask = |hits, charging| {
        let asked = [("api_key", "k1"), ("api_key", "k2")];
        let asked =
            asked.each_ref().map(|entry| DescriptorRequest { entries: std::slice::from_ref(entry), hits, limit: None });
        let decided = ready(limiter.check_entries(&generation, &asked, charging));
        let over: Vec<bool> = decided.descriptors.iter().map(|descriptor| descriptor.is_over).collect();
        (over, told(&decided.ruling).into_iter().map(|(_, _, left)| left).collect::<Vec<u64>>())
    };
    let request = Request::new("GET", "/").descriptor("api_key", "k1");
    assert_eq!(ask(Hits::of(4, false), Charging::Together), (vec![false, false], vec![1, 1]));
    assert_eq!(left(&limiter, &request), [vec![1], vec![1]]);
    assert_eq!(ask(Hits::of(2, false), Charging::Together), (vec![true, true], vec![1, 1]));
    assert_eq!(left(&limiter, &request), [vec![1], vec![1]]);
    assert_eq!(ask(Hits::of(1, true), Charging::Together).1, [2, 2]);
    assert_eq!(left(&limiter, &request), [vec![2], vec![2]]);
    assert_eq!(ask(Hits::of(3, false), Charging::Always).0, [true, true]);
    assert_eq!(left(&limiter, &request), [vec![0], vec![0]]);
}

#[test]
fn rules_that_are_replaced_keep_the_installations_secret() {
    let (limiter, _) = stage("rules: [{ id: api, key: api_key, limit: fixed 5/day }]");
    let request = request("k1");
    limiter.check_now(&request);
    limiter.replace(rules("rules: [{ id: api, key: api_key, limit: fixed 6/day }]"));
    assert_eq!(*limiter.rules().rules.secret(), both());
    limiter.replace_switched(rules("rules: [{ id: api, key: api_key, limit: fixed 7/day }]"));
    limiter.switch(|switches| switches.switch("api", Some(Mode::Enforce)));
    assert_eq!(*limiter.rules().rules.secret(), both());
    assert_eq!(told(&limiter.check_now(&request)), [("api".into(), true, 5)]);
    limiter.hide_under(new());
    assert_eq!(told(&limiter.check_now(&request)), [("api".into(), true, 4)]);
}

#[test]
fn explanations_show_a_key_once_and_by_its_present_name() {
    let rules = rules("rules: [{ id: api, key: api_key, limit: fixed 5/day }]").with_secret(both());
    let explanation = serde_json::to_string(&rules.explain(&request("k1"))).unwrap();
    assert_eq!(explanation.matches(&new().display("k1")).count(), 1);
    assert!(!explanation.contains(&old().display("k1")) && !explanation.contains("k1\""), "{explanation}");
}

/// A request to one of the nodes of a fleet.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// To a node that knows only the previous secret.
    Old(u64),
    /// To a node that knows both secrets.
    Both(u64),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..4u64).prop_map(Step::Old),
        4 => (1..4u64).prop_map(Step::Both),
        1 => (1..2_000u64).prop_map(Step::Pass),
    ]
}

fn limit() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        Just("7/s burst 11"),
        Just("gcra 7/s burst 11"),
        Just("fixed 11/s"),
        Just("sliding 11/s"),
        Just("log 11/s"),
        Just("meter 7/s burst 11"),
    ]
}

proptest! {
    /// Every node that gets a request answers like a single node with the previous secret. Everything charged since all
    /// nodes know both secrets is charged under the new name as well.
    #[test]
    fn a_fleet_in_rotation_admits_what_one_node_would(limit in limit(), steps in vec(step(), 1..60)) {
        let text = format!("rules: [{{ id: api, key: api_key, limits: [{{ limit: '{limit}', cost: hits }}] }}]");
        let (limiter, clock) = stage(&text);
        let model = Limiter::with_clock(rules(&text).with_secret(old()), MemoryStore::with_clock(clock.clone()), clock.clone());
        let of_old = Limiter::with_clock(rules(&text).with_secret(old()), MemoryStore::with_clock(clock.clone()), clock.clone());
        let generation = of_old.rules();
        for step in steps {
            let (hits, is_both) = match step {
                Step::Pass(millis) => {
                    clock.advance(Micros::from_millis(millis));
                    continue;
                }
                Step::Old(hits) => (hits, false),
                Step::Both(hits) => (hits, true),
            };
            let request = request("k1").hits(hits);
            let expected = told(&model.check_now(&request));
            if is_both {
                let before = left(&limiter, &request);
                let ruling = limiter.check_now(&request);
                prop_assert_eq!(ruling.is_allowed(), expected[0].1);
                prop_assert_eq!(told(&ruling), expected);
                if !ruling.is_allowed() {
                    prop_assert_eq!(left(&limiter, &request), before);
                }
            } else {
                let matched = generation.rules.matching(&request);
                let charges: Vec<Charge<'_>> = matched.charges().collect();
                let answer = limiter.store().decide(&charges).unwrap();
                prop_assert_eq!(answer.decisions[0].is_allowed(), expected[0].1);
            }
            // The new name never has less left than the old name, which all nodes charge.
            let [new, old] = left(&limiter, &request);
            prop_assert!(new[0] >= old[0]);
        }
    }

    /// The two names are separate keys: no other key's name is charged.
    #[test]
    fn only_the_two_names_of_a_key_are_charged(values in vec("[a-z]{1,8}", 2..5)) {
        let (limiter, _) = stage("rules: [{ id: api, key: api_key, limit: fixed 5/day }]");
        let others: Vec<Key<'static>> = values[1..].iter().filter(|value| **value != values[0])
            .flat_map(|value| [new(), old()].map(|secret| Key::of([secret.hide(value)]))).collect();
        limiter.check_now(&request(&values[0]));
        let rule = tidegate_core::RuleId::new("api");
        let limit = "fixed 5/day".parse().unwrap();
        for key in &others {
            prop_assert_eq!(limiter.store().peek(&[Charge::new(&rule, key, &limit).cost(0)])[0].remaining, 5);
        }
    }
}
