//! What the gateway adds to a request at 1 000 a second, beside a direct call and nginx.
//!
//! Each of 20 connections sends a request every 20 ms by the clock, and times are counted from when it was due.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_bench::machine::pin_to_core;
use tidegate_bench::report::{Report, Row};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::servers::{Running, THREE_RULES};

const CONNECTIONS: u32 = 20;
const EVERY: Duration = Duration::from_millis(20);
const REQUESTS: u32 = 250;

pub fn measure(report: &mut Report) {
    let upstream = Running::upstream();
    let ours = Running::ours(upstream.address, THREE_RULES);
    let nginx = Running::nginx_proxy(upstream.address, "", "");
    let times = |server: SocketAddr| {
        std::thread::spawn(move || {
            pin_to_core(1);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(times(server))
        })
        .join()
        .expect("clients that went on to the end")
    };
    let [direct, ours, nginx] = [upstream.address, ours.address, nginx.address].map(times);
    let mut rows = Vec::new();
    for (name, share) in [("median", 0.5), ("99th percentile", 0.99)] {
        let [direct, ours, nginx] = [&direct, &ours, &nginx].map(|times| micros(times, share));
        rows.push(Row::smaller_is_better(name, ours, "direct", direct, "us"));
        rows.push(Row::smaller_is_better(name, ours, "nginx", nginx, "us"));
        rows.push(Row::smaller_is_better(format!("added, {name}"), ours - direct, "nginx", nginx - direct, "us"));
    }
    report.section("1 000 requests a second on 20 connections, three rules, time to a response", rows);
}

fn micros(sorted: &[Duration], share: f64) -> f64 {
    let index = ((sorted.len() - 1) as f64 * share) as usize;
    sorted[index].as_secs_f64() * 1e6
}

/// How long each response took, the shortest first.
async fn times(server: SocketAddr) -> Vec<Duration> {
    let begin = Instant::now() + Duration::from_millis(100);
    let local = tokio::task::LocalSet::new();
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|number| local.spawn_local(client(server, begin + EVERY * number / CONNECTIONS)))
        .collect();
    local.await;
    let mut all = Vec::new();
    for client in clients {
        all.extend(client.await.expect("a client that went on to the end"));
    }
    all.sort_unstable();
    all
}

async fn client(server: SocketAddr, begin: Instant) -> Vec<Duration> {
    let mut stream = TcpStream::connect(server).await.expect("a server that listens");
    stream.set_nodelay(true).expect("a socket");
    let mut times = Vec::new();
    let mut bytes = [0; 4_096];
    for turn in 0..REQUESTS {
        let due = begin + EVERY * turn;
        tokio::time::sleep_until(due).await;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: bench\r\n\r\n").await.expect("a server that reads");
        let mut came = 0;
        while !bytes[..came].ends_with(b"hello, world\n") {
            let more = stream.read(&mut bytes[came..]).await.expect("a server that answers");
            assert!(more > 0, "the server has closed");
            came += more;
        }
        // The first opens connections.
        if turn > 0 {
            times.push(due.elapsed());
        }
    }
    times
}
