//! The schema agrees with the reader.

use std::collections::BTreeSet;

use serde_json::Value;

use super::schema;
use crate::read::{
    self, adapt, conditions, cost, failure, keys, lease, limit_list, limits, regions, shed, write_behind,
};
use crate::{RuleSet, presets, tiers};

fn whole() -> Value {
    schema().to_value()
}

/// The definition of a name; `File` is the schema itself.
fn definition(name: &str) -> Value {
    let whole = whole();
    let found = if name == "File" { Some(&whole) } else { whole["definitions"].get(name) };
    found.unwrap_or_else(|| panic!("no definition `{name}` in {whole:#}")).clone()
}

fn properties(name: &str) -> BTreeSet<String> {
    let definition = definition(name);
    assert_eq!(definition["additionalProperties"], false, "{name}");
    definition["properties"].as_object().unwrap().keys().cloned().collect()
}

/// The words that are accepted as a value.
fn words(name: &str) -> BTreeSet<String> {
    let definition = definition(name);
    let word = |choice: &Value| choice["const"].as_str().map(str::to_owned);
    let one = |choices: &Vec<Value>| choices.iter().map(|choice| word(choice).unwrap()).collect();
    definition["oneOf"].as_array().map_or_else(|| word(&definition).into_iter().collect(), one)
}

fn set<'a>(names: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

#[test]
fn the_schema_has_the_fields_that_the_reader_knows() {
    for (name, known) in [
        ("File", &read::FILE[..]),
        ("Tiers", &tiers::TIERS),
        ("Rule", &read::RULE),
        ("Match", &conditions::MATCH),
        ("Pattern", &conditions::PATTERN),
        ("AllButPath", &conditions::ALL_BUT),
        ("AllButNetwork", &conditions::ALL_BUT),
        ("AddressPart", &keys::ADDRESS_PART),
        ("NetworkSizes", &keys::NETWORK_SIZES),
        ("SpelledOut", &limit_list::LIMIT),
        ("Adapt", &adapt::ADAPT),
        ("Shed", &shed::SHED),
        ("CostBy", &cost::COST),
        ("BoundedPolicy", &failure::ON_STORE_FAILURE),
        ("LeaseTerms", &lease::LEASE),
        ("WriteBehind", &write_behind::WRITE_BEHIND),
        ("MovedRegions", &regions::REGIONS),
    ] {
        assert_eq!(properties(name), set(known.iter().copied()), "{name}");
    }
}

#[test]
fn every_map_with_fields_is_held_against_the_reader() {
    let whole = whole();
    let definitions = whole["definitions"].as_object().unwrap();
    let with_fields = definitions.iter().filter(|(_, definition)| definition.get("properties").is_some());
    assert_eq!(with_fields.count(), 16, "a new map needs a line in the test above");
}

#[test]
fn the_schema_has_the_words_that_the_reader_knows() {
    assert_eq!(words("Mode"), set(read::MODES.map(|(name, _)| name)));
    assert_eq!(words("Moves"), set(regions::MOVES.map(|(name, _)| name)));
    assert_eq!(words("RegionsOff"), set(["off"]));
    assert_eq!(words("Priority"), set(read::PRIORITIES.map(|(name, _)| name)));
    assert_eq!(words("OnMissingKey"), set(read::ON_MISSING_KEY.map(|(name, _)| name)));
    assert_eq!(words("OnRepeatedKey"), set(read::ON_REPEATED_KEY.map(|(name, _)| name)));
    assert_eq!(words("FailurePolicy"), set(failure::FAILURE_POLICIES.map(|(name, _)| name)));
    assert_eq!(words("AdaptMethod"), set(adapt::METHODS.map(|(name, ())| name)));
    assert_eq!(words("LeaseWord"), set(lease::LEASINGS.map(|(name, _)| name)));
    assert_eq!(words("Problem"), set(limits::PROBLEMS.map(|(name, _)| name)));
    assert_eq!(words("Preset"), set(presets::PRESETS.map(|(name, _)| name)));
    assert_eq!(words("KeyWord"), set(keys::PARTS.into_iter().filter(|part| !part.contains(':'))));
    for algorithm in words("Algorithm") {
        let rest = if algorithm == "concurrent" { "slots: 5" } else { "rate: 5/s" };
        let text = format!("rules: [{{ id: a, limit: {{ algorithm: {algorithm}, {rest} }} }}]");
        RuleSet::parse("a.yaml", &text).unwrap_or_else(|findings| panic!("{findings}"));
    }
}

fn validate(text: &str) -> Result<(), String> {
    let mut options = serde_saphyr::Options::default();
    // `off` is a word, as in YAML 1.2.
    options.strict_booleans = true;
    let instance: Value = serde_saphyr::from_str_with_options(text, options).unwrap();
    let validator = jsonschema::draft7::new(&whole()).unwrap();
    validator.validate(&instance).map_err(|error| error.to_string())
}

#[test]
fn good_files_are_valid() {
    for text in GOOD {
        RuleSet::parse("good.yaml", text).unwrap_or_else(|findings| panic!("{findings}"));
        validate(text).unwrap_or_else(|error| panic!("{error} in {text}"));
    }
}

#[test]
fn bad_files_are_not() {
    for text in BAD {
        assert!(RuleSet::parse("bad.yaml", text).is_err(), "the reader takes {text}");
        assert!(validate(text).is_err(), "the schema takes {text}");
    }
}

#[test]
fn everything_that_can_be_written_is_described() {
    let whole = whole();
    for (name, definition) in whole["definitions"].as_object().unwrap() {
        for (field, schema) in definition["properties"].as_object().into_iter().flatten() {
            assert!(schema["description"].is_string(), "{name}.{field}");
        }
    }
}

const GOOD: [&str; 15] = [
    "rules:\n",
    "{ tiers: { from: store, default: free }, rules: [{ id: a, tiers: { free: 5/s } }] }",
    "tiers: { default: free }",
    "rules: [{ id: a, limit: 20/s burst 50 }]",
    "
tiers:
  from: header:X-Tier
  api_keys: { k_1: paid, k_2: 2 }
  default: free
rules:
  - id: 7
    preset: login
  - id: tenants
    match: { path: ['/v1/{tenant}/**', '/v2/{tenant}/**'], method: [GET, post] }
    key: [path:tenant, address]
    tiers: { free: 10/s, paid: [100/s, fixed 10_000/day], staff: unlimited }
    overrides: { 'acme,192.0.2.7': 1000/s }
    stop: true
",
    "
rules:
  - id: conditions
    match:
      method: { not: [GET, HEAD] }
      path: { not: [/health, /ready] }
      host: '*.example.com'
      header: { X-Env: prod, X-Version: 2, X-Debug: { present: false } }
      query: { page: { regex: '[0-9]+' } }
      cookie: { ab: { exact: 'a*b' } }
      claim: { plan: [pro, { glob: 'team-*' }] }
      tier: paid
      user: { present: true }
      api_key: { not: k_1 }
      address: [10.0.0.0/8, '2001:db8::/32']
      descriptor: { remote_address: { present: true } }
    key: global
    limit: unlimited
",
    "
rules:
  - id: one
    key: { address: { ipv4: 24, ipv6: 56 } }
    limits:
      - { name: requests, rate: 20/s, burst: 50 }
      - { name: tokens, limit: 100_000/min, cost: header:X-Tokens, reserve: 2min }
      - { name: money, algorithm: fixed, limit: 500, calendar: month, cost: { from: header:X-Cents, otherwise: 5 } }
      - { name: streams, algorithm: concurrent, slots: 10, ttl: 30s }
    on_store_failure: { local_percent: 20 }
    on_missing_key: refuse
    on_repeated_key: join
    priority: critical
    mode: shadow
  - id: two
    key: [user, header:X-Tenant, route]
    limit: { algorithm: sliding, limit: 300, window: 1min, parts: 6 }
    cost: { paths: { /search: 5, /export/**: 50 }, otherwise: 1 }
    replaces: one
    on_store_failure: { allow_for: 30s }
    store_deadline: 50ms
",
    "
rules:
  - id: model
    limits:
      - { name: tokens, limit: 100_000/min, cost: body:max_tokens, settle: body:usage.total_tokens }
      - { name: sum, limit: 100_000/min, settle: ['body:usage.input_tokens', 'body:usage.output_tokens'], reserve: 2min }
      - name: money
        limit: fixed 5_000_000/day
        cost: { from: body:max_tokens, times: 15, otherwise: 2_000 }
        settle: { body:usage.prompt_tokens: 3, body:usage.completion_tokens: 15, header:X-Extra: 1 }
",
    "
rules:
  - { id: a, adapt: { between: 100/s..1_000/s, on: latency > 200ms } }
  - id: b
    limit: 1000/min burst 50
    adapt: { between: 1/min .. 1000/min, by: aimd, on: [p99 > 1s, errors > 0.5%], every: 10s, increase: 10%, decrease: 50% }
",
    "rules: [{ id: a, shed: { slots: 1_000, ttl: 30s, critical: 100%, high: 90 %, low: '0%' }, status: 529 }]",
    "rules: [{ id: a, limit: shaper 10/s queue 50, cost: hits, on_store_failure: deny, replaces: [] }]",
    "rules: [{ id: a, key: [address, { address: { ipv6: 48 } }], limit: 5/s, cost: 3, mode: off }]",
    "
rules:
  - { id: direct, limit: 1000/s, lease: off }
  - { id: soft, limit: 1000/s, write_behind: { at_most: 5% } }
  - { id: softer, limits: [{ name: s, limit: 1000/s, write_behind: { at_most: 50%, every: 1s } }] }
  - id: leased
    lease: auto
    limits:
      - { name: second, limit: 1000/s, lease: { at_most: 10%, every: 100ms } }
      - { name: day, limit: fixed 1_000_000/day, lease: { at_most: 1% } }
",
    "
rules:
  - { id: smooth, limit: shaper 100/s queue 50, split: 4 }
  - { id: logged, limits: [{ name: hour, limit: log 1000/h, split: 2 }, { name: day, limit: fixed 9000/day }] }
",
    "
regions: { eu: 60%, us: 27.5%, ap: 12.5 }
rules:
  - { id: a, limit: 100/s }
  - { id: b, limit: 100/s, regions: off }
  - { id: c, limit: 100/s, regions: { eu: 50, us: 50% } }
  - { id: d, limit: 100/s, regions: { shares: { eu: 50%, us: 50% }, floor: 2%, moves: allowed } }
",
];

const BAD: [&str; 60] = [
    "{}",
    "[]",
    "rule: []",
    "rules: {}",
    "rules: [1]",
    "rules: [{ limit: 5/s }]",
    "rules: [{ id: a }]",
    "rules: [{ id: 'a b', limit: 5/s }]",
    "rules: [{ id: a, limit: 5/s, limits: [5/s] }]",
    "rules: [{ id: a, limit: 5/s, burst: 5 }]",
    "rules: [{ id: a, limit: [] }]",
    "rules: [{ id: a, limit: 5 }]",
    "rules: [{ id: a, limit: { rate: 5/s, bursts: 5 } }]",
    "rules: [{ id: a, limit: { burst: 5 } }]",
    "rules: [{ id: a, limit: { algorithm: bucket, rate: 5/s } }]",
    "rules: [{ id: a, limit: 5/s, mode: dark }]",
    "rules: [{ id: a, limit: 5/s, stop: 1 }]",
    "rules: [{ id: a, limit: 5/s, cost: -1 }]",
    "rules: [{ id: a, limit: 5/s, cost: { otherwise: 1 } }]",
    "rules: [{ id: a, limit: { limit: 5/s, settle: usage } }]",
    "rules: [{ id: a, limit: { limit: 5/s, settle: [] } }]",
    "rules: [{ id: a, limit: { limit: 5/s, settle: {} } }]",
    "rules: [{ id: a, limit: { limit: 5/s, settle: { 'usage': 5 } } }]",
    "rules: [{ id: a, limit: 5/s, key: ip }]",
    "rules: [{ id: a, limit: 5/s, key: { address: { ipv4: 33 } } }]",
    "rules: [{ id: a, limit: 5/s, match: { paths: /x } }]",
    "rules: [{ id: a, limit: 5/s, match: { path: x } }]",
    "rules: [{ id: a, limit: 5/s, match: { header: prod } }]",
    "rules: [{ id: a, limit: 5/s, match: { host: { is: x } } }]",
    "rules: [{ id: a, limit: 5/s, match: { method: [] } }]",
    "rules: [{ id: a, limit: 5/s, on_store_failure: { local_percent: 0 } }]",
    "rules: [{ id: a, limit: 5/s, store_deadline: 20 }]",
    "tiers: { paid: 5/s }",
    "rules: [{ id: a, adapt: 5 }]",
    "rules: [{ id: a, adapt: { between: 1/s..5/s } }]",
    "rules: [{ id: a, adapt: { on: errors > 5% } }]",
    "rules: [{ id: a, adapt: { between: 5/s, on: errors > 5% } }]",
    "rules: [{ id: a, adapt: { between: 1/s..5/s, on: errors > 5%, by: vegas } }]",
    "rules: [{ id: a, adapt: { between: 1/s..5/s, on: errors > 5% }, shed: { slots: 5 } }]",
    "rules: [{ id: a, shed: 5 }]",
    "rules: [{ id: a, shed: { low: 50% } }]",
    "rules: [{ id: a, shed: { slots: 5, low: 50 } }]",
    "rules: [{ id: a, shed: { slots: 5, high: 101% } }]",
    "rules: [{ id: a, shed: { slots: 5, urgent: 10% } }]",
    "rules: [{ id: a, shed: { slots: 5 }, limit: 5/s }]",
    "rules: [{ id: a, limit: 5/s, lease: on }]",
    "rules: [{ id: a, limit: 5/s, write_behind: {} }]",
    "rules: [{ id: a, limit: 5/s, write_behind: { every: 100ms } }]",
    "rules: [{ id: a, limit: 5/s, write_behind: { at_most: 51% } }]",
    "rules: [{ id: a, limit: 5/s, write_behind: 5% }]",
    "rules: [{ id: a, limit: 5/s, lease: { at_most: 60% } }]",
    "rules: [{ id: a, limit: 5/s, lease: { at_most: 10 } }]",
    "rules: [{ id: a, limit: 5/s, lease: {} }]",
    "rules: [{ id: a, limit: log 500/s, split: 1 }]",
    "rules: [{ id: a, limit: log 500/s, split: 65 }]",
    "rules: [{ id: a, limit: { limit: log 500/s, split: many } }]",
    "{ regions: { eu: 60%, us: much }, rules: [{ id: a, limit: 5/s }] }",
    "{ regions: { eu: 101% }, rules: [{ id: a, limit: 5/s }] }",
    "{ regions: { shares: { eu: 100% }, move: never }, rules: [{ id: a, limit: 5/s }] }",
    "rules: [{ id: a, limit: 5/s, regions: 60% }]",
];
