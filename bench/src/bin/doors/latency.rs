//! How long an answer takes at 10 000 commands a second, which is far from all that the server can do, beside the bare way
//! there and back.
//!
//! Each of 50 connections sends 200 commands a second, by the clock and not when the last answer has come, and times are
//! counted from when a command was due: what waits behind a slow answer counts as slow.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_bench::machine::pin_to_core;
use tidegate_bench::report::{Report, Row};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::serving::Server;

const CONNECTIONS: u32 = 50;
const EVERY: Duration = Duration::from_millis(5);
const COMMANDS: u32 = 1_000;

pub fn measure(report: &mut Report) {
    let (ours, echo, redis) = (Server::resp(), Server::echo(), Server::redis());
    pin_to_core(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let throttle = move |key: u32| {
        let key = format!("key:{key:012}");
        format!("*5\r\n$11\r\nCL.THROTTLE\r\n$16\r\n{key}\r\n$2\r\n15\r\n$2\r\n30\r\n$2\r\n60\r\n").into_bytes()
    };
    let get = |key: u32| format!("*2\r\n$3\r\nGET\r\n$16\r\nkey:{key:012}\r\n").into_bytes();
    let ours = runtime.block_on(times(ours.address, throttle));
    let bare = runtime.block_on(times(echo.address, move |key| throttle(key)[..32].to_vec()));
    let redis = runtime.block_on(times(redis.address, get));
    let mut rows = Vec::new();
    for (name, share) in [("median", 0.5), ("99th percentile", 0.99), ("99.9th percentile", 0.999)] {
        let row = |peer, theirs: &[Duration]| {
            Row::smaller_is_better(name, micros(&ours, share), peer, micros(theirs, share), "us")
        };
        rows.extend([row("an echo", &bare), row("redis-server, GET", &redis)]);
    }
    report.section("Redis door, 10 000 commands a second on 50 connections, time to an answer", rows);
}

fn micros(sorted: &[Duration], share: f64) -> f64 {
    let index = ((sorted.len() - 1) as f64 * share) as usize;
    sorted[index].as_secs_f64() * 1e6
}

/// How long each answer took, the shortest first.
async fn times(server: SocketAddr, command: impl Fn(u32) -> Vec<u8> + Copy + 'static) -> Vec<Duration> {
    let begin = Instant::now() + Duration::from_millis(100);
    let local = tokio::task::LocalSet::new();
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|number| local.spawn_local(client(server, number, begin + EVERY * number / CONNECTIONS, command)))
        .collect();
    let mut all = Vec::new();
    local.await;
    for client in clients {
        all.extend(client.await.expect("a client that went on to the end"));
    }
    all.sort_unstable();
    all
}

async fn client(server: SocketAddr, number: u32, begin: Instant, command: impl Fn(u32) -> Vec<u8>) -> Vec<Duration> {
    let mut stream = TcpStream::connect(server).await.expect("a server that listens");
    stream.set_nodelay(true).expect("a socket");
    let mut times = Vec::new();
    let mut bytes = [0; 4_096];
    for turn in 0..COMMANDS {
        let due = begin + EVERY * turn;
        tokio::time::sleep_until(due).await;
        stream.write_all(&command(number * COMMANDS + turn)).await.expect("a server that reads");
        // Answers are far smaller than what is read at once.
        let came = stream.read(&mut bytes).await.expect("a server that answers");
        assert!(came > 0, "the server has closed");
        times.push(due.elapsed());
    }
    times
}
