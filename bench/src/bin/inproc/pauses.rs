//! The longest single check while 10 M keys are added, and while 10 M recovered keys are swept and replaced by as many new
//! ones.
//!
//! Compared with governor, whose keys are swept by `retain_recent` on another thread, and with a loop that only reads
//! the timer, because the machine causes pauses of its own. A pause by the engine recurs in every run, while the
//! machine's occur at random, so "at best" is the run with the shortest worst check. "Processor time" excludes the time
//! during which the thread did not run. The thread may run on any core, as in a service: work that is prepared in the
//! background is prepared on another core.

use std::sync::Arc;
use std::time::{Duration, Instant};

use governor::clock::FakeRelativeClock;
use governor::{Quota, RateLimiter};
use tidegate_bench::keys::for_each_key;
use tidegate_bench::report::{Report, Row};
use tidegate_bench::sample::quiet_rounds;
use tidegate_bench::stopwatch::{Pauses, Stopwatch, control};
use tidegate_bench::threads::together;
use tidegate_core::{Gate, ManualClock, MemoryStore, Micros, Timestamp};

use crate::contestants::limit;
use crate::scale::Scale;
use crate::speed::named;

const RUNS: usize = 3;

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
    report.section("Pauses of single checks", rows.collect());
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
            // Starts sweeping once the checks have begun.
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
