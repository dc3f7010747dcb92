//! The longest that a single check takes while 10 M keys come in, while 10 M recovered keys are swept and as many new
//! ones take their place, and while another thread writes snapshots of 10 M keys.
//!
//! Beside governor, whose keys are swept by `retain_recent` on another thread; and beside a loop that only reads the timer,
//! for a machine makes pauses of its own. A pause of ours comes back in every run while the machine's fall anywhere, so
//! "at best" is the run with the shortest worst check. "Processor time" leaves out the time when the thread did not run. The
//! thread may run on any core, as a service's would: what is made ready aside is made ready on another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use governor::clock::FakeRelativeClock;
use governor::{Quota, RateLimiter};
use tidegate_bench::keys::for_each_key;
use tidegate_bench::machine::thread_cpu_time;
use tidegate_bench::report::{Report, Row};
use tidegate_bench::sample::quiet_rounds;
use tidegate_bench::threads::together;
use tidegate_core::{Gate, ManualClock, MemoryStore, Micros, Timestamp};

use crate::contestants::limit;
use crate::scale::Scale;
use crate::speed::named;

const RUNS: usize = 3;
const CHECKS_A_BATCH: usize = 64;

/// The times of checks.
#[derive(Clone, Copy)]
struct Pauses {
    worst: Duration,
    /// The most processor time that one check can have used.
    worst_running: Duration,
    /// All but one in ten thousand were shorter.
    rare: Duration,
}

/// Times every check.
struct Stopwatch {
    nanos: Vec<u32>,
    batch_began: Duration,
    batch_worst: Duration,
    worst_running: Duration,
}

impl Stopwatch {
    fn new(checks: u64) -> Stopwatch {
        // Written once, so that no page of it is first touched while a check is timed.
        let mut nanos = vec![1; checks as usize];
        nanos.clear();
        let zero = Duration::ZERO;
        Stopwatch { nanos, batch_began: thread_cpu_time(), batch_worst: zero, worst_running: zero }
    }

    #[inline]
    fn time(&mut self, check: impl FnOnce()) {
        let began = Instant::now();
        check();
        let took = began.elapsed();
        self.nanos.push(took.as_nanos().min(u128::from(u32::MAX)) as u32);
        self.batch_worst = self.batch_worst.max(took);
        if self.nanos.len().is_multiple_of(CHECKS_A_BATCH) {
            self.end_batch();
        }
    }

    /// Asking for the processor time of each check would cost more than the check, so it is asked for once a batch: the
    /// slowest check of the batch cannot have used more than the whole of it.
    fn end_batch(&mut self) {
        let now = thread_cpu_time();
        self.worst_running = self.worst_running.max(self.batch_worst.min(now - self.batch_began));
        (self.batch_began, self.batch_worst) = (now, Duration::ZERO);
    }

    fn pauses(mut self) -> Pauses {
        self.end_batch();
        let worst = self.nanos.iter().max().copied().unwrap_or(0);
        let rare = self.nanos.len() - 1 - self.nanos.len() / 10_000;
        let (_, &mut rare, _) = self.nanos.select_nth_unstable(rare);
        let nanos = |nanos: u32| Duration::from_nanos(u64::from(nanos));
        Pauses { worst: nanos(worst), worst_running: self.worst_running, rare: nanos(rare) }
    }
}

/// The times of one run: while growing, and while sweeping.
type Run = [Pauses; 2];

pub fn measure(report: &mut Report, scale: &Scale) {
    let began = Instant::now();
    let ours = quiet_rounds(RUNS, |_| our_run(scale.most));
    let control = control(began.elapsed() / (2 * RUNS as u32));
    let governor = governor_run(scale.most);
    let phases = [("growing to", 0), ("sweeping", 1)];
    let rows = phases.into_iter().flat_map(|(phase, at)| {
        let of = |run: &Run| run[at];
        let what = format!("{phase} {} keys", named(scale.most));
        compare(&what, ours.iter().map(of).collect(), of(&governor), control)
    });
    let mut rows: Vec<Row> = rows.collect();
    let saving = quiet_rounds(RUNS, |_| saving_run(scale.most));
    rows.extend(beside_timer(&format!("saving {} keys", named(scale.most)), &saving, control));
    report.section("Pauses of single checks", rows);
}

/// Rows without a peer: governor has no snapshots.
fn beside_timer(what: &str, ours: &[Pauses], control: Pauses) -> Vec<Row> {
    let micros = |pause: Duration| pause.as_secs_f64() * 1e6;
    let best = |of: fn(&Pauses) -> Duration| micros(ours.iter().map(of).min().unwrap_or_default());
    let worst = |of: fn(&Pauses) -> Duration| micros(ours.iter().map(of).max().unwrap_or_default());
    let row = |which: &str, ours, theirs| {
        Row::smaller_is_better(format!("{what}, {which}"), ours, "reading the timer", micros(theirs), "µs")
    };
    vec![
        row("worst check", worst(|run| run.worst), control.worst),
        row("worst check at best", best(|run| run.worst), control.worst),
        row("worst processor time at best", best(|run| run.worst_running), control.worst_running),
        row("all but 1 in 10 000", best(|run| run.rare), control.rare),
    ]
}

fn compare(what: &str, ours: Vec<Pauses>, governor: Pauses, control: Pauses) -> Vec<Row> {
    let micros = |pause: Duration| pause.as_secs_f64() * 1e6;
    let worst = |of: fn(&Pauses) -> Duration| micros(ours.iter().map(of).max().unwrap_or_default());
    let best = |of: fn(&Pauses) -> Duration| micros(ours.iter().map(of).min().unwrap_or_default());
    let row = |which: &str, ours, peer, theirs| {
        Row::smaller_is_better(format!("{what}, {which}"), ours, peer, micros(theirs), "µs")
    };
    vec![
        row("worst check", worst(|run| run.worst), "governor", governor.worst),
        row("worst check", worst(|run| run.worst), "reading the timer", control.worst),
        row("worst check at best", best(|run| run.worst), "governor", governor.worst),
        row("worst processor time", worst(|run| run.worst_running), "governor", governor.worst_running),
        row("worst processor time", worst(|run| run.worst_running), "reading the timer", control.worst_running),
        row("worst processor time at best", best(|run| run.worst_running), "governor", governor.worst_running),
        row("all but 1 in 10 000", best(|run| run.rare), "governor", governor.rare),
    ]
}

fn our_run(keys: u64) -> Run {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000_000));
    let store = Arc::new(MemoryStore::with_clock(clock.clone()));
    let gate = Gate::in_store(store, "gate", limit("1/s burst 10"));
    let check_all = |numbers: std::ops::Range<u64>| {
        let mut stopwatch = Stopwatch::new(keys);
        for_each_key(numbers, |key| {
            stopwatch.time(|| assert!(gate.check(key.as_str()).is_allowed(), "a first check is allowed"));
        });
        stopwatch.pauses()
    };
    let growing = check_all(0..keys);
    assert_eq!(gate.store().stats().keys as u64, keys, "all keys are held");
    clock.advance(Micros::from_secs(3_600));
    let sweeping = check_all(keys..2 * keys);
    let swept = gate.store().stats().swept;
    assert!(swept * 100 > keys * 95, "{swept} of {keys} were swept");
    [growing, sweeping]
}

/// Checks of keys that are all there, while snapshots are written one after the other.
fn saving_run(keys: u64) -> Pauses {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000_000));
    let store = Arc::new(MemoryStore::with_clock(clock));
    let gate = Gate::in_store(Arc::clone(&store), "gate", limit("1/s burst 10"));
    for_each_key(0..keys, |key| assert!(gate.check(key.as_str()).is_allowed(), "a first check is allowed"));
    let is_done = AtomicBool::new(false);
    let timed = together(2, |thread| {
        if thread == 0 {
            let mut stopwatch = Stopwatch::new(keys);
            for_each_key(0..keys, |key| {
                stopwatch.time(|| assert!(gate.check(key.as_str()).is_allowed(), "the burst is 10"));
            });
            is_done.store(true, Ordering::Relaxed);
            return Some(stopwatch.pauses());
        }
        let mut saved = 0;
        while saved == 0 || !is_done.load(Ordering::Relaxed) {
            let counts = store.save(&mut std::io::sink(), b"").expect("a sink takes everything");
            assert_eq!(counts.keys, keys, "every key owes something");
            saved += 1;
        }
        None
    });
    timed.results[0].expect("the first thread timed its checks")
}

fn governor_run(keys: u64) -> Run {
    let clock = FakeRelativeClock::default();
    let quota = Quota::per_second(1.try_into().expect("above zero")).allow_burst(10.try_into().expect("above zero"));
    let limiter = RateLimiter::dashmap_with_clock(quota, clock.clone());
    let check_all = |numbers: std::ops::Range<u64>| {
        let mut stopwatch = Stopwatch::new(keys);
        for_each_key(numbers, |key| {
            stopwatch.time(|| assert!(limiter.check_key(key).is_ok(), "a first check is allowed"));
        });
        stopwatch.pauses()
    };
    let growing = check_all(0..keys);
    assert_eq!(limiter.len() as u64, keys, "all keys are held");
    clock.advance(Duration::from_secs(3_600));
    let sweeping = together(2, |thread| match thread {
        0 => Some(check_all(keys..2 * keys)),
        _ => {
            // Sweeps once the checks have begun.
            while limiter.len() as u64 <= keys {
                std::thread::yield_now();
            }
            limiter.retain_recent();
            None
        }
    });
    assert!((limiter.len() as u64) < keys + keys / 20, "{} keys are left", limiter.len());
    [growing, sweeping.results[0].expect("the first thread timed its checks")]
}

/// Does nothing but read the timer, as often as a check does.
fn control(span: Duration) -> Pauses {
    let began = Instant::now();
    let mut stopwatch = Stopwatch::new(1 << 26);
    while began.elapsed() < span && stopwatch.nanos.len() < 1 << 26 {
        stopwatch.time(|| ());
    }
    stopwatch.pauses()
}
