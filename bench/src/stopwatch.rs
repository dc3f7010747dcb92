//! Times of single checks, and the longest of them.

use std::time::{Duration, Instant};

use crate::machine::thread_cpu_time;

const CHECKS_A_BATCH: usize = 64;
/// The number of times that [`control`] reads the timer at most.
const MOST_READINGS: usize = 1 << 26;

/// Statistics of the times of checks.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    /// The longest check.
    pub worst: Duration,
    /// Upper bound of the processor time of a single check.
    pub worst_running: Duration,
    /// All but one check in ten thousand were shorter.
    pub rare: Duration,
}

/// Times every check.
pub struct Stopwatch {
    nanos: Vec<u32>,
    batch_began: Duration,
    batch_worst: Duration,
    worst_running: Duration,
}

impl Stopwatch {
    /// A stopwatch with room for so many checks.
    pub fn new(checks: u64) -> Stopwatch {
        // Written once, so that no page is first touched while a check is timed.
        let mut nanos = vec![1; checks as usize];
        nanos.clear();
        let zero = Duration::ZERO;
        Stopwatch { nanos, batch_began: thread_cpu_time(), batch_worst: zero, worst_running: zero }
    }

    /// Times one check.
    #[inline]
    pub fn time(&mut self, check: impl FnOnce()) {
        let began = Instant::now();
        check();
        let took = began.elapsed();
        self.nanos.push(took.as_nanos().min(u128::from(u32::MAX)) as u32);
        self.batch_worst = self.batch_worst.max(took);
        if self.nanos.len().is_multiple_of(CHECKS_A_BATCH) {
            self.end_batch();
        }
    }

    /// Reads the processor time once per batch, because reading it costs more than a check. The slowest check of the
    /// batch cannot have used more than the whole batch.
    fn end_batch(&mut self) {
        let now = thread_cpu_time();
        self.worst_running = self.worst_running.max(self.batch_worst.min(now - self.batch_began));
        (self.batch_began, self.batch_worst) = (now, Duration::ZERO);
    }

    /// Number of checks so far.
    pub const fn checks(&self) -> usize {
        self.nanos.len()
    }

    /// The statistics of all checks, of which there is at least one.
    pub fn pauses(mut self) -> Pauses {
        self.end_batch();
        let worst = self.nanos.iter().max().copied().unwrap_or(0);
        let rare = self.nanos.len() - 1 - self.nanos.len() / 10_000;
        let (_, &mut rare, _) = self.nanos.select_nth_unstable(rare);
        let nanos = |nanos: u32| Duration::from_nanos(u64::from(nanos));
        Pauses { worst: nanos(worst), worst_running: self.worst_running, rare: nanos(rare) }
    }
}

/// Only reads the timer, for as long as the checks take: the machine causes pauses of its own.
pub fn control(span: Duration) -> Pauses {
    let began = Instant::now();
    let mut stopwatch = Stopwatch::new(MOST_READINGS as u64);
    while began.elapsed() < span && stopwatch.checks() < MOST_READINGS {
        stopwatch.time(|| ());
    }
    stopwatch.pauses()
}
