//! The time that the gateway adds to a request, at 1 000 a second over 20 connections, compared with a direct call and
//! nginx.
//!
//! Requests are sent at fixed times, and latencies are measured from these times. The load generator busy-waits and
//! therefore needs a core to itself: the upstream and the proxy share the other one. All contestants take turns, and
//! the result of each is the median of its turns.

use std::net::SocketAddr;

use tidegate_bench::machine::pin_to_core;
use tidegate_bench::pace::{Idle, Times, at_a_pace_of};
use tidegate_bench::report::{Report, Row};
use tidegate_bench::sample::median;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::servers::{Headers, Running, THREE_RULES};

const CONNECTIONS: usize = 20;
const A_SECOND: u32 = 1_000;
const ROUNDS: usize = 7;

pub fn measure(report: &mut Report) {
    let upstream = Running::upstream_on(0);
    let ours = Running::ours(upstream.address, THREE_RULES, Headers::Usual);
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
    let servers = [upstream.address, ours.address, nginx.address];
    let rounds: Vec<[Times; 3]> = (0..ROUNDS).map(|_| servers.map(times)).collect();
    let mut rows = Vec::new();
    for (id, name, share) in [("gateway/added-median", "median", 0.5), ("gateway/added-p99", "99th percentile", 0.99)] {
        let [direct, ours, nginx] =
            [0, 1, 2].map(|server| median(rounds.iter().map(|times| times[server].quantile(share)).collect()));
        rows.push(Row::smaller_is_better(name, ours, "direct", direct, "us"));
        rows.push(Row::smaller_is_better(name, ours, "nginx", nginx, "us"));
        let added = Row::smaller_is_better(format!("added, {name}"), ours - direct, "nginx", nginx - direct, "us");
        rows.push(added.with_id(id));
    }
    report.section("1 000 requests a second on 20 connections, three rules, time to a response", rows);
}

/// The latency of each response.
async fn times(server: SocketAddr) -> Times {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(server).await.expect("a server that listens");
        stream.set_nodelay(true).expect("a socket");
        // The first request opens the connections to upstreams.
        ask(&mut stream).await;
        connections.push(stream);
    }
    let idle = Idle::new(connections);
    at_a_pace_of(A_SECOND, async || {
        let mut stream = idle.take().await;
        ask(&mut stream).await;
        idle.give(stream);
    })
    .await
}

async fn ask(stream: &mut TcpStream) {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: bench\r\n\r\n").await.expect("a server that reads");
    let (mut bytes, mut came) = ([0; 4_096], 0);
    while !bytes[..came].ends_with(b"hello, world\n") {
        let more = stream.read(&mut bytes[came..]).await.expect("a server that answers");
        assert!(more > 0, "the server has closed");
        came += more;
    }
}
