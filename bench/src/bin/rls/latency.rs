//! How long an answer takes when ten thousand are asked for every second, beside a bare round trip.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tidegate_bench::keys::Dice;
use tidegate_bench::report::{Report, Row};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::wire::{Connection, KEYS};

const A_SECOND: u32 = 10_000;
const SECONDS: u32 = 3;
const CONNECTIONS: usize = 32;

pub async fn measure(report: &mut Report, ours: SocketAddr, tonic: SocketAddr, echo: SocketAddr) {
    let (ours, tonic) = (calls(ours).await, calls(tonic).await);
    let bare = echoes(echo).await;
    let row = |what: &str, part: f64, peer, theirs: &[f64]| {
        Row::smaller_is_better(what, quantile(&ours, part), peer, quantile(theirs, part), "us")
    };
    let mut rows = Vec::new();
    for (what, part) in [("half are quicker than", 0.5), ("99 of 100 are quicker than", 0.99)] {
        rows.push(row(what, part, "tonic, a constant", &tonic));
        rows.push(row(what, part, "a bare round trip", &bare));
    }
    report.section("10 000 requests a second over 32 connections", rows);
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * part) as usize]
}

async fn calls(server: SocketAddr) -> Vec<f64> {
    let idle = RefCell::new(Vec::new());
    for _ in 0..CONNECTIONS {
        idle.borrow_mut().push(Connection::open(server).await);
    }
    let dice = RefCell::new(Dice::new(7));
    at_a_steady_pace(async || {
        let mut connection = next(&idle).await;
        connection.ask(dice.borrow_mut().below(KEYS));
        connection.flush().await;
        connection.answers().await;
        idle.borrow_mut().push(connection);
    })
    .await
}

async fn echoes(server: SocketAddr) -> Vec<f64> {
    let idle = RefCell::new(Vec::new());
    for _ in 0..CONNECTIONS {
        let connection = TcpStream::connect(server).await.expect("a connection");
        connection.set_nodelay(true).expect("a socket");
        idle.borrow_mut().push(connection);
    }
    at_a_steady_pace(async || {
        let mut connection = next(&idle).await;
        let mut message = [0; 60];
        connection.write_all(&message).await.expect("an open connection");
        connection.read_exact(&mut message).await.expect("an open connection");
        idle.borrow_mut().push(connection);
    })
    .await
}

/// A connection that nobody uses. Waiting for one counts as waiting for the answer.
async fn next<C>(idle: &RefCell<Vec<C>>) -> C {
    loop {
        let connection = idle.borrow_mut().pop();
        match connection {
            Some(connection) => return connection,
            None => tokio::task::yield_now().await,
        }
    }
}

/// Asks at fixed instants, whether or not earlier requests have been answered, and measures from the instant that each was
/// due. Sorted microseconds.
async fn at_a_steady_pace(ask: impl AsyncFn()) -> Vec<f64> {
    let (began, every) = (Instant::now() + Duration::from_millis(20), Duration::from_secs(1) / A_SECOND);
    let (ask, mut under_way, mut took) = (&ask, FuturesUnordered::new(), Vec::new());
    for number in 0..A_SECOND * SECONDS {
        let due = began + every * number;
        // The runtime's timer counts milliseconds, so the last stretch is waited for by looking at the clock.
        while Instant::now() < due {
            match under_way.next().now_or_never().flatten() {
                Some(micros) => took.push(micros),
                None => tokio::task::yield_now().await,
            }
        }
        under_way.push(async move {
            ask().await;
            due.elapsed().as_secs_f64() * 1e6
        });
    }
    while let Some(micros) = under_way.next().await {
        took.push(micros);
    }
    // The first tenth warms up.
    let mut took = took.split_off(took.len() / 10);
    took.sort_by(f64::total_cmp);
    took
}
