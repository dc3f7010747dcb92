//! Load at a steady pace: how long answers take when so many are asked for every second.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};

const A_SECOND: u32 = 10_000;
const SECONDS: u32 = 3;

/// The response times in microseconds, the shortest first.
pub struct Times(Vec<f64>);

impl Times {
    /// So many of them are not longer than this.
    pub fn quantile(&self, part: f64) -> f64 {
        self.0[((self.0.len() - 1) as f64 * part) as usize]
    }
}

/// Connections that nobody uses.
pub struct Idle<C>(RefCell<Vec<C>>);

impl<C> Idle<C> {
    /// These, to begin with.
    pub fn new(connections: Vec<C>) -> Idle<C> {
        Idle(RefCell::new(connections))
    }

    /// One of them. Waiting for one counts as waiting for the answer.
    pub async fn take(&self) -> C {
        loop {
            let connection = self.0.borrow_mut().pop();
            match connection {
                Some(connection) => return connection,
                None => tokio::task::yield_now().await,
            }
        }
    }

    /// Gives one back.
    pub fn give(&self, connection: C) {
        self.0.borrow_mut().push(connection);
    }
}

/// Asks ten thousand times a second for three seconds, at fixed instants, whether or not earlier requests have been answered,
/// and measures from the instant that each was due.
pub async fn at_a_steady_pace(ask: impl AsyncFn()) -> Times {
    at_a_pace_of(A_SECOND, ask).await
}

/// The same, so many times a second.
pub async fn at_a_pace_of(a_second: u32, ask: impl AsyncFn()) -> Times {
    let (began, every) = (Instant::now() + Duration::from_millis(20), Duration::from_secs(1) / a_second);
    let (ask, mut under_way, mut took) = (&ask, FuturesUnordered::new(), Vec::new());
    for number in 0..a_second * SECONDS {
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
    Times(took)
}
