//! Servers that answer with errors of different kinds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::Value;
use tidegate_redis::LinkError;
use tidegate_redis::link::{BreakerState, Cause, ErrorCode, Link, Login, ServerError, Settings, Unreachable};
use tidegate_test_support::redis::{Server, run_on};
use tidegate_test_support::{eventually, until};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::link::counter_script::{AMPLE, DEADLINE, add, frame, open, open_url, peek, ready, unreachable};
use crate::link::load::{Load, SLACK, recovery};

/// A script that does not catch errors of its commands.
const CARELESS: &str = r"
local answers = {}
for i = 2, #ARGV do answers[i - 1] = tostring(redis.call('INCR', KEYS[i - 1])) end
return answers
";

/// The server's error for a call that certainly did not run.
async fn refusal(link: &Link, key: &str) -> ErrorCode {
    match add(link, key, AMPLE).await {
        Err(LinkError::NotRun(Cause::Refused(fault))) => fault.code,
        other => panic!("{other:?}"),
    }
}

fn is_open(link: &Link) -> bool {
    link.stats().servers[0].breaker != BreakerState::Closed
}

#[tokio::test(flavor = "multi_thread")]
async fn noscript_the_script_is_loaded_and_the_call_sent_again_in_the_same_deadline() {
    let server = Server::start();
    let link = open_url(&server.url());
    ready(&link).await;
    server.run::<()>(&["SCRIPT", "FLUSH"]);
    let began = Instant::now();
    assert_eq!(add(&link, "a", AMPLE).await, Ok(1));
    println!("a call that finds no script: {:?}", began.elapsed());
    let counts = link.stats().servers[0].counts;
    assert_eq!((counts.resent, counts.connections), (1, 1));
    assert_eq!(add(&link, "a", AMPLE).await, Ok(2));
    assert_eq!(link.stats().servers[0].counts.resent, 1, "once is enough");
}

#[tokio::test(flavor = "multi_thread")]
async fn noscript_under_load_is_noticed_by_nobody() {
    let server = Server::start();
    let link = Arc::new(open_url(&server.url()));
    ready(&link).await;
    let load = Load::start(&link, 32, "caller");
    let answered = || link.stats().servers[0].counts.answered;
    for _ in 0..20 {
        let before = answered();
        server.run::<()>(&["SCRIPT", "FLUSH"]);
        eventually("more answers", async || (answered() > before + 200).then_some(())).await;
    }
    let resent = link.stats().servers[0].counts.resent;
    let report = load.stop().await;
    report.nobody_waited("scripts flushed 20 times");
    report.is_true(|key| server.run(&["GET", key]));
    assert!(resent > 0);
    assert_eq!(report.callers.iter().map(|caller| caller.not_run).sum::<u64>(), report.not_run());
}

#[tokio::test(flavor = "multi_thread")]
async fn noscript_is_no_reason_not_to_connect() {
    let server = Server::start();
    let (url, mut flushing) = (server.url(), server.connect().unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let flusher = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            run_on::<()>(&mut flushing, &["SCRIPT", "FLUSH"]).unwrap();
        }
    });
    for _ in 0..100 {
        match add(&open_url(&url), "a", AMPLE).await {
            // Flushed between loading and calling, twice in a row.
            Ok(_) | Err(LinkError::NotRun(Cause::Refused(ServerError { code: ErrorCode::NoScript, .. }))) => {}
            other => panic!("{other:?}"),
        }
    }
    stop.store(true, Ordering::Relaxed);
    flusher.join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn readonly_a_replica_changes_nothing() {
    let server = Server::start();
    let link = open_url(&server.url());
    assert_eq!(add(&link, "a", AMPLE).await, Ok(1));
    server.run::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(refusal(&link, "a").await, ErrorCode::ReadOnly);
    assert!(!is_open(&link), "it answers: nobody has to wait");
    server.run::<()>(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(add(&link, "a", AMPLE).await, Ok(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn readonly_in_time_the_connection_is_made_anew() {
    // Some host names are moved to another server, which only a new connection finds.
    let server = Server::start();
    let link = open_url(&server.url());
    ready(&link).await;
    server.run::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    eventually("another connection", async || {
        let _ = add(&link, "a", DEADLINE).await;
        (link.stats().servers[0].counts.connections > 1).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn masterdown_a_replica_without_primary_is_as_good_as_down() {
    let server = Server::start_with("replica-serve-stale-data no\n");
    let link = open_url(&server.url());
    ready(&link).await;
    server.run::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(refusal(&link, "a").await, ErrorCode::MasterDown);
    eventually("a breaker that opens", async || {
        let result = add(&link, "a", DEADLINE).await;
        assert!(matches!(result, Err(LinkError::NotRun(_) | LinkError::Unknown(Cause::Deadline))), "{result:?}");
        is_open(&link).then_some(())
    })
    .await;
    assert!(link.stats().servers[0].last_failure.clone().unwrap().contains("MASTERDOWN"));
    server.run::<()>(&["REPLICAOF", "NO", "ONE"]);
    recovery(&link, "MASTERDOWN").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn loading_a_server_that_reads_its_data_is_as_good_as_down() {
    let mut server = Server::start_with("key-load-delay 500\nloading-process-events-interval-bytes 1024\n");
    let link = open_url(&server.url());
    ready(&link).await;
    server.run::<()>(&["DEBUG", "POPULATE", "3000"]);
    server.run::<()>(&["SAVE"]);
    server.relaunch();
    eventually("a server that says it is loading", async || {
        let result = add(&link, "a", DEADLINE).await;
        assert!(result.is_err(), "{result:?}");
        link.stats().servers[0].last_failure.clone().filter(|failure| failure.contains("LOADING"))
    })
    .await;
    assert!(is_open(&link));
    server.wait_until_ready();
    recovery(&link, "LOADING").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clusterdown_and_moved_are_for_clusters() {
    let server = Server::start_with("cluster-enabled yes\ncluster-config-file nodes.conf\n");
    let link = open_url(&server.url());
    ready_to_refuse(&link).await;
    assert_eq!(refusal(&link, "a").await, ErrorCode::ClusterDown);
}

/// Waits for a connection on which all calls fail.
async fn ready_to_refuse(link: &Link) {
    eventually("a connection", async || link.stats().servers[0].connected.then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn oom_nothing_is_written_and_reading_goes_on() {
    let server = Server::start();
    let link = open_url(&server.url());
    assert_eq!(add(&link, "a", AMPLE).await, Ok(1));
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(refusal(&link, "a").await, ErrorCode::OutOfMemory);
    assert_eq!(peek(&link, "a", AMPLE).await, Ok(b"1".to_vec()));
    assert!(!is_open(&link));
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(add(&link, "a", AMPLE).await, Ok(2));
}

/// A server that cannot save.
fn misconfigured() -> Server {
    let server = Server::start_with("save 3600 1\nstop-writes-on-bgsave-error yes\nenable-protected-configs yes\n");
    // No file can be created there.
    server.run::<()>(&["CONFIG", "SET", "dir", "/proc"]);
    server.run::<()>(&["BGSAVE"]);
    until("a save that fails", || {
        server.run::<String>(&["INFO", "persistence"]).contains("rdb_last_bgsave_status:err").then_some(())
    });
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn misconf_nothing_is_written_and_reading_goes_on() {
    let server = misconfigured();
    let link = open_url(&server.url());
    assert_eq!(refusal(&link, "a").await, ErrorCode::Misconf);
    assert_eq!(peek(&link, "a", AMPLE).await, Ok(b"false".to_vec()));
    assert!(!is_open(&link));
    server.run::<()>(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    assert_eq!(add(&link, "a", AMPLE).await, Ok(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn noreplicas_nothing_is_written() {
    let server = Server::start_with("min-replicas-to-write 1\n");
    let link = open_url(&server.url());
    assert_eq!(refusal(&link, "a").await, ErrorCode::NoReplicas);
    assert_eq!(server.run::<Option<u64>>(&["GET", "a"]), None);
    server.run::<()>(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    assert_eq!(add(&link, "a", AMPLE).await, Ok(1));
}

/// The state of the server is checked before the first write of a script and not after it. So a batch whose script was
/// ended by such an error has written nothing, even if the script does not catch errors.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_refused_as_a_whole_has_written_nothing() {
    let full = Server::start();
    full.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let lonely = Server::start_with("min-replicas-to-write 1\n");
    for (server, code) in
        [(full, ErrorCode::OutOfMemory), (misconfigured(), ErrorCode::Misconf), (lonely, ErrorCode::NoReplicas)]
    {
        let link = Arc::new(Link::open(Settings::standalone(&server.url()).unwrap(), CARELESS).unwrap());
        let mut calls = JoinSet::new();
        for number in 0..100 {
            let link = link.clone();
            calls.spawn(async move { refusal(&link, &format!("k{number}")).await });
        }
        assert!(calls.join_all().await.iter().all(|&seen| seen == code), "{code:?}");
        assert_eq!(server.run::<u64>(&["DBSIZE"]), 0, "{code:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn busy_while_a_script_runs_too_long_calls_fail_at_once() {
    let server = Server::start_with("busy-reply-threshold 30\n");
    let link = open_url(&server.url());
    ready(&link).await;
    let mut other = server.connect().unwrap();
    let endless = std::thread::spawn(move || run_on::<Value>(&mut other, &["EVAL", "while true do end", "0"]));
    eventually("a server that says it is busy", async || {
        let began = Instant::now();
        let result = add(&link, "a", DEADLINE).await;
        assert!(began.elapsed() < DEADLINE + SLACK);
        let seen = link.stats().servers[0].last_failure.clone().is_some_and(|failure| failure.contains("BUSY"));
        (seen && is_open(&link)).then_some(()).filter(|()| result.is_err())
    })
    .await;
    until("a script that is killed", || server.try_run::<()>(&["SCRIPT", "KILL"]).ok());
    assert!(endless.join().unwrap().is_err());
    recovery(&link, "BUSY").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn noauth_without_a_password_there_is_no_connection() {
    let server = Server::start();
    let link = open_url(&server.url());
    ready(&link).await;
    let mut admin = server.connect().unwrap();
    run_on::<()>(&mut admin, &["CONFIG", "SET", "requirepass", "secret"]).unwrap();
    assert_eq!(add(&link, "a", AMPLE).await, Ok(1), "who is in stays in");
    run_on::<u64>(&mut admin, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
    let why = unreachable(&link).await;
    assert!(matches!(&why, Unreachable::Refused(fault) if fault.code == ErrorCode::NoAuth), "{why}");
    assert!(is_open(&link));
    run_on::<()>(&mut admin, &["CONFIG", "SET", "requirepass", ""]).unwrap();
    recovery(&link, "NOAUTH").await;

    run_on::<()>(&mut admin, &["CONFIG", "SET", "requirepass", "secret"]).unwrap();
    let with_password = open_url(&format!("redis://:secret@{}", server.address()));
    assert_eq!(add(&with_password, "b", AMPLE).await, Ok(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn noperm_says_what_is_not_allowed() {
    let server = Server::start_with(
        "user limits on >secret ~limit:* +evalsha +script|load +ping +client|setname +get +incr\n\
         user nobody on >secret ~* +ping\n",
    );
    let settings = |user: &str| {
        let mut settings = Settings::standalone(&server.url()).unwrap();
        settings.login = Login { user: Some(user.into()), password: Some("secret".into()), database: 0 };
        settings
    };
    let link = open(settings("limits"));
    assert_eq!(add(&link, "limit:a", AMPLE).await, Ok(1));
    assert_eq!(refusal(&link, "other:a").await, ErrorCode::NoPerm);
    server.run::<()>(&["ACL", "SETUSER", "limits", "-evalsha"]);
    assert_eq!(refusal(&link, "limit:a").await, ErrorCode::NoPerm);
    assert!(!is_open(&link));

    let why = unreachable(&open(settings("nobody"))).await;
    assert!(matches!(&why, Unreachable::Refused(fault) if fault.code == ErrorCode::NoPerm), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrongtype_somebody_elses_key_fails_alone() {
    let server = Server::start();
    let link = Arc::new(open_url(&server.url()));
    ready(&link).await;
    server.run::<()>(&["RPUSH", "theirs", "1"]);
    let mut calls = JoinSet::new();
    for number in 0..200 {
        let link = link.clone();
        calls.spawn(async move {
            let key = if number % 10 == 0 { "theirs".to_owned() } else { format!("k{number}") };
            (key.clone(), add(&link, &key, AMPLE).await)
        });
    }
    for (key, result) in calls.join_all().await {
        match result {
            Ok(1) => assert_ne!(key, "theirs"),
            Err(LinkError::NotRun(Cause::Refused(fault))) => {
                assert_eq!((key.as_str(), fault.code), ("theirs", ErrorCode::WrongType));
            }
            other => panic!("{key}: {other:?}"),
        }
    }
    assert_eq!(server.run::<Vec<String>>(&["LRANGE", "theirs", "0", "-1"]), ["1"], "and is left alone");
    assert!(!is_open(&link));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_the_script_itself_leaves_doubt() {
    let server = Server::start();
    let link = open_url(&server.url());
    let error = link.call(frame(&[], "fail"), AMPLE).await.unwrap_err();
    assert!(matches!(&error, LinkError::Unknown(Cause::Refused(fault)) if fault.code == ErrorCode::Other), "{error}");

    let careless = Link::open(Settings::standalone(&server.url()).unwrap(), CARELESS).unwrap();
    server.run::<()>(&["RPUSH", "theirs", "1"]);
    let error = add(&careless, "theirs", AMPLE).await.unwrap_err();
    assert!(
        matches!(&error, LinkError::Unknown(Cause::Refused(fault)) if fault.code == ErrorCode::WrongType),
        "{error}"
    );
    assert_eq!(add(&careless, "a", AMPLE).await, Ok(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_enough_clients_says_so() {
    let server = Server::start_with("maxclients 1\n");
    let other = server.connect().unwrap();
    let why = unreachable(&open_url(&server.url())).await;
    assert!(why.to_string().contains("max number of clients"), "{why}");
    drop(other);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_servers_than_redis_are_recognised() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let _ = tokio::io::AsyncWriteExt::write_all(&mut client, b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    assert_eq!(unreachable(&open_url(&format!("redis://127.0.0.1:{port}"))).await, Unreachable::Malformed);
}
