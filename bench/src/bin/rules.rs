//! Measures finding and evaluating the rules that match a request, as the number of rules grows.
//!
//! Compared with Limitador's library in memory, with equivalent rules in its language, and with fewer of Tidegate's own
//! rules: the cost of a request should depend on the rules that match it, not on the rules that exist.

#![allow(missing_docs, reason = "a program has no users of its items")]

use std::collections::HashMap;
use std::fmt::Write;
use std::hint::black_box;
use std::time::Instant;

use limitador::RateLimiter;
use limitador::limit::{Context, Limit};
use tidegate_bench::report::{Report, Row};
use tidegate_bench::sample::{median, quiet_rounds};
use tidegate_core::MemoryStore;
use tidegate_rules::{Limiter, Request, RuleSet};

/// A limit that is never reached: both sides count, and neither denies.
const PLENTY: u64 = 1_000_000_000;
const ROUNDS: usize = 5;

/// Four rules that match every measured request, and one for each of this many services.
fn our_rules(services: usize) -> String {
    let mut text = format!(
        "rules:\n\
         - {{ id: user, key: user, limit: fixed {PLENTY}/h }}\n\
         - {{ id: tenant, match: {{ header: {{ X-Env: prod }} }}, key: 'header:X-Tenant', limit: fixed {PLENTY}/h }}\n\
         - {{ id: network, match: {{ address: 203.0.113.0/24 }}, key: address, limit: fixed {PLENTY}/h }}\n\
         - {{ id: reads, match: {{ method: GET }}, limit: fixed {PLENTY}/h }}\n"
    );
    for service in 0..services {
        let path = format!("/svc{service}/items/{{item}}");
        writeln!(text, "- {{ id: svc{service}, match: {{ path: '{path}', header: {{ X-Env: prod }} }}, key: user, limit: fixed {PLENTY}/h }}")
            .expect("text can be written to");
    }
    text
}

fn our_request(services: usize) -> Request {
    Request::new("GET", &format!("/svc{}/items/42", services / 2))
        .header("X-Env", "prod")
        .header("X-Tenant", "acme")
        .user("alice")
        .address("203.0.113.7".parse().expect("an address"))
}

/// Equivalent limits in Limitador's language. It supports neither paths nor networks, so both are compared as text sent
/// by a proxy, which is to its advantage.
fn their_limits(services: usize) -> RateLimiter {
    let limiter = RateLimiter::new(10_000);
    let add = |conditions: &[String], variable: &str| {
        let conditions =
            conditions.iter().map(|text| text.as_str().try_into().expect("a condition")).collect::<Vec<_>>();
        let limit = Limit::new("bench", PLENTY, 3_600, conditions, vec![variable.try_into().expect("a variable")]);
        limiter.add_limit(limit);
    };
    add(&[], "user");
    add(&["env == 'prod'".to_owned()], "tenant");
    add(&["network == '203.0.113.0/24'".to_owned()], "address");
    add(&["method == 'GET'".to_owned()], "method");
    for service in 0..services {
        add(&[format!("route == '/svc{service}/items'"), "env == 'prod'".to_owned()], "user");
    }
    limiter
}

fn their_request(services: usize) -> Context<'static> {
    let route = format!("/svc{}/items", services / 2);
    let facts = [
        ("method", "GET"),
        ("route", &route),
        ("env", "prod"),
        ("tenant", "acme"),
        ("user", "alice"),
        ("network", "203.0.113.0/24"),
        ("address", "203.0.113.7"),
    ];
    facts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<HashMap<_, _>>().into()
}

/// Nanoseconds per call, the median of several rounds.
fn nanos(calls: u32, mut call: impl FnMut()) -> f64 {
    for _ in 0..calls / 10 {
        call();
    }
    let rounds = quiet_rounds(ROUNDS, |_| {
        let start = Instant::now();
        for _ in 0..calls {
            call();
        }
        start.elapsed().as_nanos() as f64 / f64::from(calls)
    });
    median(rounds)
}

fn main() {
    let mut report = Report::default();
    let mut matching = Vec::new();
    for services in [10, 100, 1_000, 10_000] {
        let loaded = RuleSet::parse("rules.yaml", &our_rules(services)).unwrap_or_else(|findings| panic!("{findings}"));
        let (rules, request) = (loaded.rules, our_request(services));
        assert_eq!(rules.matching(&request).rules.len(), 5, "five rules govern the request");
        let time = nanos(300_000, || {
            black_box(rules.matching(black_box(&request)).rules.len());
        });
        let allocations = allocation_counter::measure(|| {
            black_box(rules.matching(&request).rules.len());
        });
        matching.push((services, time, allocations.count_total));
    }
    let few = matching[0].1;
    let row = |(services, time, _): &(usize, f64, u64)| {
        let what = format!("matching among {services} rules, 5 match");
        Row::smaller_is_better(what, *time, "ours among 10", few, "ns").with_id(&format!("rules/matching-{services}"))
    };
    report.section(
        "Finding the rules of a request (at most 1000 ns; a ratio of at least 0.33)",
        matching.iter().map(row).collect(),
    );
    let row = |(services, _, count): &(usize, f64, u64)| {
        Row::smaller_is_better(
            format!("allocations among {services} rules"),
            *count as f64,
            "keys that need one",
            2.0,
            "",
        )
    };
    report.section("Allocations of one matching", matching.iter().map(row).collect());

    let mut deciding = Vec::new();
    for services in [10, 100, 1_000] {
        let loaded = RuleSet::parse("rules.yaml", &our_rules(services)).unwrap_or_else(|findings| panic!("{findings}"));
        let (limiter, request) = (Limiter::new(loaded.rules, MemoryStore::new()), our_request(services));
        let ours = nanos(200_000, || {
            assert!(limiter.check_now(black_box(&request)).is_allowed());
        });
        let (limits, context) = (their_limits(services), their_request(services));
        let namespace = "bench".into();
        let theirs = nanos(2_000_000 / services as u32 / 10, || {
            let result = limits.check_rate_limited_and_update(&namespace, black_box(&context), 1);
            assert!(!result.expect("memory has room").limited);
        });
        let what = format!("deciding among {services} rules, 5 match");
        let row = Row::smaller_is_better(what, ours, "limitador", theirs, "ns");
        deciding.push(row.with_id(&format!("rules/deciding-{services}")));
    }
    report.section("Deciding a request by its rules", deciding);
    report.write("rules");
}
