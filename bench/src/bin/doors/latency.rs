//! Response time at 10 000 requests a second, far below the server's capacity, compared with a bare echo. The benchmark
//! `rls` measures the same for Envoy's listener.

use std::cell::Cell;
use std::net::SocketAddr;

use tidegate_bench::pace::{Idle, Times, at_a_steady_pace};
use tidegate_bench::report::{Report, Row};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::http::{Connection, LIVE, check};
use crate::serving::Server;
use crate::single::KEYS;

const CONNECTIONS: usize = 50;

pub fn measure(report: &mut Report, runtime: &Runtime) {
    let (resp, http) = (Server::resp(), Server::http(LIVE));
    let (axum, echo, redis) = (Server::axum(), Server::echo(), Server::redis());
    let throttle = |key: u32| {
        let key = format!("key:{key:012}");
        format!("*5\r\n$11\r\nCL.THROTTLE\r\n$16\r\n{key}\r\n$2\r\n15\r\n$2\r\n30\r\n$2\r\n60\r\n").into_bytes()
    };
    let get = |key: u32| format!("*2\r\n$3\r\nGET\r\n$16\r\nkey:{key:012}\r\n").into_bytes();
    let bare = runtime.block_on(plain(echo.address, |key| throttle(key)[..32].to_vec()));
    let ours = runtime.block_on(plain(resp.address, throttle));
    let redis = runtime.block_on(plain(redis.address, get));
    let redis = ("redis-server, GET", redis);
    rows(report, "Redis listener", &ours, &[("an echo", &bare), (redis.0, &redis.1)]);
    let ours = runtime.block_on(checks(http.address));
    let axum = runtime.block_on(checks(axum.address));
    rows(report, "HTTP listener", &ours, &[("an echo", &bare), ("axum, \"ok\"", &axum)]);
}

fn rows(report: &mut Report, listener: &str, ours: &Times, peers: &[(&str, &Times)]) {
    let parts = [("median", 0.5), ("99th percentile", 0.99), ("99.9th percentile", 0.999)];
    let row = |(name, part): (&str, f64), (peer, theirs): &(&str, &Times)| {
        Row::smaller_is_better(name, ours.quantile(part), peer, theirs.quantile(part), "us")
    };
    let rows = parts.iter().flat_map(|part| peers.iter().map(move |peer| row(*part, peer)));
    report.section(
        &format!("{listener}, 10 000 requests a second over 50 connections, time to an answer"),
        rows.collect(),
    );
}

/// Sends commands whose responses arrive in one read, because they are far smaller than the buffer.
async fn plain(server: SocketAddr, command: impl Fn(u32) -> Vec<u8>) -> Times {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(server).await.expect("a server that listens");
        stream.set_nodelay(true).expect("a socket");
        connections.push(stream);
    }
    let (idle, key) = (Idle::new(connections), Cell::new(0));
    at_a_steady_pace(async || {
        let mut stream = idle.take().await;
        key.set((key.get() + 1) % KEYS);
        stream.write_all(&command(key.get())).await.expect("a server that reads");
        let came = stream.read(&mut [0; 4_096]).await.expect("a server that answers");
        assert!(came > 0, "the server has closed");
        idle.give(stream);
    })
    .await
}

async fn checks(server: SocketAddr) -> Times {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(Connection::open(server).await);
    }
    let (idle, key) = (Idle::new(connections), Cell::new(0));
    at_a_steady_pace(async || {
        let mut connection = idle.take().await;
        key.set((key.get() + 1) % KEYS);
        connection.ask(&check(key.get())).await;
        idle.give(connection);
    })
    .await
}
