//! The memory of slow clients: 10 000 connections, each in the middle of a request's head.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use tidegate_bench::report::{Report, Row};

use crate::servers::{Headers, NONE, Running};

const CLIENTS: usize = 10_000;

pub fn measure(report: &mut Report) {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("files for so many clients");
    let upstream = Running::upstream();
    let ours = of(&Running::ours(upstream.address, NONE, Headers::Usual));
    let nginx = of(&Running::nginx_proxy(upstream.address, "", ""));
    let row = Row::smaller_is_better("memory of a connection", ours, "nginx", nginx, "bytes")
        .with_id("gateway/connection-bytes");
    report.section("10 000 slow clients", vec![row]);
}

fn of(server: &Running) -> f64 {
    let connect = |count: usize| -> Vec<TcpStream> {
        let one = |_| {
            let mut stream = TcpStream::connect(server.address).expect("a server that accepts");
            stream.write_all(b"GET / HTTP/1.1\r\nHost: bench\r\nX-Slow: ").expect("a server that reads");
            stream
        };
        (0..count).map(one).collect()
    };
    // Warm-up: allocates everything that is needed only once.
    let first = connect(100);
    let before = settled(server);
    let slow = connect(CLIENTS);
    let after = settled(server);
    drop((first, slow));
    after.saturating_sub(before) as f64 / CLIENTS as f64
}

/// The memory of the server, once it no longer changes.
fn settled(server: &Running) -> u64 {
    let mut last = server.resident();
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let now = server.resident();
        if now == last {
            return now;
        }
        last = now;
    }
}
