//! Load at a steady rate: measures the latency at a fixed number of requests per second.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};

const A_SECOND: u32 = 10_000;
const SECONDS: u32 = 3;

/// Latencies in microseconds, sorted.
pub struct Times(Vec<f64>);

impl Times {
    /// The latency that this fraction of the requests does not exceed.
    pub fn quantile(&self, part: f64) -> f64 {
        self.0[((self.0.len() - 1) as f64 * part) as usize]
    }
}

/// Pool of idle connections.
pub struct Idle<C>(RefCell<Vec<C>>);

impl<C> Idle<C> {
    /// A pool of these connections.
    pub fn new(connections: Vec<C>) -> Idle<C> {
        Idle(RefCell::new(connections))
    }

    /// Takes a connection. Waiting for one counts towards the latency.
    pub async fn take(&self) -> C {
        loop {
            let connection = self.0.borrow_mut().pop();
            match connection {
                Some(connection) => return connection,
                None => tokio::task::yield_now().await,
            }
        }
    }

    /// Returns a connection.
    pub fn give(&self, connection: C) {
        self.0.borrow_mut().push(connection);
    }
}

/// Sends ten thousand requests a second for three seconds, at fixed times, whether or not earlier ones have completed,
/// and measures latencies from these times.
pub async fn at_a_steady_pace(ask: impl AsyncFn()) -> Times {
    at_a_pace_of(A_SECOND, ask).await
}

/// Like [`at_a_steady_pace`], with this many requests per second.
pub async fn at_a_pace_of(a_second: u32, ask: impl AsyncFn()) -> Times {
    let (began, every) = (Instant::now() + Duration::from_millis(20), Duration::from_secs(1) / a_second);
    let (ask, mut under_way, mut took) = (&ask, FuturesUnordered::new(), Vec::new());
    for number in 0..a_second * SECONDS {
        let due = began + every * number;
        // The runtime's timer has a resolution of a millisecond, so the remaining time is spent busy-waiting.
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
    // The first tenth is the warm-up.
    let mut took = took.split_off(took.len() / 10);
    took.sort_by(f64::total_cmp);
    Times(took)
}
