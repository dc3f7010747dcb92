//! The lab's responses, without a browser.

use std::io::{BufRead, BufReader};

use serde_json::Value;
use tidegate_test_support::redis::Server;

use crate::lab::page::Lab;
use crate::support::until;

fn get(url: &str, headers: &[(&str, &str)]) -> http::Response<ureq::Body> {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let request = headers.iter().fold(agent.get(url), |request, (name, value)| request.header(*name, *value));
    request.call().unwrap()
}

fn problem(url: &str, headers: &[(&str, &str)], status: u16) -> Value {
    let mut answer = get(url, headers);
    assert_eq!(answer.status(), status);
    assert_eq!(answer.headers()["content-type"], "application/problem+json");
    serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap()
}

/// The events of a stream: type, id, data.
fn events(url: &str, headers: &[(&str, &str)]) -> impl Iterator<Item = (String, String, Value)> + use<> {
    let answer = get(url, headers);
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let mut lines = BufReader::new(answer.into_body().into_reader()).lines().map_while(Result::ok);
    std::iter::from_fn(move || {
        let (mut kind, mut id, mut data) = (None, None, None);
        for line in lines.by_ref() {
            match line.split_once(": ") {
                Some(("event", value)) => kind = Some(value.to_owned()),
                Some(("id", value)) => id = Some(value.to_owned()),
                Some(("data", value)) => data = Some(serde_json::from_str(value).unwrap()),
                _ if line.is_empty() => return Some((kind?, id?, data?)),
                _ => {}
            }
        }
        None
    })
}

const RUN: &str = "/lab/run?limit=5/s+burst+9&limit=log+7/s&traffic=poisson+400/s&for=10s&seed=3&speed=max";

#[test]
fn a_run_is_told_from_expectation_to_end() {
    let lab = Lab::open();
    let all: Vec<_> = events(&lab.url(RUN), &[]).collect();
    let kinds: Vec<&str> = all.iter().map(|(kind, ..)| kind.as_str()).collect();
    assert_eq!((kinds[0], kinds[1], *kinds.last().unwrap()), ("expect", "decisions", "end"));
    assert_eq!(all[0].2["limits"][1]["limit"], "log 7/s");
    assert_eq!(all[0].2["limits"][0]["expected"]["ceiling"], 58);
    let arrivals: usize = all.iter().filter_map(|(_, _, data)| Some(data["at"].as_array()?.len())).sum();
    let end = &all.last().unwrap().2;
    assert_eq!(end["totals"][0]["arrivals"], arrivals);
    assert_eq!(end["cut"], false);

    // Resuming after any event yields the same remaining events.
    let (_, id, _) = &all[3];
    let rest: Vec<_> = events(&lab.url(RUN), &[("Last-Event-ID", id)]).collect();
    assert_eq!(rest, all[4..]);
    let again: Vec<_> = events(&lab.url(RUN), &[("Last-Event-ID", &all.last().unwrap().1)]).collect();
    assert_eq!(again, all[all.len() - 1..]);
}

#[test]
fn decisions_of_redis_are_counted_on_after_a_reconnect() {
    let redis = Server::start();
    let lab = Lab::with(&["--store", &redis.url()]);
    let run = lab.url("/lab/run?limit=5/day+burst+20&limit=fixed+30/day&traffic=steady+100/s&for=2s&store=redis&run=a");
    let told: Vec<_> = events(&run, &[]).take(8).collect();
    let (_, id, _) = told.last().unwrap();
    let rest: Vec<_> = events(&run, &[("Last-Event-ID", id)]).collect();
    let arrivals: usize = told.iter().chain(&rest).filter_map(|(_, _, data)| Some(data["at"].as_array()?.len())).sum();
    let admitted = |number: usize| {
        let outcomes = told.iter().chain(&rest).filter_map(|(_, _, data)| data["limits"][number]["outcome"].as_array());
        outcomes.flatten().filter(|outcome| **outcome == 1).count()
    };
    let totals = &rest.last().unwrap().2["totals"];
    for number in [0, 1] {
        assert_eq!(totals[number]["arrivals"], arrivals);
        assert_eq!(totals[number]["admitted"], admitted(number), "{totals}");
    }
    // A position in a run in memory is not valid for a run in Redis.
    problem(&run, &[("Last-Event-ID", "5.50000")], 400);
}

#[test]
fn runs_that_are_refused_name_their_fields() {
    let lab = Lab::open();
    let wrong = problem(&lab.url("/lab/run?limit=5/parsec&traffic=steady+5/s&seed=one"), &[], 400);
    let fields: Vec<&str> =
        wrong["errors"].as_array().unwrap().iter().filter_map(|one| one["field"].as_str()).collect();
    assert_eq!(fields, ["limit.0", "seed"]);
    let large = problem(&lab.url("/lab/run?limit=5/s&traffic=steady+5000/s&for=1day&speed=max"), &[], 400);
    assert_eq!(large["errors"][0]["field"], "for");
    problem(&lab.url(RUN), &[("Last-Event-ID", "yesterday")], 400);
    problem(&lab.url(RUN), &[("Sec-Fetch-Site", "cross-site")], 403);
    problem(&lab.url("/lab/passwd"), &[], 404);
    problem(&lab.url("/v1/rules"), &[], 404);
    lab.until_idle();
}

#[test]
fn so_many_runs_at_once_and_whoever_leaves_makes_room() {
    let lab = Lab::open();
    let slow = lab.url("/lab/run?limit=5/s&traffic=steady+5/s&for=30min&speed=1");
    let mut running: Vec<_> = (0..8).map(|_| get(&slow, &[])).collect();
    assert!(running.iter().all(|answer| answer.status() == 200));
    assert_eq!(lab.about()["runs"]["now"], 8);
    assert!(problem(&slow, &[], 503)["detail"].as_str().unwrap().starts_with("8 runs"));
    running.pop();
    until("room for another", || (get(&slow, &[]).status() == 200).then_some(()));
    drop(running);
    lab.until_idle();
}

#[test]
fn the_page_asks_nobody_else() {
    let lab = Lab::open();
    let answer = get(&lab.url("/"), &[]);
    assert_eq!(answer.status(), 200);
    let policy = answer.headers()["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("connect-src 'self'"), "{policy}");
    let module = get(&lab.url("/lab/main.js"), &[]);
    assert_eq!(module.headers()["content-type"], "text/javascript; charset=utf-8");
}

#[test]
fn the_lab_answers_for_this_machine_alone() {
    let lab = Lab::open();
    for path in ["/", "/lab/", "/lab/about", RUN] {
        let told = problem(&lab.url(path), &[("host", "rebound.example")], 421);
        assert!(told["detail"].as_str().unwrap().contains("localhost"), "{told}");
    }
    assert_eq!(get(&lab.url("/lab/about"), &[("host", "localhost:1")]).status(), 200);
}
