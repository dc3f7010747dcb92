//! Clocks in virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use tidegate_core::{Clock, Timestamp};
use tokio::time::Instant;

/// The first instant, in microseconds, which is not aligned to a minute.
const START: u64 = 1_794_700_813_000_000;

/// True time: that of the runtime, plus the time for which everything was suspended. Clones share it.
#[derive(Clone)]
pub(crate) struct TrueTime {
    start: Instant,
    stood_still: Arc<AtomicU64>,
}

impl TrueTime {
    /// Starts now.
    pub(crate) fn new() -> TrueTime {
        TrueTime { start: Instant::now(), stood_still: Arc::default() }
    }

    /// Suspends everything for this many milliseconds, without any timer noticing.
    pub(crate) fn stand_still(&self, millis: u64) {
        self.stood_still.fetch_add(1_000 * millis, Ordering::Relaxed);
    }

    fn passed(&self) -> u64 {
        let of_runtime = u64::try_from(Instant::now().duration_since(self.start).as_micros()).unwrap();
        of_runtime + self.stood_still.load(Ordering::Relaxed)
    }
}

impl Clock for TrueTime {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(START + self.passed())
    }
}

/// The clock of a node, which is faster than true time by this many 65 536ths.
#[derive(Clone)]
pub(crate) struct NodeClock {
    pub(crate) time: TrueTime,
    pub(crate) drift: i64,
}

impl Clock for NodeClock {
    fn now(&self) -> Timestamp {
        let rate = u128::from((65_536 + self.drift).unsigned_abs());
        Timestamp::from_micros(u64::try_from(u128::from(self.time.passed()) * rate / 65_536).unwrap() + 1_000_000)
    }
}

/// The clock of the server, which can be set. Clones share it.
#[derive(Clone)]
pub(crate) struct ServerClock {
    pub(crate) time: TrueTime,
    pub(crate) ahead: Arc<AtomicI64>,
}

impl ServerClock {
    /// Moves the clock ahead or back by this many milliseconds.
    pub(crate) fn step(&self, millis: i64) {
        self.ahead.fetch_add(1_000 * millis, Ordering::Relaxed);
    }
}

impl Clock for ServerClock {
    fn now(&self) -> Timestamp {
        let micros = self.time.now().as_micros();
        Timestamp::from_micros(micros.saturating_add_signed(self.ahead.load(Ordering::Relaxed)))
    }
}
