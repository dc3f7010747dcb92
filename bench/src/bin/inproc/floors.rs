//! The machine's times for the steps of a check: reading the clock, hashing a key of 30 bytes twice, taking and
//! releasing a lock, and a read from memory whose address depends on the previous read.
//!
//! Compared with a check by one thread, to show where its time goes. The ratio is the step's share of the check. The
//! last row of each size adds up the steps that no check of this kind can avoid; the rest could be optimised.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tidegate_bench::keys::{Dice, Order};
use tidegate_bench::report::{Report, Row};
use tidegate_bench::sample::median;
use tidegate_bench::threads::undisturbed;
use tidegate_core::{Clock, SystemClock};

use crate::scale::Scale;
use crate::speed::{Checks, named};

const STEPS: u32 = 1 << 18;
const ROUNDS: usize = 15;
/// Bytes of table per key, so that the arrays have the size of the tables.
const BYTES_A_KEY: u64 = 40;

pub fn measure(report: &mut Report, scale: &Scale, checks: &Checks) {
    let (clock, hashes, lock) = (clock(), hashes(), lock());
    for &live in scale.live {
        let Some(check) = checks.alone(live) else { continue };
        let miss = dependent_reads(live * BYTES_A_KEY);
        let keys = walking(live);
        let at = format!("{} keys", named(live));
        let row = |step: &str, floor: f64| Row::smaller_is_better(format!("{at}: {step}"), check, "floor", floor, "ns");
        let rows = vec![
            row("reading the clock", clock),
            row("hashing 30 bytes twice", hashes),
            row("taking and releasing a lock", lock),
            row(&format!("a dependent read from {}", megabytes(live * BYTES_A_KEY)), miss),
            row("walking the benchmark's own keys", keys),
            row("all of these", clock + hashes + lock + miss + keys),
        ];
        report.section(&format!("Where a check's time goes over {at}"), rows);
    }
    let rows = vec![
        Row::smaller_is_better("reading our clock", clock, "SystemTime::now", system_time(), "ns"),
        Row::smaller_is_better("a lock, one thread", lock, "two threads", shared_locks(), "ns"),
        Row::smaller_is_better("arithmetic, one thread", arithmetic(1), "two threads", arithmetic(2), "ns"),
    ];
    report.section("What two threads cost each other (arithmetic: 2 where both share one core)", rows);
}

fn megabytes(bytes: u64) -> String {
    if bytes < 1_000_000 { format!("{} kB", bytes / 1_000) } else { format!("{} MB", bytes / 1_000_000) }
}

/// Nanoseconds for each of the `STEPS` steps in `steps`.
fn nanos_a_step(steps: impl Fn() + Sync) -> f64 {
    let round = || undisturbed(1, |_| steps()).took.as_nanos() as f64 / f64::from(STEPS);
    round();
    median((0..ROUNDS).map(|_| round()).collect())
}

fn clock() -> f64 {
    let clock = SystemClock::new();
    nanos_a_step(|| {
        for _ in 0..STEPS {
            black_box(clock.now());
        }
    })
}

fn system_time() -> f64 {
    nanos_a_step(|| {
        for _ in 0..STEPS {
            black_box(std::time::SystemTime::now());
        }
    })
}

fn hashes() -> f64 {
    let (first, second) = (ahash::RandomState::new(), ahash::RandomState::new());
    let key = [b'k'; 30];
    nanos_a_step(|| {
        for _ in 0..STEPS {
            let key = black_box(&key[..]);
            black_box((first.hash_one(key), second.hash_one(key)));
        }
    })
}

/// A lock: a swap to acquire it, a plain store to release it.
fn lock() -> f64 {
    let taken = AtomicBool::new(false);
    nanos_a_step(|| {
        for _ in 0..STEPS {
            black_box(taken.swap(true, Ordering::Acquire));
            taken.store(false, Ordering::Release);
        }
    })
}

/// The same with two threads, each choosing one of 2 048 locks at random. They rarely compete for a lock, but often
/// find the cache line on the other core.
fn shared_locks() -> f64 {
    #[repr(align(64))]
    struct Line(AtomicBool);
    let locks: Vec<_> = (0..2048).map(|_| Line(AtomicBool::new(false))).collect();
    let two = undisturbed(2, |number| {
        let mut dice = Dice::new(number as u64);
        for _ in 0..STEPS {
            let taken = &locks[dice.below(2048) as usize].0;
            black_box(taken.swap(true, Ordering::Acquire));
            taken.store(false, Ordering::Release);
        }
    });
    two.took.as_nanos() as f64 / f64::from(STEPS)
}

/// Steps without memory access. Two threads slow each other down only if they share a core.
fn arithmetic(threads: usize) -> f64 {
    let rounds = (0..ROUNDS).map(|_| {
        let run = undisturbed(threads, |number| {
            let mut dice = Dice::new(number as u64);
            black_box((0..STEPS).fold(0, |sum, _| sum ^ dice.roll()));
        });
        run.took.as_nanos() as f64 / f64::from(STEPS)
    });
    median(rounds.collect())
}

/// Follows one cycle through all cache lines of an array.
fn dependent_reads(bytes: u64) -> f64 {
    #[repr(align(64))]
    #[derive(Clone)]
    struct Line(u32);
    let mut lines: Vec<_> = (0..(bytes / 64).max(1) as u32).map(Line).collect();
    let mut dice = Dice::new(1);
    for last in (1..lines.len()).rev() {
        let other = dice.below(last as u64) as usize;
        let (here, there) = (lines[last].0, lines[other].0);
        (lines[last].0, lines[other].0) = (there, here);
    }
    // Each round continues where the last one ended, so that no round finds its lines in a cache.
    let last = AtomicU32::new(0);
    nanos_a_step(|| {
        let end = (0..STEPS).fold(last.load(Ordering::Relaxed), |at, _| lines[at as usize].0);
        last.store(end, Ordering::Relaxed);
    })
}

/// Reads a byte of each key, in the order of the checks.
fn walking(live: u64) -> f64 {
    let mut order = Order::of_length((STEPS as usize).min(8 * live as usize));
    order.draw(live, 1);
    let passes = STEPS as usize / order.keys().len();
    nanos_a_step(|| {
        for _ in 0..passes {
            black_box(order.keys().iter().map(|key| u64::from(key.as_bytes()[key.len() - 1])).sum::<u64>());
        }
    })
}
