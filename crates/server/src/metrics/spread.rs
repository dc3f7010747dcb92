//! Counters that threads do not share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// `N` counters that threads do not share, so that they do not wait for each other: whole cache lines for each thread, and a few
/// for all threads beyond those that have some.
///
/// A clone counts together with it.
#[derive(Clone, Debug)]
pub(super) struct Spread<const N: usize> {
    /// Those for all come last. Each of the others is written by one thread only.
    lines: Arc<[Line<N>]>,
}

#[derive(Debug)]
#[repr(align(64))]
struct Line<const N: usize>([AtomicU64; N]);

/// A power of two.
const SHARED: usize = 2;
/// The most threads that have lines of their own.
const MOST_OWNERS: usize = 64;

impl<const N: usize> Spread<N> {
    pub(super) fn new() -> Spread<N> {
        let line = |_| Line(std::array::from_fn(|_| AtomicU64::new(0)));
        Spread { lines: (0..owners() + SHARED).map(line).collect() }
    }

    /// Adds to the counter with this number.
    #[inline]
    pub(super) fn add(&self, counter: usize, by: u64) {
        self.add_each([(counter, by)]);
    }

    /// Adds to several counters. The thread's lines are looked up once.
    #[inline]
    pub(super) fn add_each<const M: usize>(&self, counters: [(usize, u64); M]) {
        let number = thread::number();
        let owned = self.lines.len() - SHARED;
        if number < owned {
            let line = &self.lines[number].0;
            for (counter, by) in counters {
                // Nobody else writes it, so that nothing comes in between.
                line[counter].store(line[counter].load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
            }
        } else {
            let line = &self.lines[owned + number % SHARED].0;
            for (counter, by) in counters {
                line[counter].fetch_add(by, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn counts(&self) -> [u64; N] {
        let mut counts = [0_u64; N];
        for Line(line) in &*self.lines {
            counts.iter_mut().zip(line).for_each(|(sum, count)| *sum = sum.wrapping_add(count.load(Ordering::Relaxed)));
        }
        counts
    }
}

/// How many threads have lines of their own: as many as can run at once.
pub(super) fn owners() -> usize {
    static OWNERS: OnceLock<usize> = OnceLock::new();
    *OWNERS.get_or_init(|| std::thread::available_parallelism().map_or(4, std::num::NonZero::get).min(MOST_OWNERS))
}

/// Numbers for threads, the lowest that no thread has.
mod thread {
    use std::collections::BTreeSet;
    use std::sync::{Mutex, PoisonError};

    struct Numbers {
        given_back: BTreeSet<usize>,
        next: usize,
    }

    static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { given_back: BTreeSet::new(), next: 0 });

    /// A thread's own, until it ends.
    struct Own(usize);

    impl Own {
        fn draw() -> Own {
            let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
            Own(numbers.given_back.pop_first().unwrap_or_else(|| {
                numbers.next += 1;
                numbers.next - 1
            }))
        }
    }

    impl Drop for Own {
        fn drop(&mut self) {
            // Who has it next sees all that this thread has written: both hold the lock in between.
            NUMBERS.lock().unwrap_or_else(PoisonError::into_inner).given_back.insert(self.0);
        }
    }

    /// That of this thread. No two that run have the same, but for what threads do while they end.
    #[inline]
    pub(super) fn number() -> usize {
        thread_local! {
            static OWN: Own = Own::draw();
        }
        OWN.try_with(|own| own.0).unwrap_or(usize::MAX)
    }
}
