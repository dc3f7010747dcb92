//! Load of clients that each have one request in flight.

use std::future::Future;
use std::num::NonZeroU32;
use std::time::Duration;

use tokio::task::JoinSet;

use super::BenchError;
use super::latencies::Latencies;

/// Maximum number of checks by one client, whatever the time.
const MOST_CHECKS: u64 = 100_000_000;

/// The clock and the time of one measurement.
#[derive(Clone, Debug)]
pub(super) struct MeasuredWindow {
    pub(super) clock: quanta::Clock,
    /// Duration, including the warm-up.
    pub(super) time: Duration,
}

/// Begin and end of measuring, in nanoseconds of the clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct LatencyTimes {
    pub(super) begin: u64,
    pub(super) end: u64,
}

impl MeasuredWindow {
    /// The times of a measurement that starts now. The warm-up takes a tenth.
    pub(super) fn times(&self) -> LatencyTimes {
        let time = u64::try_from(self.time.as_nanos()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4);
        let now = self.nanos();
        LatencyTimes { begin: now + time / 10, end: now + time }
    }

    /// The reading of the clock, in nanoseconds.
    pub(super) fn nanos(&self) -> u64 {
        self.clock.delta_as_nanos(0, self.clock.raw())
    }
}

/// Client of the part that is measured.
pub(super) trait LoadClient: Send + 'static {
    /// Sends a request for this key. Returns whether it is allowed.
    fn ask(&mut self, key: u32) -> impl Future<Output = Result<bool, BenchError>> + Send;
}

/// Keeps one request of each client in flight, for keys drawn at random, and times each of them.
pub(super) async fn drive<C: LoadClient>(
    clients: Vec<C>,
    keys: NonZeroU32,
    window: MeasuredWindow,
) -> Result<Latencies, BenchError> {
    let times = window.times();
    let mut tasks = JoinSet::new();
    for (seed, client) in (0..).zip(clients) {
        let window = window.clone();
        tasks.spawn(ask_until(client, fastrand::Rng::with_seed(seed), keys, window, times));
    }
    let mut all = Vec::new();
    while let Some(done) = tasks.join_next().await {
        all.push(done.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?);
    }
    Ok(Latencies::merged(all))
}

async fn ask_until<C: LoadClient>(
    mut client: C,
    mut random: fastrand::Rng,
    keys: NonZeroU32,
    window: MeasuredWindow,
    times: LatencyTimes,
) -> Result<Latencies, BenchError> {
    let mut latencies = Latencies::new();
    let (mut first, mut before) = (None, window.nanos());
    for _ in 0..MOST_CHECKS {
        let is_allowed = client.ask(random.u32(0..keys.get())).await?;
        let after = window.nanos();
        if after >= times.begin {
            first.get_or_insert(before);
            latencies.add(after - before);
            latencies.count(1, is_allowed.into());
        }
        before = after;
        if after >= times.end {
            break;
        }
    }
    let took = before - first.unwrap_or(before);
    Ok(latencies.took(Duration::from_nanos(took)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that takes 1 ms for each request, by a mock clock that only it advances, and allows even keys.
    struct Even(std::sync::Arc<quanta::Mock>);

    impl LoadClient for Even {
        async fn ask(&mut self, key: u32) -> Result<bool, BenchError> {
            self.0.increment(Duration::from_millis(1));
            Ok(key.is_multiple_of(2))
        }
    }

    #[tokio::test]
    async fn a_measurement_counts_what_ends_after_the_warm_up() {
        let (clock, mock) = quanta::Clock::mock();
        let window = MeasuredWindow { clock, time: Duration::from_millis(1_000) };
        let latencies = drive(vec![Even(mock)], NonZeroU32::new(1_000).unwrap(), window).await.unwrap();
        let measured = latencies.measurement("even", String::new());
        assert_eq!(measured.checks, 901);
        assert!((measured.per_second - 1_000.0).abs() < 1.0, "{measured:?}");
        assert!((1_000_000..1_063_000).contains(&measured.p99_ns), "{measured:?}");
        assert!((300..600).contains(&measured.allowed), "{measured:?}");
    }
}
