//! State in memory of servers that are killed.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tidegate_core::contract::seed::seed;
use tidegate_core::{Clock, SystemClock};

use super::state::{metric, spend, start};
use crate::support::{folder, tidegate, until};

#[test]
fn a_server_that_is_killed_forgets_no_more_than_was_spent_after_its_last_snapshot() {
    let folder = folder(&[]);
    let state = folder.path().join("state");
    // Upper bound of the spent cost: answered requests, and two that were in flight.
    let mut most = 0;
    for life in 0..3_u64 {
        let mut server = start(&state, &["--store-save-every", "100ms"]);
        let before = 1_000_000 - spend(&server, "ann");
        assert!(before <= most + 1, "{before} of {most}: it never makes up spending");
        let (address, is_over, count) =
            (server.connect().peer_addr().unwrap(), AtomicBool::new(false), AtomicU64::new(before));
        let kept = std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::SeqCst) && admitted(address, "/").unwrap_or(false) {
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            // After two further snapshots, at least one began after this count.
            let (kept, saves) = (count.load(Ordering::SeqCst), metric(&server, "tidegate_state_saves_total"));
            until("two snapshots", || (metric(&server, "tidegate_state_saves_total") >= saves + 2.0).then_some(()));
            // Killed at some time during one of the next snapshots, while requests are decided.
            std::thread::sleep(Duration::from_millis(37 * life));
            server.signal(Signal::KILL);
            server.ended();
            is_over.store(true, Ordering::SeqCst);
            kept
        });
        most = count.load(Ordering::SeqCst) + 2;
        let verified = tidegate(folder.path()).args(["state", "verify", "state"]).output().unwrap();
        assert!(verified.status.success(), "{verified:?}");
        let server = start(&state, &[]);
        let spent = 1_000_000 - 1 - spend(&server, "ann");
        assert!((kept..=most).contains(&spent), "{spent}, of {kept} to {most}");
        most = spent + 1;
    }
}

#[test]
fn however_often_a_server_is_killed_no_more_is_admitted_than_the_limit_and_an_interval_each_time() {
    const LIMIT: u64 = 4_000;
    // The program counts time by the processor's counter, the test by the system's clock.
    const CLOCK_ERROR_MS: u64 = 10;
    let folder = folder(&[]);
    let state = folder.path().join("state");
    let mut random = fastrand::Rng::with_seed(seed(1));
    let count = AtomicU64::new(0);
    let (mut forgotten, mut kills, is_denied) = (0, 0, AtomicBool::new(false));
    while !is_denied.load(Ordering::SeqCst) {
        let mut server = start(&state, &["--store-save-every", "100ms"]);
        let address = server.connect().peer_addr().unwrap();
        let before = count.load(Ordering::SeqCst);
        // When each admission of this life was answered.
        let answered = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while let Ok(is_admitted) = admitted(address, "/small") {
                        if !is_admitted {
                            is_denied.store(true, Ordering::SeqCst);
                            return;
                        }
                        count.fetch_add(1, Ordering::SeqCst);
                        answered.lock().unwrap().push(now_ms());
                    }
                });
            }
            // Killed at some moment after a quarter of the limit and a snapshot, while requests are decided.
            let mut more = random.u32(1..20);
            while more > 0 && !is_denied.load(Ordering::SeqCst) {
                let has_saved = metric(&server, "tidegate_state_saves_total") >= 1.0;
                more -= u32::from(has_saved && count.load(Ordering::SeqCst) >= before + LIMIT / 4);
            }
            server.signal(Signal::KILL);
        });
        server.ended();
        if !is_denied.load(Ordering::SeqCst) {
            // What was answered before the last snapshot began is in it.
            let saved_at = saved_at_ms(folder.path());
            let answered = answered.into_inner().unwrap();
            forgotten += answered.iter().filter(|at| **at + CLOCK_ERROR_MS >= saved_at).count() as u64;
            kills += 1;
        }
    }
    let admitted = count.load(Ordering::SeqCst);
    assert!(kills > 0 && admitted > LIMIT - 10 * kills, "{admitted}, {kills}");
    assert!(admitted <= LIMIT + forgotten, "{admitted} with {forgotten} forgotten by {kills}");
}

fn now_ms() -> u64 {
    SystemClock::new().now().as_micros() / 1_000
}

/// When the snapshot in the file `state` began.
fn saved_at_ms(folder: &Path) -> u64 {
    let shown = tidegate(folder).args(["state", "show", "state", "--format", "json"]).output().unwrap();
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    shown["saved_at_ms"].as_u64().unwrap()
}

/// Whether a request was answered, and admitted.
fn admitted(address: SocketAddr, path: &str) -> io::Result<bool> {
    let body = format!(r#"{{"method":"GET","path":"{path}","user":"ann"}}"#);
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let length = body.len();
    let head = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close";
    stream.write_all(format!("{head}\r\nContent-Length: {length}\r\n\r\n{body}").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    // The answer of a server that is killed may end early.
    let (_, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let answer: Value = serde_json::from_str(body)?;
    Ok(answer["allowed"] == true)
}
