//! Measures how many lines of an access log are replayed per second, on one core.
//!
//! Reading, parsing, matching, deciding and counting, from memory: the time of a disk is not included. The log is
//! synthetic: twenty thousand clients of different popularity, on a site with a few paths; about a tenth of the
//! requests are denied. The target is a million lines a second in the combined format under one rule. No peer does the
//! same, so the rows are compared with the target.

#![allow(missing_docs, reason = "a program has no users of its items")]

use std::fmt::Write;
use std::io::Cursor;
use std::sync::Arc;
use std::time::Instant;

use tidegate_bench::report::{Report, Row};
use tidegate_bench::sample::{median, quiet_rounds};
use tidegate_bench::threads::alone;
use tidegate_core::Micros;
use tidegate_lab::replay::{Input, Replay, ReplaySettings, SuggestionSettings};
use tidegate_lab::traffic::Traffic;
use tidegate_rules::RuleSet;

const LINES: usize = 1_000_000;
const AIM: f64 = 1_000_000.0;
const ROUNDS: usize = 3;

const ONE_RULE: &str = "rules: [{ id: everyone, key: address, limit: 2/s burst 200 }]";
const THREE_RULES: &str = "\
rules:
  - { id: everyone, key: address, limit: 2/s burst 200 }
  - { id: login, match: { method: POST, path: /login }, key: address, limit: log 5/min }
  - { id: items, match: { path: '/items/{item}' }, key: [address, route], limit: sliding 300/min }
";

/// A log whose lines are written by `line` from the client's number, the second, the microsecond, and the line number.
fn log(line: impl Fn(&mut String, u32, u64, u64, usize)) -> Arc<[u8]> {
    let traffic: Traffic = "poisson 2000/s clients 20_000 zipf 0.9".parse().expect("a model of traffic");
    let mut text = String::with_capacity(LINES * 200);
    for (arrival, number) in traffic.arrivals(Micros::from_secs(86_400), 1).take(LINES).zip(0..) {
        let micros = arrival.at.as_micros();
        line(&mut text, arrival.client, micros / 1_000_000, micros % 1_000_000, number);
    }
    text.into_bytes().into()
}

fn address(client: u32) -> String {
    let [_, b, c, d] = client.to_be_bytes();
    format!("10.{b}.{c}.{d}")
}

const AGENT: &str = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0";

fn request(number: usize) -> (&'static str, String) {
    match number % 8 {
        0 => ("POST", "/login".to_owned()),
        1 => ("GET", "/search?q=tea&page=2".to_owned()),
        n => ("GET", format!("/items/{}", number / n % 10_000)),
    }
}

fn combined() -> Arc<[u8]> {
    log(|text, client, second, _, number| {
        let (method, target) = request(number);
        let time = second % 86_400;
        let (hour, minute, second) = (time / 3_600, time / 60 % 60, time % 60);
        writeln!(
            text,
            "{} - - [01/Jan/2026:{hour:02}:{minute:02}:{second:02} +0000] \"{method} {target} HTTP/1.1\" 200 5316 \"https://shop.example/\" \"{AGENT}\"",
            address(client)
        )
        .expect("text can be written to");
    })
}

fn nginx_json() -> Arc<[u8]> {
    log(|text, client, second, micros, number| {
        let (method, target) = request(number);
        writeln!(
            text,
            "{{\"msec\":\"{second}.{:03}\",\"remote_addr\":\"{}\",\"request_method\":\"{method}\",\"request_uri\":\"{target}\",\"host\":\"shop.example\",\"status\":\"200\",\"request_time\":\"0.004\",\"http_user_agent\":\"{AGENT}\"}}",
            micros / 1_000,
            address(client)
        )
        .expect("text can be written to");
    })
}

fn own_csv() -> Arc<[u8]> {
    let lines = log(|text, client, second, micros, number| {
        let (method, target) = request(number);
        writeln!(text, "{second}.{micros:06},{},{method},{target}", address(client)).expect("text can be written to");
    });
    [b"time,address,method,path\n", &lines[..]].concat().into()
}

/// A log that is read without copying it first.
struct Shared(Arc<[u8]>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Lines per second, the median of several rounds.
fn lines_a_second(log: &Arc<[u8]>, rules: &str, settings: &ReplaySettings) -> f64 {
    let rounds = quiet_rounds(ROUNDS, |_| {
        alone(|| {
            let loaded = RuleSet::parse("rules.yaml", rules).unwrap_or_else(|findings| panic!("{findings}"));
            let mut replay = Replay::with(loaded.rules, None, settings);
            let input = Input::from_reader("log", Cursor::new(Shared(Arc::clone(log)))).expect("memory can be read");
            let began = Instant::now();
            replay.read(input, |_| {}).expect("it is a log");
            let took = began.elapsed().as_secs_f64();
            let outcome = replay.report(10).outcome;
            let denied = outcome.denied as f64 / outcome.requests as f64;
            assert_eq!(outcome.requests, LINES as u64, "every line is a request");
            assert!((0.02..0.4).contains(&denied), "some are denied, and most are not: {denied}");
            LINES as f64 / took
        })
    });
    median(rounds)
}

fn main() {
    let mut report = Report::default();
    let plain = ReplaySettings::default();
    let suggesting = ReplaySettings {
        suggest: Some(SuggestionSettings { share: 0.999, within: Micros::from_secs(60), only: false }),
        ..plain
    };
    let combined = combined();
    let mut rows = Vec::new();
    let mut row = |what: &str, log: &Arc<[u8]>, rules: &str, settings: &ReplaySettings| {
        let speed = lines_a_second(log, rules, settings);
        rows.push(Row::larger_is_better(what, speed, "aim", AIM, "lines/s"));
    };
    row("combined, one rule", &combined, ONE_RULE, &plain);
    row("combined, three rules", &combined, THREE_RULES, &plain);
    row("combined, one rule, with a suggestion", &combined, ONE_RULE, &suggesting);
    row("nginx JSON, one rule", &nginx_json(), ONE_RULE, &plain);
    row("our own table, one rule", &own_csv(), ONE_RULE, &plain);
    rows[0].id = Some("replay/one-rule".to_owned());
    rows[1].id = Some("replay/three-rules".to_owned());
    report.section("Replaying an access log on one core", rows);
    report.write("replay");
}
