//! Calls to a healthy server.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{ManualClock, Timestamp};
use tidegate_redis::link::{
    BreakerState, Cause, ErrorCode, Link, LinkError, Login, Settings, SettingsError, Tls, Unreachable,
};
use tidegate_test_support::eventually;
use tidegate_test_support::redis::{Break, Flavour, Proxy, Server, TlsServer};
use tokio::task::JoinSet;

use crate::link::counter_script::{AMPLE, DEADLINE, SCRIPT, add, frame, open, open_url, peek, ready, unreachable};
use crate::link::load::Load;

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_answered_by_any_kind_of_server() {
    for flavour in Flavour::present() {
        let server = Server::start_as(flavour, "");
        let link = open_url(&server.url());
        assert_eq!(add(&link, "a", AMPLE).await, Ok(1));
        assert_eq!(add(&link, "a", AMPLE).await, Ok(2));
        assert_eq!(link.call(frame(&["b", "c"], "add"), AMPLE).await, Ok(b"1".to_vec()));
        assert_eq!(server.run::<String>(&["GET", "a"]), "2");
        assert_eq!(server.run::<String>(&["GET", "b"]), "1");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unix_socket_does_too() {
    let server = Server::start();
    let link = open_url(&format!("unix://{}", server.unix_socket().display()));
    assert_eq!(add(&link, "a", AMPLE).await, Ok(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_can_be_chosen() {
    let server = Server::start();
    let link = open_url(&format!("{}/3", server.url()));
    assert_eq!(add(&link, "a", AMPLE).await, Ok(1));
    assert!(server.run::<String>(&["INFO", "keyspace"]).contains("db3:keys=1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_made_together_travel_together() {
    let server = Server::start();
    let link = Arc::new(open_url(&server.url()));
    ready(&link).await;
    let before = link.stats().servers[0].counts;
    let mut calls = JoinSet::new();
    for number in 0..1_000 {
        let link = link.clone();
        calls.spawn(async move { (number, add(&link, &format!("k{}", number % 10), AMPLE).await) });
    }
    let mut seen = vec![Vec::new(); 10];
    for (number, value) in calls.join_all().await {
        seen[number % 10].push(value.unwrap());
    }
    for mut values in seen {
        values.sort_unstable();
        assert_eq!(values, (1..=100).collect::<Vec<_>>(), "everyone got an answer of their own");
    }
    let counts = link.stats().servers[0].counts;
    let batches = counts.batches - before.batches;
    println!("1000 calls in {batches} batches");
    assert!(batches < 500, "{batches} batches");
    assert_eq!(counts.answered - before.answered, 1_000);
    assert_eq!((counts.not_run, counts.unknown, counts.connections), (before.not_run, 0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_has_bounds() {
    let server = Server::start();
    let mut settings = Settings::standalone(&server.url()).unwrap();
    settings.batch.calls = 4;
    settings.batch.bytes = 1_000;
    let link = Arc::new(open(settings));
    ready(&link).await;
    let before = link.stats().servers[0].counts.batches;
    let mut calls = JoinSet::new();
    for size in (0..100).map(|number| if number % 10 == 0 { 5_000 } else { 10 }) {
        let link = link.clone();
        let key = "x".repeat(size);
        calls.spawn(async move { add(&link, &key, AMPLE).await });
    }
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    let batches = link.stats().servers[0].counts.batches - before;
    assert!(batches >= 25, "{batches} batches");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_as_large_as_they_may_be_come_whole() {
    let server = Server::start();
    let mut settings = Settings::standalone(&server.url()).unwrap();
    settings.answer_bytes = 1_000_100;
    let link = open(settings);
    let large = "x".repeat(1_000_000);
    server.run::<()>(&["SET", "large", &large]);
    let answers = tokio::join!(peek(&link, "large", AMPLE), peek(&link, "none", AMPLE), peek(&link, "large", AMPLE));
    assert_eq!(answers.0.unwrap(), large.as_bytes());
    assert_eq!(answers.1.unwrap(), b"false");
    assert_eq!(answers.2.unwrap(), large.as_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_script_is_told_the_time_if_there_is_a_clock() {
    let server = Server::start();
    let time = async |link: Link| link.call(frame(&[], "time"), AMPLE).await.unwrap();
    assert_eq!(time(open_url(&server.url())).await, b"", "it is to ask the server");
    let settings = Settings::standalone(&server.url()).unwrap();
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let link = Link::open_with_clock(settings, SCRIPT, clock).unwrap();
    assert_eq!(time(link).await, b"1700000000000000");
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_and_users_are_spoken_for() {
    let server = TlsServer::start_with(
        "user limits on >secret ~limit:* +evalsha +script|load +ping +client|setname +get +incr\n",
    );
    let mut settings = Settings::standalone(&server.url()).unwrap();
    // A handshake may be slow on a busy machine.
    settings.connect_timeout = AMPLE;
    settings.login = Login { user: Some("limits".into()), password: Some("secret".into()), database: 0 };
    settings.tls = Some(Tls {
        authorities: Some(server.authority.certificate().into()),
        identity: Some((server.client.certificate.clone().into(), server.client.key.clone().into())),
    });
    let link = open(settings.clone());
    assert_eq!(add(&link, "limit:a", AMPLE).await, Ok(1));
    let clients: String = server.server.run(&["CLIENT", "LIST"]);
    assert!(clients.contains("name=tidegate") && clients.contains("user=limits"), "{clients}");

    let mut stranger = settings.clone();
    stranger.tls = Some(Tls { authorities: None, identity: None });
    let why = unreachable(&open(stranger)).await;
    assert!(why.to_string().contains("certificate"), "{why}");

    let mut wrong = settings;
    wrong.login.password = Some("guess".into());
    let why = unreachable(&open(wrong)).await;
    assert!(matches!(&why, Unreachable::Refused(fault) if fault.code == ErrorCode::WrongPass), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn past_the_bound_of_the_queue_calls_fail_at_once() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let mut settings = Settings::standalone(&proxy.url()).unwrap();
    settings.queue = 10;
    settings.batch.in_flight = 1;
    // No timeout may occur while the test checks.
    settings.connect_timeout = Duration::from_secs(30);
    let link = Arc::new(open(settings));
    ready(&link).await;
    proxy.set(Break::BlackHole);
    let mut calls = JoinSet::new();
    let call = |calls: &mut JoinSet<_>| {
        let link = link.clone();
        calls.spawn(async move { add(&link, "a", Duration::from_secs(10)).await });
    };
    let batches = link.stats().servers[0].counts.batches;
    call(&mut calls);
    eventually("a batch on its way", async || (link.stats().servers[0].counts.batches > batches).then_some(())).await;
    for _ in 0..10 {
        call(&mut calls);
    }
    eventually("a full queue", async || (link.stats().servers[0].waiting == 10).then_some(())).await;
    assert_eq!(add(&link, "a", AMPLE).await, Err(LinkError::NotRun(Cause::QueueFull)));
    proxy.set(Break::Nothing);
    assert!(calls.join_all().await.iter().all(Result::is_ok), "those that waited have their turn");
    assert_eq!(server.run::<u64>(&["GET", "a"]), 11);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_before_its_turn_never_runs() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let mut settings = Settings::standalone(&proxy.url()).unwrap();
    settings.batch.in_flight = 1;
    settings.connect_timeout = Duration::from_secs(30);
    let link = Arc::new(open(settings));
    ready(&link).await;
    proxy.set(Break::BlackHole);
    let mut calls = JoinSet::new();
    let batches = link.stats().servers[0].counts.batches;
    for key in ["first", "second", "third"] {
        let call = link.clone();
        calls.spawn(async move { add(&call, key, Duration::from_secs(10)).await });
        if key == "first" {
            let sent = async || (link.stats().servers[0].counts.batches > batches).then_some(());
            eventually("a batch on its way", sent).await;
        }
    }
    eventually("a queue", async || (link.stats().servers[0].waiting == 2).then_some(())).await;
    calls.abort_all();
    while calls.join_next().await.is_some() {}
    proxy.set(Break::Nothing);
    assert_eq!(add(&link, "fourth", AMPLE).await, Ok(1));
    assert_eq!(server.run::<u64>(&["GET", "first"]), 1, "it was on its way");
    assert_eq!(server.run::<Option<u64>>(&["GET", "second"]), None);
    assert_eq!(server.run::<Option<u64>>(&["GET", "third"]), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_time_is_not_sent() {
    let server = Server::start();
    let link = open_url(&server.url());
    ready(&link).await;
    assert_eq!(add(&link, "a", Duration::ZERO).await, Err(LinkError::NotRun(Cause::Deadline)));
    assert_eq!(add(&link, "b", Duration::MAX).await, Ok(1), "and one with all the time there is does not overflow");
    assert_eq!(server.run::<Option<u64>>(&["GET", "a"]), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_comes_before_its_server() {
    let mut server = Server::start();
    server.kill();
    let link = open_url(&server.url());
    let error = eventually("a call that fails", async || add(&link, "a", DEADLINE).await.err()).await;
    assert!(matches!(error, LinkError::NotRun(_)), "{error}");
    assert_ne!(link.stats().servers[0].breaker, BreakerState::Closed);
    server.restart();
    eventually("an answer", async || add(&link, "a", DEADLINE).await.ok()).await;
    let stats = &link.stats().servers[0];
    assert_eq!((stats.breaker, stats.connected), (BreakerState::Closed, true));
    assert!(stats.opened >= 1 && stats.last_failure.is_some(), "{stats:?}");
}

#[test]
fn a_link_needs_a_runtime_and_settings_that_make_sense() {
    let settings = Settings::standalone("redis://127.0.0.1:1").unwrap();
    assert_eq!(Link::open(settings.clone(), SCRIPT).err(), Some(SettingsError::NoRuntime));
    let mut wrong = settings;
    wrong.queue = 0;
    assert!(matches!(Link::open(wrong, SCRIPT), Err(SettingsError::OutOfRange { .. })));
}

#[test]
fn a_link_whose_runtime_has_ended_says_so() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let link = runtime.block_on(async {
        let link = open_url(&server.url());
        ready(&link).await;
        link
    });
    drop(runtime);
    let another = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result = another.block_on(add(&link, "a", AMPLE));
    assert_eq!(result, Err(LinkError::NotRun(Cause::Closed)));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_callers_are_all_served() {
    let server = Server::start();
    let link = Arc::new(open_url(&server.url()));
    ready(&link).await;
    let load = Load::start(&link, 64, "caller");
    eventually("some work", async || (link.stats().servers[0].counts.answered > 20_000).then_some(())).await;
    let report = load.stop().await;
    report.nobody_waited("a server that is healthy");
    report.is_true(|key| server.run(&["GET", key]));
}

#[tokio::test]
async fn one_thread_is_enough() {
    let server = Server::start();
    let link = open_url(&server.url());
    for expected in 1..100 {
        assert_eq!(add(&link, "a", AMPLE).await, Ok(expected));
    }
}
