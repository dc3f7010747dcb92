//! A key that takes most of the calls to Redis.
#![expect(clippy::disallowed_methods, reason = "a real program, in real time")]

use std::time::{Duration, Instant};

use tidegate_test_support::redis::Server as Redis;

use crate::serve::leased_nodes::Client;
use crate::support::{Server, until};

/// The program looks for hot keys once in so much time.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

#[test]
fn a_hot_key_is_counted_and_reported_once() {
    const RULES: &str = "rules: [{ id: exports, limit: log 100000/min }]";
    let redis = Redis::start();
    let args = ["--rules", "rules.yaml", "--redis", &redis.url(), "--admin-open-metrics", "true"];
    let server = Server::start(&[("rules.yaml", RULES)], &args);
    let client = Client::of(&server);
    let ask = || {
        for _ in 0..50 {
            assert_eq!(client.ask(), Some(true));
        }
    };
    let metrics = format!("http://{}/metrics", server.listener("Admin"));
    let is_counted = || server.get_from(&metrics, &[]).body.contains("\ntidegate_store_hot_keys 1\n");
    let lines = || server.log().lines().filter(|line| line.contains("hot key:")).map(str::to_owned).collect::<Vec<_>>();
    until("a hot key", || {
        ask();
        (is_counted() && !lines().is_empty()).then_some(())
    });
    // It is still hot at the next look.
    let reported = Instant::now();
    until("another report", || {
        ask();
        (reported.elapsed() > REPORT_INTERVAL + REPORT_INTERVAL / 5).then_some(())
    });
    assert!(is_counted());
    let lines = lines();
    assert!(lines.len() == 1 && lines[0].contains("exports"), "{lines:?}");
}
