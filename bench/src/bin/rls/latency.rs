//! The latency of a response at ten thousand requests a second, compared with a bare round trip.

use std::cell::RefCell;
use std::net::SocketAddr;

use tidegate_bench::keys::Dice;
use tidegate_bench::pace::{Idle, Times, at_a_steady_pace};
use tidegate_bench::report::{Report, Row};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::wire::{Connection, KEYS};

const CONNECTIONS: usize = 32;

pub async fn measure(report: &mut Report, ours: SocketAddr, tonic: SocketAddr, echo: SocketAddr) {
    let (ours, tonic) = (calls(ours).await, calls(tonic).await);
    let bare = echoes(echo).await;
    let row = |what: &str, part: f64, peer, theirs: &Times| {
        Row::smaller_is_better(what, ours.quantile(part), peer, theirs.quantile(part), "us")
    };
    let mut rows = Vec::new();
    for (what, part) in [("half are quicker than", 0.5), ("99 of 100 are quicker than", 0.99)] {
        rows.push(row(what, part, "tonic, a constant", &tonic));
        rows.push(row(what, part, "a bare round trip", &bare));
    }
    report.section("10 000 requests a second over 32 connections", rows);
}

async fn calls(server: SocketAddr) -> Times {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(Connection::open(server).await);
    }
    let (idle, dice) = (Idle::new(connections), RefCell::new(Dice::new(7)));
    at_a_steady_pace(async || {
        let mut connection = idle.take().await;
        connection.ask(dice.borrow_mut().below(KEYS));
        connection.flush().await;
        connection.answers().await;
        idle.give(connection);
    })
    .await
}

async fn echoes(server: SocketAddr) -> Times {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let connection = TcpStream::connect(server).await.expect("a connection");
        connection.set_nodelay(true).expect("a socket");
        connections.push(connection);
    }
    let idle = Idle::new(connections);
    at_a_steady_pace(async || {
        let mut connection = idle.take().await;
        let mut message = [0; 60];
        connection.write_all(&message).await.expect("an open connection");
        connection.read_exact(&mut message).await.expect("an open connection");
        idle.give(connection);
    })
    .await
}
