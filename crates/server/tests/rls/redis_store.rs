//! State in a real Redis, which counts the calls.

use std::time::Duration;

use tidegate::rls::Settings;
use tidegate_redis::RedisStore;
use tidegate_rules::{Charging, DomainTerms};
use tidegate_test_support::redis::Server as Redis;

use super::support::{Served, request, told, with_hits};

const LIMITS: &str = "
domain: edge
descriptors:
  - { key: user, rate_limit: { unit: day, requests_per_unit: 3 } }
  - { key: path, rate_limit: { unit: day, requests_per_unit: 10 } }
  - { key: dark, shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: darker, shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 10 } }
  - { key: quota, quota_mode: true, rate_limit: { unit: day, requests_per_unit: 2 } }
";

const OWN_RULES: &str = "
rules:
  - { id: counts, key: user, limit: fixed 3/day, on_store_failure: deny }
  - { id: dark, key: user, limit: log 1/day, mode: shadow, on_store_failure: deny }
  - { id: darker, limit: fixed 10/day, mode: shadow, on_store_failure: deny }
";

const ALL: [&str; 5] = ["user=a", "path=/", "dark=a", "darker=a", "quota=a"];

async fn served(redis: &Redis, rules: &str, charging: Charging) -> Served {
    let mut store = tidegate_redis::Settings::standalone(&redis.url()).unwrap();
    store.deadline = Duration::from_secs(60);
    let terms = DomainTerms { charging, ..DomainTerms::default() };
    let settings = Settings { terms, ..Settings::default() };
    Served::with_store(rules, settings, RedisStore::open(store).unwrap().into()).await
}

async fn asked(served: &Served, domain: &str, descriptors: &[&str]) -> String {
    told(&served.ask(request(domain, descriptors)).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn descriptors_are_one_question_whatever_is_in_the_shadow() {
    let redis = Redis::start();
    let served = served(&redis, LIMITS, Charging::Together).await;
    // The first call may have to load the script.
    assert_eq!(asked(&served, "edge", &ALL).await, "OK: OK 2, OK 9, OK 0, OK 9, OK 1");
    let before = redis.script_calls();
    assert_eq!(asked(&served, "edge", &ALL).await, "OK: OK 1, OK 8, OK 0, OK 8, OK 0");
    assert_eq!(redis.script_calls() - before, 1, "allowed, and over what is in the shadow");
    assert_eq!(asked(&served, "edge", &ALL).await, "OK: OK 0, OK 7, OK 0, OK 7, OVER_LIMIT 0");
    assert_eq!(redis.script_calls() - before, 2, "over what tells and does not deny");
    // Over the limit: nothing else is charged, and descriptors in shadow mode are only read.
    assert_eq!(asked(&served, "edge", &ALL).await, "OVER_LIMIT: OVER_LIMIT 0, OK 7, OK 0, OK 6, OVER_LIMIT 0");
    assert_eq!(redis.script_calls() - before, 3, "denied");
    let checked = ALL.map(|asked| with_hits(asked, 0)).to_vec();
    let mut request = request("edge", &[]);
    request.descriptors = checked;
    let answer = told(&served.ask(request).await);
    assert_eq!(answer, "OVER_LIMIT: OVER_LIMIT 0, OK 7, OK 0, OK 7, OVER_LIMIT 0");
    assert_eq!(redis.script_calls() - before, 4, "only asked about");
}

#[tokio::test(flavor = "multi_thread")]
async fn descriptors_that_are_charged_one_by_one_are_still_one_question() {
    let redis = Redis::start();
    let served = served(&redis, LIMITS, Charging::Always).await;
    assert_eq!(asked(&served, "edge", &ALL[..4]).await, "OK: OK 2, OK 9, OK 0, OK 9");
    let before = redis.script_calls();
    assert_eq!(asked(&served, "edge", &["user=a", "path=/", "darker=a"]).await, "OK: OK 1, OK 8, OK 8");
    assert_eq!(redis.script_calls() - before, 1, "allowed");
    // A repeated key is charged twice, in order.
    assert_eq!(asked(&served, "edge", &["user=b", "user=b", "path=/"]).await, "OK: OK 2, OK 1, OK 7");
    assert_eq!(redis.script_calls() - before, 2, "the same key twice");
    assert_eq!(asked(&served, "edge", &["user=b", "path=/"]).await, "OK: OK 0, OK 6");
    // A denied descriptor is charged too, in a separate call, and so are the others.
    let before = redis.script_calls();
    let answer = asked(&served, "edge", &["user=b", "path=/", "darker=a"]).await;
    assert_eq!(answer, "OVER_LIMIT: OVER_LIMIT 0, OK 5, OK 7");
    assert_eq!(redis.script_calls() - before, 2, "denied");
}

#[tokio::test(flavor = "multi_thread")]
async fn our_own_rules_are_one_question_too() {
    let redis = Redis::start();
    let served = served(&redis, OWN_RULES, Charging::Together).await;
    let ask = || asked(&served, "tidegate", &["user=a"]);
    assert_eq!(ask().await, "OK: OK 2");
    let before = redis.script_calls();
    assert_eq!(ask().await, "OK: OK 1");
    assert_eq!(redis.script_calls() - before, 1);
    // Two descriptors that match the same rules.
    assert_eq!(asked(&served, "tidegate", &["user=a", "user=b"]).await, "OK: OK 0, OK 2");
    assert_eq!(redis.script_calls() - before, 2);
}
