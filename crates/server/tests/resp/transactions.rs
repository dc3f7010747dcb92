//! `MULTI` and `EXEC`, compared with a real Redis and with third-party clients.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use tidegate::resp::{Settings, TransactionBounds};
use tidegate_redis::RedisStore;
use tidegate_rules::OnStoreFailure;
use tidegate_test_support::redis::Server as Redis;

use crate::resp::support::{Raw, Server, TIMEOUT, error, run};

/// The remaining amount of `key` under 10 a day.
fn left(server: &Server, key: &str) -> i64 {
    let answer: Vec<i64> = run(&mut server.client(), &format!("CL.THROTTLE {key} 9 10 86400 0")).unwrap();
    answer[2]
}

/// Transactions of commands that both servers support.
const CONVERSATIONS: &[&[&str]] = &[
    &["MULTI", "PING", "ECHO hi", "EXEC", "PING"],
    &["MULTI", "EXEC"],
    &["multi", "ping", "discard", "exec"],
    &["EXEC", "DISCARD", "UNWATCH", "PING"],
    &["MULTI", "MULTI", "PING", "EXEC", "EXEC"],
    &["MULTI", "WATCH k", "PING", "EXEC"],
    &["MULTI", "UNWATCH", "SELECT 0", "EXEC"],
    &["MULTI", "ECHO", "PING", "EXEC", "PING"],
    &["MULTI", "ECHO a b", "DISCARD", "MULTI", "PING", "EXEC"],
    &["MULTI x", "EXEC x", "MULTI", "EXEC x", "EXEC", "WATCH", "UNWATCH x"],
    &["MULTI", "DISCARD x", "EXEC"],
    &["MULTI", "PING", "RESET", "EXEC", "PING"],
    &["HELLO 3", "MULTI", "PING", "ECHO hi", "EXEC", "EXEC"],
    &["MULTI", "PING"],
];

/// All replies to these lines, sent at once and followed by QUIT.
fn answered(mut stream: impl Read + Write, lines: &[&str]) -> String {
    stream.write_all((lines.join("\r\n") + "\r\nQUIT\r\n").as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    // Omits the greeting, which differs.
    text.split_once("$7\r\nmodules\r\n*0\r\n").map_or(text.clone(), |(_, rest)| rest.to_owned())
}

#[test]
fn transactions_are_answered_as_redis_answers_them() {
    let (redis, server) = (Redis::start(), Server::start());
    let socket = redis.unix_socket();
    for lines in CONVERSATIONS {
        let theirs = UnixStream::connect(&socket).unwrap();
        theirs.set_read_timeout(Some(TIMEOUT)).unwrap();
        assert_eq!(answered(server.raw().stream, lines), answered(theirs, lines), "{lines:?}");
    }
}

#[test]
fn queued_commands_are_charged_by_exec_only() {
    let server = Server::start();
    let mut raw = server.raw();
    raw.send("MULTI\r\nCL.THROTTLE k 9 10 86400\r\nTG.CHECK path /api/x user alice\r\nDEL other\r\n");
    raw.expect("+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n");
    assert_eq!(left(&server, "k"), 10);
    raw.send("EXEC\r\n");
    raw.expect("*3\r\n*5\r\n:0\r\n:10\r\n:9\r\n:-1\r\n:8640\r\n*22\r\n$7\r\nallowed\r\n:1\r\n");
    assert_eq!(left(&server, "k"), 9);
    let mut raw = server.raw();
    raw.send("MULTI\r\nCL.THROTTLE k 9 10 86400\r\nDISCARD\r\n");
    raw.expect("+OK\r\n+QUEUED\r\n+OK\r\n");
    // A client that disconnects before EXEC is not charged.
    raw.send("MULTI\r\nCL.THROTTLE k 9 10 86400\r\n");
    raw.expect("+OK\r\n+QUEUED\r\n");
    drop(raw);
    assert_eq!(left(&server, "k"), 9);
}

#[test]
fn a_command_that_is_refused_charges_nothing_and_aborts_the_transaction() {
    let server = Server::start();
    for refused in [
        "NOPE",
        "CL.THROTTLE k 9 10",
        "CL.THROTTLE k 9 10 86400 1 1",
        "CL.THROTTLE k 9 ten 86400",
        "CL.THROTTLE k 9 10 86400 -1",
        "CL.THROTTLE k 9223372036854775807 1 1",
        "THROTTLE k 0 10 86400",
        "TG.CHECK user",
        "TG.CHECK colour blue",
        "TG.CHECK ip 1.2.3",
        "TG.PEEK user",
        "TG.RESET colour blue",
        "TG.SETTLE nothing 1",
        "TG.SETTLE nothing one",
        "PING a b c",
        "SELECT 1",
        "SELECT x",
        "DEL",
        "EVAL return 0",
        "HELLO 3",
        "AUTH x",
        "CLIENT SETNAME x",
        "INFO",
    ] {
        let mut raw = server.raw();
        raw.send("MULTI\r\nCL.THROTTLE k 9 10 86400\r\n");
        raw.expect("+OK\r\n+QUEUED\r\n");
        let said = raw.ask(refused);
        assert!(said.starts_with("-ERR "), "{refused}: {said}");
        assert_eq!(raw.ask("TG.CHECK path /api/x user alice"), "+QUEUED");
        assert_eq!(raw.ask("EXEC"), "-EXECABORT Transaction discarded because of previous errors.", "{refused}");
        assert_eq!(raw.ask("PING"), "+PONG");
    }
    assert_eq!(left(&server, "k"), 10);
    let peeked: std::collections::HashMap<String, redis::Value> =
        run(&mut server.client(), "TG.PEEK path /api/x user alice").unwrap();
    assert_eq!(redis::from_redis_value::<i64>(peeked["remaining"].clone()).unwrap(), 3);
}

/// The same without a transaction: a command with an error is not charged.
#[test]
fn a_refused_command_charges_nothing() {
    let server = Server::start();
    let mut client = server.client();
    for refused in [
        "CL.THROTTLE k 9 10 86400 1 1",
        "CL.THROTTLE k 9 10 86400 1.5",
        "CL.THROTTLE k 9 10 1e3",
        "THROTTLE k 0 10 86400",
        "WATCH k",
        "EXEC",
    ] {
        error(&mut client, refused);
    }
    assert_eq!(left(&server, "k"), 10);
}

#[test]
fn a_transaction_is_bounded() {
    let bounds = |commands, bytes| {
        Server::with(Settings { transaction: TransactionBounds { commands, bytes }, ..Settings::default() })
    };
    let refused = |server: &Server, fits: usize, setting: &str| {
        let mut raw = server.raw();
        assert_eq!(raw.ask("MULTI"), "+OK");
        for _ in 0..fits {
            assert_eq!(raw.ask("CL.THROTTLE k 9 10 86400"), "+QUEUED");
        }
        let said = raw.ask("CL.THROTTLE k 9 10 86400");
        assert!(said.starts_with("-ERR a transaction has at most ") && said.contains(setting), "{said}");
        assert!(raw.ask("EXEC").starts_with("-EXECABORT "));
        assert_eq!(raw.ask("PING"), "+PONG");
        assert_eq!(left(server, "k"), 10);
    };
    refused(&bounds(3, 1_024), 3, "resp.transaction_commands");
    // 20 bytes of text and 5 words.
    refused(&bounds(100, 2 * (20 + 5 * 16)), 2, "resp.transaction_bytes");
}

#[test]
fn a_transaction_larger_than_what_may_wait_is_run_to_its_end() {
    let server = Server::with(Settings { most_unsent: 1_024, ..Settings::default() });
    let commands = 5_000;
    let queued = "CL.THROTTLE many 9999 1 86400\r\n".repeat(commands);
    let mut raw = server.raw();
    raw.send(format!("MULTI\r\n{queued}EXEC\r\nQUIT\r\n"));
    let rest = raw.rest();
    assert_eq!(rest.matches("*5\r\n:0\r\n").count(), commands);
    assert!(rest.contains(&format!("*{commands}\r\n*5\r\n:0\r\n:10000\r\n:9999\r\n")) && rest.ends_with("+OK\r\n"));
}

/// No one reads the replies of EXEC, which exceed the server's limit on unsent bytes.
#[test]
fn a_transaction_is_run_to_its_end_though_the_client_leaves() {
    let server = Server::with(Settings { most_unsent: 1, ..Settings::default() });
    let mut raw = server.raw();
    raw.send(format!("MULTI\r\n{}", "CL.THROTTLE k 9999 1 86400\r\n".repeat(1_000)));
    raw.expect("+OK\r\n");
    (0..1_000).for_each(|_| raw.expect("+QUEUED\r\n"));
    raw.send("EXEC\r\n");
    drop(raw);
    let mut client = server.client();
    let begun = tokio::time::Instant::now();
    loop {
        let answer: Vec<i64> = run(&mut client, "CL.THROTTLE k 9999 1 86400 0").unwrap();
        if answer[2] == 9_000 {
            break;
        }
        assert!(begun.elapsed() < TIMEOUT, "{answer:?}");
        std::thread::yield_now();
    }
}

#[test]
fn a_transaction_speaks_the_version_of_its_connection() {
    let server = Server::start();
    let mut raw: Raw = server.raw();
    raw.send("HELLO 3\r\nMULTI\r\nTG.CHECK path /api/x user alice\r\nEXEC\r\nQUIT\r\n");
    let rest = raw.rest();
    assert!(rest.contains("+OK\r\n+QUEUED\r\n*1\r\n%11\r\n$7\r\nallowed\r\n#t\r\n"), "{rest}");
}

/// Even if commands wait for the store, and some for each other.
#[test]
fn a_transaction_is_run_in_order_with_the_state_in_redis() {
    let redis = Redis::start();
    let mut store = tidegate_redis::Settings::standalone(&redis.url()).unwrap();
    store.deadline = TIMEOUT;
    let settings = Settings { on_store_failure: OnStoreFailure::Deny, ..Settings::default() };
    let server = Server::start_with(settings, || RedisStore::open(store).unwrap().into());
    let mut pipeline = redis::pipe();
    pipeline.atomic();
    for _ in 0..20 {
        for _ in 0..3 {
            pipeline.cmd("CL.THROTTLE").arg(&["k", "1", "1", "86400"]);
        }
        pipeline.cmd("DEL").arg(&["k", "nobody"]);
    }
    let answers: Vec<redis::Value> = pipeline.query(&mut server.client()).unwrap();
    assert_eq!(answers.len(), 80);
    for round in answers.chunks(4) {
        let limited = |answer: &redis::Value| redis::from_redis_value::<Vec<i64>>(answer.clone()).unwrap()[0];
        assert_eq!(round[..3].iter().map(limited).collect::<Vec<_>>(), [0, 0, 1]);
        assert_eq!(redis::from_redis_value::<i64>(round[3].clone()).unwrap(), 1);
    }
}
