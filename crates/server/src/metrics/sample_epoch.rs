//! Sampling of requests.
//!
//! Ranking keys and reading clocks costs more than counting. With little traffic, every request is inspected. With more
//! traffic, one request in [`STRIDE`] is chosen at random, and its weight accounts for the skipped ones.

use std::cell::Cell;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

/// Requests per epoch that a thread inspects before it starts sampling. After a busy epoch, it samples from the start
/// of the next one.
const QUIET: u32 = 1_000;
/// Weight of a sampled request.
const STRIDE: u32 = 64;

/// Number of requests that a sampled one accounts for.
pub(super) type Weight = NonZeroU32;

/// Sampling epoch, from one [`SampleEpoch::tick`] to the next.
#[derive(Debug)]
pub(super) struct SampleEpoch(AtomicU64);

#[derive(Clone, Copy)]
struct ThreadSampler {
    epoch: u64,
    /// Number of requests in this epoch.
    came: u32,
    /// Whether the first requests of this epoch are all inspected.
    is_quiet: bool,
    skip: u32,
    random: u64,
}

thread_local! {
    static LOCAL: Cell<ThreadSampler> = const { Cell::new(ThreadSampler { epoch: 0, came: 0, is_quiet: true, skip: 0, random: 0 }) };
}

impl SampleEpoch {
    pub(super) fn new() -> SampleEpoch {
        // Each value uses a distinct range, so that a thread that serves several engines does not confuse their epochs.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        SampleEpoch(AtomicU64::new(NEXT.fetch_add(1, Ordering::Relaxed) << 40))
    }

    /// Current epoch.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Starts the next epoch.
    pub(super) fn tick(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Weight of the next request, if it is sampled.
    #[inline]
    pub(super) fn sample(&self) -> Option<Weight> {
        LOCAL.with(|cell| {
            let mut local = cell.get();
            let epoch = self.now();
            if local.epoch != epoch {
                local.begin(epoch);
            }
            local.came = local.came.saturating_add(1);
            let sample = if local.is_quiet && local.came <= QUIET {
                Some(Weight::MIN)
            } else if local.skip > 0 {
                local.skip -= 1;
                None
            } else {
                local.skip = local.draw();
                Weight::new(STRIDE)
            };
            cell.set(local);
            sample
        })
    }
}

impl ThreadSampler {
    #[cold]
    fn begin(&mut self, epoch: u64) {
        if self.random == 0 {
            self.random = fastrand::u64(1..);
        }
        self.is_quiet = self.came <= QUIET || self.epoch + 1 < epoch;
        (self.epoch, self.came) = (epoch, 0);
        self.skip = self.draw();
    }

    /// Number of requests to skip. Random, so that no traffic pattern is always or never sampled.
    fn draw(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        u32::try_from(self.random % u64::from(2 * STRIDE - 1)).unwrap_or(STRIDE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn light_traffic_is_inspected_fully_and_heavy_traffic_sampled() {
        let epoch = SampleEpoch::new();
        let sampled = |requests: u32| -> Vec<u32> {
            epoch.tick();
            (0..requests).filter_map(|_| epoch.sample()).map(Weight::get).collect()
        };
        for after_little in [true, false, false] {
            let weights = sampled(1_000_000);
            assert_eq!(weights[..1_000].iter().all(|&weight| weight == 1), after_little);
            let stood_for: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
            assert!(stood_for.abs_diff(1_000_000) < 50_000, "{stood_for}");
        }
        sampled(1_000);
        assert_eq!(sampled(1_000), [1; 1_000]);
        assert_eq!(sampled(1_001)[..1_000], [1; 1_000]);
        assert!(sampled(1_000).len() < 100);
        sampled(1_001);
        epoch.tick();
        assert_eq!(sampled(1_000), [1; 1_000]);
    }
}
