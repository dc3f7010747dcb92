//! Requests per second that a server answers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tidegate_bench::keys::Dice;

use crate::wire::{Connection, KEYS};

const A_ROUND: Duration = Duration::from_millis(1_000);

/// Keeps this many requests in flight on every connection.
pub async fn requests_a_second(server: SocketAddr, connections: u64, in_flight: u32) -> f64 {
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(Connection::open(server).await);
    }
    let began = Instant::now();
    let worker = async |(number, mut connection): (usize, Connection)| {
        let mut dice = Dice::new(number as u64);
        let (mut answered, mut to_ask) = (0_u64, in_flight);
        while began.elapsed() < A_ROUND {
            for _ in 0..to_ask {
                connection.ask(dice.below(KEYS));
            }
            connection.flush().await;
            to_ask = connection.answers().await;
            answered += u64::from(to_ask);
        }
        answered
    };
    let answered: u64 = futures::future::join_all(open.into_iter().enumerate().map(worker)).await.into_iter().sum();
    answered as f64 / began.elapsed().as_secs_f64()
}
