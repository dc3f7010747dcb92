//! Per-thread counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// `N` counters with separate cache lines for each thread, to avoid false sharing and contention. Threads beyond
/// [`owners`] share a few lines.
///
/// Clones share the counters.
#[derive(Clone, Debug)]
pub(super) struct ThreadCounters<const N: usize> {
    /// Lines of counters. All but the last few are written by one thread only.
    lines: Arc<[CounterLine<N>]>,
}

#[derive(Debug)]
#[repr(align(64))]
struct CounterLine<const N: usize>([AtomicU64; N]);

/// Number of shared lines, a power of two.
const SHARED: usize = 2;
/// Maximum number of threads with their own lines.
const MOST_OWNERS: usize = 64;

impl<const N: usize> ThreadCounters<N> {
    pub(super) fn new() -> ThreadCounters<N> {
        let line = |_| CounterLine(std::array::from_fn(|_| AtomicU64::new(0)));
        ThreadCounters { lines: (0..owners() + SHARED).map(line).collect() }
    }

    /// Adds to the counter with this index.
    #[inline]
    pub(super) fn add(&self, counter: usize, by: u64) {
        self.add_each([(counter, by)]);
    }

    /// Adds to several counters, with one lookup of the thread's lines.
    #[inline]
    pub(super) fn add_each<const M: usize>(&self, counters: [(usize, u64); M]) {
        let number = thread::number();
        let owned = self.lines.len() - SHARED;
        if number < owned {
            let line = &self.lines[number].0;
            for (counter, by) in counters {
                // Only this thread writes the line, so a load and a store replace an atomic addition.
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
        for CounterLine(line) in &*self.lines {
            counts.iter_mut().zip(line).for_each(|(sum, count)| *sum = sum.wrapping_add(count.load(Ordering::Relaxed)));
        }
        counts
    }
}

/// Number of threads with their own lines: the available parallelism.
pub(super) fn owners() -> usize {
    static OWNERS: OnceLock<usize> = OnceLock::new();
    *OWNERS.get_or_init(|| std::thread::available_parallelism().map_or(4, std::num::NonZero::get).min(MOST_OWNERS))
}

/// Assigns each thread the lowest free number.
mod thread {
    use std::collections::BTreeSet;
    use std::sync::{Mutex, PoisonError};

    struct Numbers {
        given_back: BTreeSet<usize>,
        next: usize,
    }

    static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { given_back: BTreeSet::new(), next: 0 });

    /// Number of a thread, released when it ends.
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
            // The lock orders this thread's writes before those of the number's next owner.
            NUMBERS.lock().unwrap_or_else(PoisonError::into_inner).given_back.insert(self.0);
        }
    }

    /// Number of this thread. Unique among running threads, except while they terminate.
    #[inline]
    pub(super) fn number() -> usize {
        thread_local! {
            static OWN: Own = Own::draw();
        }
        OWN.try_with(|own| own.0).unwrap_or(usize::MAX)
    }
}
