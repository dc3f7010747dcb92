//! Servers that are killed, hang, or are cut off while they are in use.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tidegate_core::contract::seed::seed;
use tidegate_redis::LinkError;
use tidegate_redis::link::{BreakerState, Cause, Link, ServerStats, Settings};
use tidegate_test_support::redis::{Break, Proxy, Server};
use tidegate_test_support::{eventually, until};
use tokio::time::Instant;

use crate::link::counter_script::{AMPLE, DEADLINE, add, open, open_url, ready};
use crate::link::load::{Caller, Load, SLACK, recovery};

const CALLERS: usize = 32;
/// The guaranteed time. On an idle machine it takes less than one second.
const BACK_WITHIN: Duration = Duration::from_secs(15);

async fn under_load(link: &Arc<Link>) -> Load {
    ready(link).await;
    let load = Load::start(link, CALLERS, "caller");
    answering(link, 500).await;
    load
}

/// Waits until this many more calls were answered.
async fn answering(link: &Link, calls: u64) {
    let before = link.stats().servers[0].counts.answered;
    eventually("some work", async || (link.stats().servers[0].counts.answered > before + calls).then_some(())).await;
}

async fn breaker(link: &Link, open: bool) {
    let is_open = || link.stats().servers[0].breaker != BreakerState::Closed;
    eventually("the breaker's other state", async || (is_open() == open).then_some(())).await;
}

/// Waits until no calls except probes have been sent for this long.
async fn away_for(link: &Link, span: Duration) {
    let is_away = |server: &ServerStats| server.breaker != BreakerState::Closed && server.lasting >= span;
    eventually("an outage that lasts", async || is_away(&link.stats().servers[0]).then_some(())).await;
}

/// The number of calls that have ended, with or without an answer.
fn ended(link: &Link) -> u64 {
    let counts = link.stats().servers[0].counts;
    counts.answered + counts.not_run + counts.unknown
}

/// Checks that no call waits while the breaker is open.
async fn calls_fail_at_once(link: &Link) {
    let (began, mut calls) = (Instant::now(), 0);
    while calls < 1_000 {
        match add(link, "a", DEADLINE).await {
            Err(LinkError::NotRun(_)) => calls += 1,
            other => panic!("{other:?}"),
        }
    }
    let took = began.elapsed();
    println!("1000 calls while the breaker is open: {took:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
}

async fn back(link: &Link, what: &str) {
    let took = recovery(link, what).await;
    assert!(took < BACK_WITHIN, "{what}: {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stands_still_holds_nobody_up() {
    let server = Server::start();
    let link = Arc::new(open_url(&server.url()));
    let load = under_load(&link).await;
    server.freeze();
    breaker(&link, true).await;
    calls_fail_at_once(&link).await;
    // Long enough for the link to close the connection and to fail to open others.
    away_for(&link, Duration::from_secs(5)).await;
    server.thaw();
    back(&link, "frozen for 5 s").await;
    let report = load.stop().await;
    report.nobody_waited("frozen for 5 s");
    report.is_true(|key| server.run::<Option<u64>>(&["GET", key]).unwrap_or(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_freeze_costs_no_connection() {
    let server = Server::start();
    let link = Arc::new(open_url(&server.url()));
    let load = under_load(&link).await;
    server.freeze();
    breaker(&link, true).await;
    server.thaw();
    back(&link, "frozen for a moment").await;
    let report = load.stop().await;
    report.nobody_waited("frozen for a moment");
    report.is_true(|key| server.run::<Option<u64>>(&["GET", key]).unwrap_or(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_is_found_again_when_it_is_back() {
    let mut server = Server::start();
    let link = Arc::new(open_url(&server.url()));
    let load = under_load(&link).await;
    server.kill();
    breaker(&link, true).await;
    calls_fail_at_once(&link).await;
    away_for(&link, Duration::from_secs(1)).await;
    server.restart();
    back(&link, "killed and restarted").await;
    let report = load.stop().await;
    report.nobody_waited("killed and restarted");
    // Every caller had at most one call in flight, so at most one call of each has an unknown outcome.
    assert!(report.callers.iter().all(|caller| caller.unknown_in_time() <= 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_without_pause_is_hardly_noticed() {
    let mut server = Server::start();
    let link = Arc::new(open_url(&server.url()));
    let load = under_load(&link).await;
    server.restart();
    back(&link, "restarted").await;
    load.stop().await.nobody_waited("restarted");
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_clients_do_not_wait() {
    for which in ["ALL", "WRITE"] {
        let server = Server::start();
        let link = Arc::new(open_url(&server.url()));
        let load = under_load(&link).await;
        server.run::<()>(&["CLIENT", "PAUSE", "1500", which]);
        breaker(&link, true).await;
        calls_fail_at_once(&link).await;
        let paused = until("the end of the pause", || {
            let began = Instant::now();
            // A write by the test itself waits as long as the pause lasts.
            server.try_run::<Value>(&["SET", "pause", "over"]).ok().map(|_| began.elapsed())
        });
        println!("paused ({which}) for another {paused:?}");
        back(&link, "CLIENT PAUSE").await;
        let report = load.stop().await;
        report.nobody_waited("CLIENT PAUSE");
        report.is_true(|key| server.run::<Option<u64>>(&["GET", key]).unwrap_or(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_killed_are_made_anew() {
    let server = Server::start();
    let link = Arc::new(open_url(&server.url()));
    let load = under_load(&link).await;
    for _ in 0..10 {
        let before = link.stats().servers[0].counts;
        server.run::<u64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        let more = async || {
            let counts = link.stats().servers[0].counts;
            (counts.connections > before.connections && counts.answered > before.answered + 100).then_some(())
        };
        eventually("another connection", more).await;
    }
    let report = load.stop().await;
    report.nobody_waited("connections killed 10 times");
    report.is_true(|key| server.run::<Option<u64>>(&["GET", key]).unwrap_or(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_or_a_reply_that_is_lost_leaves_doubt_and_is_never_sent_again() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let link = open_url(&proxy.url());
    // Whether the call ran. The link cannot distinguish these cases.
    let cases = [(Break::BeforeRequest, 0), (Break::MidRequest, 0), (Break::BeforeReply, 1), (Break::MidReply, 1)];
    for (breaks, ran) in cases {
        back(&link, "before the cut").await;
        let key = format!("{breaks:?}");
        proxy.once(breaks);
        assert_eq!(add(&link, &key, AMPLE).await, Err(LinkError::Unknown(Cause::ConnectionLost)), "{breaks:?}");
        back(&link, &key).await;
        assert_eq!(server.run::<Option<u64>>(&["GET", &key]).unwrap_or(0), ran, "{breaks:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delay_within_the_deadline_is_borne() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let link = open_url(&proxy.url());
    ready(&link).await;
    proxy.set(Break::Delay(Duration::from_millis(5)));
    let mut answered = 0;
    eventually("answers with a delay of 5 ms", async || {
        answered += u32::from(add(&link, "a", DEADLINE).await.is_ok());
        (answered > 25).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn trouble_on_the_way_holds_nobody_up() {
    for breaks in [Break::Delay(Duration::from_millis(60)), Break::BlackHole, Break::Refuse] {
        let server = Server::start();
        let proxy = Proxy::start(server.port()).await;
        let link = Arc::new(open_url(&proxy.url()));
        let load = under_load(&link).await;
        proxy.set(breaks);
        breaker(&link, true).await;
        away_for(&link, Duration::from_secs(1)).await;
        calls_fail_at_once(&link).await;
        proxy.set(Break::Nothing);
        let what = format!("{breaks:?}");
        back(&link, &what).await;
        let report = load.stop().await;
        report.nobody_waited(&what);
        report.is_true(|key| server.run::<Option<u64>>(&["GET", key]).unwrap_or(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_breaks_each_caller_is_told_the_truth() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let link = Arc::new(open_url(&proxy.url()));
    let load = under_load(&link).await;
    let kinds = [
        Break::BeforeRequest,
        Break::MidRequest,
        Break::BeforeReply,
        Break::MidReply,
        Break::Delay(Duration::from_millis(15)),
        Break::Delay(Duration::from_millis(30)),
        Break::BlackHole,
        Break::Refuse,
    ];
    let mut dice = fastrand::Rng::with_seed(seed(fastrand::u64(..)));
    for round in 0..60 {
        let answered = link.stats().servers[0].counts.answered;
        let breaks = kinds[dice.usize(..kinds.len())];
        if dice.bool() {
            proxy.once(breaks);
        } else {
            proxy.set(breaks);
        }
        let (before, calls) = (ended(&link), dice.u64(1..500));
        eventually("calls that end", async || (ended(&link) > before + calls).then_some(())).await;
        proxy.set(Break::Nothing);
        let more = async || (link.stats().servers[0].counts.answered > answered + 50).then_some(());
        eventually(&format!("answers after round {round}, {breaks:?}"), more).await;
    }
    let report = load.stop().await;
    report.nobody_waited("60 random breaks");
    // Delayed bytes may still arrive.
    drop(proxy);
    report.is_true(|key| server.run::<Option<u64>>(&["GET", key]).unwrap_or(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_peer_is_found_out_while_nobody_calls() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let mut settings = Settings::standalone(&proxy.url()).unwrap();
    settings.heartbeat = Duration::from_millis(50);
    let link = open(settings);
    ready(&link).await;
    proxy.set(Break::BlackHole);
    breaker(&link, true).await;
    proxy.set(Break::Nothing);
    breaker(&link, false).await;
    assert!(add(&link, "a", AMPLE).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_call_at_a_time_is_held_up_by_nothing_either() {
    let server = Server::start();
    let link = open_url(&server.url());
    ready(&link).await;
    server.freeze();
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        let began = Instant::now();
        assert!(add(&link, "a", DEADLINE).await.is_err());
        longest = longest.max(began.elapsed());
    }
    server.thaw();
    println!("longest of 20 calls, one after the other, to a frozen server: {longest:?}");
    assert!(longest < DEADLINE + SLACK);
    back(&link, "one call at a time").await;
}

/// An overloaded server answers as many calls as it can. Calls that would be answered too late are not sent: running them
/// would leave less time for the others, until no call is answered in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_keep_up_serves_whom_it_can() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let mut settings = Settings::standalone(&proxy.url()).unwrap();
    settings.batch.calls = 4;
    let link = Arc::new(open(settings));
    ready(&link).await;
    proxy.set(Break::Delay(Duration::from_millis(5)));
    let load = Load::start(&link, 200, "caller");
    answering(&link, 800).await;
    let opened = link.stats().servers[0].opened;
    proxy.set(Break::Nothing);
    let report = load.stop().await;
    report.nobody_waited("a server that cannot keep up");
    report.is_true(|key| server.run::<Option<u64>>(&["GET", key]).unwrap_or(0));
    println!("the breaker has opened {opened} times");
    // At best four calls every five milliseconds. On a busy machine, an answer may take longer than a deadline, which opens
    // the breaker; otherwise it stays closed.
    let unknown: u64 = report.callers.iter().map(Caller::unknown_in_time).sum();
    assert!(unknown < report.answered(), "{unknown}");
}
