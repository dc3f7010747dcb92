//! Counters that threads do not share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::tally::Said;

/// How often each was [`Said`].
pub(super) type Counts = [u64; 8];

/// Counters that threads do not share, so that they do not wait for each other: a cache line for each thread, and a few for all
/// threads beyond those that have one.
///
/// A clone counts together with it.
#[derive(Clone, Debug)]
pub(super) struct Spread {
    /// Those for all come last. Each of the others is written by one thread only.
    lines: Arc<[Line]>,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU64; 8]);

/// A power of two.
const SHARED: usize = 2;
/// The most threads that have lines of their own.
const MOST_OWNERS: usize = 64;

impl Spread {
    pub(super) fn new() -> Spread {
        Spread { lines: (0..owners() + SHARED).map(|_| Line::default()).collect() }
    }

    #[inline]
    pub(super) fn add(&self, said: Said) {
        let number = thread::number();
        let owned = self.lines.len() - SHARED;
        if number < owned {
            // Nobody else writes it, so that nothing comes in between.
            let count = &self.lines[number].0[said as usize];
            count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        } else {
            self.lines[owned + number % SHARED].0[said as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for Line(line) in &*self.lines {
            counts.iter_mut().zip(line).for_each(|(sum, count)| *sum += count.load(Ordering::Relaxed));
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
