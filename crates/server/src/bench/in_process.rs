//! Checks in this process, without rules or sockets.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Barrier;
use std::time::Duration;

use tidegate_core::{Gate, Limit};

use super::latencies::Latencies;
use super::load::MeasuredWindow;

/// One check in this many is timed: reading the clock would take as long as a check.
const ONE_IN: u64 = 64;

/// Maximum number of checks by one thread, whatever the time.
const MOST_CHECKS: u64 = 100_000_000_000;

/// Checks on this many threads, for keys drawn at random.
pub(super) fn measure(keys: NonZeroU32, threads: NonZeroUsize, window: &MeasuredWindow) -> Latencies {
    let gate = Gate::new(limit(keys));
    let keys: Vec<String> = (0..keys.get()).map(|number| format!("user-{number:08}")).collect();
    let start = Barrier::new(threads.get());
    let (gate, keys, start) = (&gate, &keys[..], &start);
    std::thread::scope(|scope| {
        let work = |seed: usize| {
            let random = fastrand::Rng::with_seed(seed as u64);
            scope.spawn(move || {
                start.wait();
                check_until(gate, keys, random, window)
            })
        };
        let threads: Vec<_> = (0..threads.get()).map(work).collect();
        let done = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        Latencies::merged(done.map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))))
    })
}

/// A limit that a single key reaches only at the highest rate. Many keys do not reach theirs, but always have used part of it.
fn limit(keys: NonZeroU32) -> Limit {
    let text = if keys.get() == 1 { "10000000/s burst 10000000" } else { super::loopback::LIMIT };
    text.parse().unwrap_or_else(|error| panic!("a constant is a valid limit: {error}"))
}

fn check_until(gate: &Gate, keys: &[String], mut random: fastrand::Rng, window: &MeasuredWindow) -> Latencies {
    let times = window.times();
    let mut latencies = Latencies::new();
    let (mut begun, mut now) = (None, window.nanos());
    for _ in 0..MOST_CHECKS / ONE_IN {
        let mut allowed = 0_u64;
        for _ in 1..ONE_IN {
            allowed += u64::from(gate.check(keys[random.usize(0..keys.len())].as_str()).is_allowed());
        }
        let key = keys[random.usize(0..keys.len())].as_str();
        let before = window.nanos();
        allowed += u64::from(gate.check(key).is_allowed());
        let after = window.nanos();
        if now >= times.begin {
            begun.get_or_insert(now);
            latencies.add(after - before);
            latencies.count(ONE_IN, allowed);
        }
        now = after;
        if now >= times.end {
            break;
        }
    }
    let took = now - begun.unwrap_or(now);
    latencies.took(Duration::from_nanos(took))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_check_and_are_mostly_allowed() {
        let window = MeasuredWindow { clock: quanta::Clock::new(), time: Duration::from_millis(50) };
        let measured = measure(NonZeroU32::new(100).unwrap(), NonZeroUsize::new(2).unwrap(), &window);
        let measured = measured.measurement("two", String::new());
        assert!(measured.checks >= 2 * ONE_IN && measured.allowed == measured.checks, "{measured:?}");
        assert!(measured.per_second > 0.0 && measured.p50_ns <= measured.p99_ns, "{measured:?}");
    }
}
