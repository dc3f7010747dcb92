use proptest::prelude::*;

use super::*;
use crate::facts::Request;

fn rules(text: &str) -> RuleSet {
    RuleSet::parse("rules.yaml", text).unwrap_or_else(|findings| panic!("{findings}")).rules
}

fn outcomes(rules: &RuleSet, request: &Request) -> Vec<(String, RuleOutcome)> {
    rules.explain(request).rules.into_iter().map(|rule| (rule.id, rule.outcome)).collect()
}

fn mismatch(condition: &str, wanted: &str, actual: Option<&str>) -> RuleOutcome {
    RuleOutcome::Mismatch {
        condition: condition.to_owned(),
        wanted: wanted.to_owned(),
        actual: actual.map(str::to_owned),
    }
}

fn charged(outcome: &RuleOutcome) -> &Charged {
    match outcome {
        RuleOutcome::Matched(charged) => charged,
        other => panic!("it should match: {other:?}"),
    }
}

#[test]
fn a_mismatch_names_the_condition_what_it_wants_and_what_there_is() {
    let rules = rules(
        "
rules:
  - { id: method, match: { method: [put, POST] }, limit: 1/s }
  - { id: path, match: { path: [/a, '/b/{id}'] }, limit: 1/s }
  - { id: not-path, match: { path: { not: /x } }, limit: 1/s }
  - { id: address, match: { address: 10.0.0.0/8 }, limit: 1/s }
  - { id: header, match: { header: { X-Env: 'prod*' } }, limit: 1/s }
  - { id: regex, match: { query: { q: { regex: '[0-9]+' } } }, limit: 1/s }
  - { id: not, match: { host: { not: [a.example, '*.b.example'] } }, limit: 1/s }
  - { id: present, match: { user: { present: true } }, limit: 1/s }
  - { id: absent, match: { host: { present: false } }, limit: 1/s }
",
    );
    let request = Request::new("get", "/x/?q=one").host("A.example").address("::ffff:192.0.2.7".parse().unwrap());
    let explained: Vec<RuleOutcome> = outcomes(&rules, &request).into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(
        explained,
        [
            mismatch("method", "`POST` or `PUT`", Some("GET")),
            mismatch("path", "`/a` or `/b/{id}`", Some("/x")),
            mismatch("path", "anything but `/x`", Some("/x")),
            mismatch("address", "`10.0.0.0/8`", Some("192.0.2.7")),
            mismatch("header:x-env", "`prod*`", None),
            mismatch("query:q", "the regex `[0-9]+`", Some("one")),
            mismatch("host", "anything but `a.example` or `*.b.example`", Some("a.example")),
            mismatch("user", "any value", None),
            mismatch("host", "no value", Some("a.example")),
        ]
    );
}

#[test]
fn every_other_reason_has_its_own_outcome() {
    let rules = rules(
        "
tiers: { default: free }
rules:
  - { id: off, limit: 1/s, mode: off }
  - { id: usual, limit: 1/s }
  - { id: special, limit: 2/s, replaces: usual }
  - { id: skipped, key: user, on_missing_key: skip, limit: 1/s }
  - { id: refused, key: [address, api_key], on_missing_key: refuse, limit: 1/s }
  - { id: paid, tiers: { paid: 1/s } }
  - { id: last, limit: 1/s, stop: true }
  - { id: beyond, limit: 1/s }
  - { id: beyond-and-off, limit: 1/s, mode: off }
",
    );
    let explanation = rules.explain(&Request::new("GET", "/").address("192.0.2.7".parse().unwrap()));
    assert_eq!(explanation.tier.as_deref(), Some("free"));
    assert_eq!(explanation.matched().map(|rule| rule.id.as_str()).collect::<Vec<_>>(), ["special", "last"]);
    assert_eq!(explanation.refused_by().map(|rule| rule.id.as_str()), Some("refused"));
    let outcome = |id: &str| explanation.rules.iter().find(|rule| rule.id == id).map(|rule| rule.outcome.clone());
    assert_eq!(outcome("off"), Some(RuleOutcome::Off));
    assert_eq!(outcome("usual"), Some(RuleOutcome::Replaced { by: "special".to_owned() }));
    assert_eq!(outcome("skipped"), Some(RuleOutcome::Skipped { missing: "user".to_owned() }));
    assert_eq!(outcome("refused"), Some(RuleOutcome::Refused { missing: "api_key".to_owned() }));
    assert_eq!(outcome("paid"), Some(RuleOutcome::NoLimit));
    assert_eq!(outcome("beyond"), Some(RuleOutcome::NotReached { stopped_by: "last".to_owned() }));
    assert_eq!(outcome("beyond-and-off"), Some(RuleOutcome::Off));
}

#[test]
fn repeated_values_are_named_and_secrets_hidden() {
    let rules = rules(
        "
tiers: { from: 'header:X-Tier' }
rules:
  - { id: keyed, key: [address, 'header:X-Key'], limit: 1/s }
  - { id: tiered, limit: 1/s, tiers: { paid: 9/s } }
  - { id: other, match: { header: { X-Key: hush-3 } }, limit: 1/s }
",
    );
    let request = Request::new("GET", "/").address("192.0.2.7".parse().unwrap());
    let request = request.header("X-Key", "hush-1").header("X-Key", "hush-2");
    let request = request.header("X-Tier", "paid").header("X-Tier", "free");
    let explanation = rules.explain(&request);
    let outcomes: Vec<_> = explanation.rules.iter().map(|rule| rule.outcome.clone()).collect();
    assert_eq!(outcomes[0], RuleOutcome::Repeated { repeated: "header:x-key".to_owned() });
    assert_eq!(outcomes[1], RuleOutcome::Repeated { repeated: "tier".to_owned() });
    assert_eq!(explanation.refused_by().map(|rule| rule.id.as_str()), Some("keyed"));
    assert_eq!(explanation.tier.as_deref(), Some("paid, free"));
    let shown = format!("{explanation:?} {}", serde_json::to_string(&explanation).unwrap());
    assert!(!shown.contains("hush"), "{shown}");
}

#[test]
fn a_match_shows_key_limits_costs_and_policy() {
    let rules = rules(
        "
tiers: { from: 'header:X-Tier' }
rules:
  - id: calls
    match: { path: '/users/{id}' }
    key: [address, 'path:id', route]
    limits: [20/s burst 50, { name: daily, limit: fixed 1000/day, cost: 'header:X-Cost', reserve: 2min }]
    tiers: { paid: unlimited }
    on_store_failure: { allow_for: 30s }
    store_deadline: 50ms
    priority: high
  - { id: users, key: user, limit: 5/min }
",
    );
    let request = Request::new("GET", "/users/7").address("2001:db8:1:2:3::4".parse().unwrap()).header("x-cost", "25");
    let explained = outcomes(&rules, &request);
    let calls = charged(&explained[0].1);
    let key: Vec<String> = calls.key.iter().map(|part| format!("{}={}", part.part, part.value)).collect();
    assert_eq!(key, ["address=2001:db8:1:2::/64", "path:id=7", "route=/users/{id}"]);
    let limits: Vec<_> = calls.limits.iter().map(|limit| (&*limit.id, &*limit.limit, limit.cost)).collect();
    assert_eq!(limits, [("calls", "20/s burst 50", 1), ("calls/daily", "fixed 1000/day", 25)]);
    assert_eq!(calls.limits[1].reserve.as_deref(), Some("2min"));
    assert_eq!((calls.on_store_failure.as_str(), calls.priority), ("allow for 30s", Some("high")));
    assert_eq!(calls.store_deadline.as_deref(), Some("50ms"));
    assert_eq!(calls.granted, Granted::Everyone);
    let shared = charged(&explained[1].1);
    assert_eq!((shared.key.len(), shared.missing.as_deref()), (0, Some("user")));

    let paid = outcomes(&rules, &request.header("X-Tier", "paid"));
    assert_eq!((charged(&paid[0].1).granted, charged(&paid[0].1).limits.len()), (Granted::Tier, 0));
}

#[test]
fn secrets_are_not_shown() {
    let rules = rules(
        "
rules:
  - { id: key, key: [address, api_key], limit: 1/s, overrides: { '192.0.2.7,hush-1': 9/s } }
  - { id: cookie, key: [address, 'cookie:session'], limit: 1/s }
  - { id: bearer, key: [address, 'header:Authorization'], limit: 1/s }
  - { id: other, match: { api_key: hush-4 }, limit: 1/s }
",
    );
    let request = Request::new("GET", "/")
        .address("192.0.2.7".parse().unwrap())
        .api_key("hush-1")
        .cookie("session", "hush-2")
        .header("authorization", "hush-3");
    let explanation = rules.explain(&request);
    assert_eq!(explanation.matched().count(), 3);
    assert_eq!(charged(&explanation.rules[0].outcome).granted, Granted::Override);
    assert_eq!(charged(&explanation.rules[0].outcome).key[1].value, Secret::default().display("hush-1"));
    let shown = format!("{explanation:?} {}", serde_json::to_string(&explanation).unwrap());
    assert!(!shown.contains("hush"), "{shown}");
}

/// Rules to draw from; `base` is always present, because others replace it.
const POOL: [&str; 12] = [
    "{ id: a, match: { path: /a/** }, key: address, limit: 1/s }",
    "{ id: b, match: { path: '/{x}/b', method: POST }, key: 'path:x', limit: 2/s, cost: 2 }",
    "{ id: c, match: { header: { x-env: prod } }, key: user, on_missing_key: skip, limit: 3/s }",
    "{ id: d, match: { host: '*.example.com' }, key: api_key, on_missing_key: refuse, limit: 4/s }",
    "{ id: e, match: { address: 10.0.0.0/8 }, limit: 5/s, replaces: base }",
    "{ id: f, match: { tier: [paid, gold] }, limits: [6/s, fixed 60/min] }",
    "{ id: g, match: { path: /a/b }, limit: 7/s, stop: true }",
    "{ id: h, match: { method: { not: GET } }, limit: 8/s, stop: true, mode: off }",
    "{ id: i, match: { user: { present: true } }, key: [user, address], tiers: { paid: 9/s } }",
    "{ id: j, match: { path: { not: /a }, header: { x-env: { regex: 'p.*' } } }, limit: 10/s, mode: shadow }",
    "{ id: k, match: { host: a.example.com, path: [/a, /b] }, limit: 11/s, stop: true, replaces: base }",
    "{ id: l, match: { api_key: [k1, k2] }, key: api_key, limit: 12/s, overrides: { k1: unlimited } }",
];

fn some_rules() -> impl Strategy<Value = String> {
    (prop::sample::subsequence(POOL.to_vec(), 0..=POOL.len()).prop_shuffle(), any::<prop::sample::Index>()).prop_map(
        |(mut rules, base)| {
            rules.insert(base.index(rules.len() + 1), "{ id: base, limit: 100/s }");
            let lines: Vec<String> = rules.iter().map(|rule| format!("  - {rule}\n")).collect();
            format!("tiers: {{ api_keys: {{ k1: paid, k3: free }} }}\nrules:\n{}", lines.concat())
        },
    )
}

fn some_request() -> impl Strategy<Value = Request> {
    let path = prop::sample::select(vec!["/", "/a", "/a/b", "//a/./b/", "/x/b", "/b", "/a/c/d"]);
    let method = prop::sample::select(vec!["GET", "POST", "post"]);
    let maybe = |values: Vec<&'static str>| prop::option::of(prop::sample::select(values));
    let (host, env) = (maybe(vec!["a.example.com", "B.example.com", "other"]), maybe(vec!["prod", "test"]));
    let (user, key) = (maybe(vec!["ann"]), maybe(vec!["k1", "k2", "k3"]));
    let (tier, address) = (maybe(vec!["paid", "gold", "free"]), maybe(vec!["10.1.2.3", "::ffff:10.1.2.3", "::1"]));
    (method, path, host, env, user, key, tier, address).prop_map(
        |(method, path, host, env, user, key, tier, address)| {
            let request = Request::new(method, path);
            let request = host.into_iter().fold(request, Request::host);
            let request = env.into_iter().fold(request, |request, env| request.header("X-Env", env));
            let request = user.into_iter().fold(request, Request::user);
            let request = key.into_iter().fold(request, Request::api_key);
            let request = tier.into_iter().fold(request, Request::tier);
            address.into_iter().fold(request, |request, address| request.address(address.parse().unwrap()))
        },
    )
}

proptest! {
    #[test]
    fn explanations_agree_with_decisions(text in some_rules(), requests in prop::collection::vec(some_request(), 8)) {
        let rules = rules(&text);
        for request in requests {
            let matching = rules.matching(&request);
            let explanation = rules.explain(&request);
            let happens: Vec<_> = matching.rules.iter().map(|matched| {
                let limits = matched.charges().map(|charge| (charge.rule.to_string(), charge.limit.to_string(), charge.cost));
                (matched.rule.id().to_owned(), matched.key.parts().count(), limits.collect::<Vec<_>>())
            }).collect();
            let explained: Vec<_> = explanation.matched().map(|rule| {
                let charged = charged(&rule.outcome);
                let limits = charged.limits.iter().map(|limit| (limit.id.clone(), limit.limit.clone(), limit.cost));
                (rule.id.clone(), charged.key.len(), limits.collect::<Vec<_>>())
            }).collect();
            prop_assert_eq!(happens, explained);
            let refused = explanation.refused_by().map(|rule| rule.id.as_str());
            prop_assert_eq!(matching.refused.map(|refused| refused.rule.id()), refused);
            prop_assert_eq!(explanation.rules.len(), rules.rules().len());
        }
    }
}
