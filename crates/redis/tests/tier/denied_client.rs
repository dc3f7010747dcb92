//! A blocked client that continues to send requests; calls are counted by the real server.

use std::sync::Arc;

use tidegate_redis::tier::Tier;
use tidegate_redis::{RedisStore, Settings};
use tidegate_rules::{DecidedBy, Limiter, Request, RuleSet};
use tidegate_test_support::redis::Server;
use tokio::task::JoinSet;
use tokio::time::Instant;

const REQUESTS: u64 = 100_000;
const LIMIT: u64 = 10;

/// The number of script calls, according to the server.
pub(crate) fn calls(server: &Server) -> u64 {
    let stats: String = server.run(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
    line.and_then(|line| line.split(['=', ',']).nth(1)).map_or(0, |calls| calls.parse().unwrap())
}

/// Returns the number of admissions, the number of calls, and the duration in seconds.
async fn flood(callers: u64) -> (u64, u64, f64) {
    let server = Server::start();
    let store = RedisStore::open(Settings::standalone(&server.url()).unwrap()).unwrap();
    let rules = "rules: [{ id: login, key: user, limit: log 10/h, on_store_failure: deny }]";
    let limiter = Arc::new(Limiter::new(RuleSet::parse("rules.yaml", rules).unwrap().rules, Tier::new(store)));
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    for _ in 0..callers {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            let request = Request::new("POST", "/login").user("mallory");
            let mut admitted = 0;
            for _ in 0..REQUESTS / callers {
                let ruling = limiter.check(&request).await;
                admitted += u64::from(ruling.is_allowed() && ruling.ruled[0].by == DecidedBy::Store);
                tokio::task::yield_now().await;
            }
            admitted
        });
    }
    let admitted = tasks.join_all().await.into_iter().sum();
    let (calls, seconds) = (calls(&server), began.elapsed().as_secs_f64());
    let stats = limiter.store().stats();
    println!("{callers} callers: {calls} calls reached Redis in {seconds:.2} s, {} requests were spared", stats.spared);
    assert_eq!(stats.asked + stats.spared, REQUESTS);
    (admitted, calls, seconds)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_requests_reach_redis_a_handful_of_times() {
    let (admitted, calls, seconds) = flood(1).await;
    // The admissions, plus one denial per second. Doubled, for a busy machine.
    assert!(admitted <= LIMIT && calls as f64 <= 2.0 * (LIMIT as f64 + 1.0 + seconds), "{calls} calls");
}

#[tokio::test(flavor = "multi_thread")]
async fn however_many_ask_at_once() {
    let callers = 50;
    let (admitted, calls, seconds) = flood(callers).await;
    // Each caller may ask before it is known what another was answered.
    let at_most = LIMIT as f64 + callers as f64 * (2.0 + seconds);
    assert!(admitted <= LIMIT && calls as f64 <= at_most, "{calls} calls");
}
