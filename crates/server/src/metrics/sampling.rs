//! Which requests are looked at more closely.
//!
//! Telling keys apart and reading clocks costs more than counting. While there is little to do every request is looked at;
//! past that, and as long as there is more to do, one in so many, by chance, and it stands for as many as were passed over.

use std::cell::Cell;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many requests a thread looks at in one beat before it begins to choose. If more come, it chooses from the beginning
/// in the next.
const QUIET: u32 = 1_000;
/// How many requests one stands for after that.
const STRIDE: u32 = 64;

/// For how many requests one stands.
pub(super) type Weight = NonZeroU32;

/// The beats in which requests are counted: from one [`Pulse::beat`] to the next.
#[derive(Debug)]
pub(super) struct Pulse(AtomicU64);

#[derive(Clone, Copy)]
struct Local {
    beat: u64,
    /// How many came in this beat.
    came: u32,
    /// Whether all of the first are looked at in this beat.
    is_quiet: bool,
    skip: u32,
    random: u64,
}

thread_local! {
    static LOCAL: Cell<Local> = const { Cell::new(Local { beat: 0, came: 0, is_quiet: true, skip: 0, random: 0 }) };
}

impl Pulse {
    pub(super) fn new() -> Pulse {
        // So that threads which serve several do not take the beat of one for that of another.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Pulse(AtomicU64::new(NEXT.fetch_add(1, Ordering::Relaxed) << 40))
    }

    /// The present beat.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Begins the next beat.
    pub(super) fn beat(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether to look at the next request, and for how many it stands.
    #[inline]
    pub(super) fn sample(&self) -> Option<Weight> {
        LOCAL.with(|cell| {
            let mut local = cell.get();
            let beat = self.now();
            if local.beat != beat {
                local.begin(beat);
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

impl Local {
    #[cold]
    fn begin(&mut self, beat: u64) {
        if self.random == 0 {
            self.random = fastrand::u64(1..);
        }
        self.is_quiet = self.came <= QUIET || self.beat + 1 < beat;
        (self.beat, self.came) = (beat, 0);
        self.skip = self.draw();
    }

    /// How many to pass over: by chance, so that no pattern in the traffic is always or never seen.
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
    fn little_traffic_is_looked_at_whole_and_much_by_chance() {
        let pulse = Pulse::new();
        let beat = |requests: u32| -> Vec<u32> {
            pulse.beat();
            (0..requests).filter_map(|_| pulse.sample()).map(Weight::get).collect()
        };
        for after_little in [true, false, false] {
            let weights = beat(1_000_000);
            assert_eq!(weights[..1_000].iter().all(|&weight| weight == 1), after_little);
            let stood_for: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
            assert!(stood_for.abs_diff(1_000_000) < 50_000, "{stood_for}");
        }
        beat(1_000);
        assert_eq!(beat(1_000), [1; 1_000]);
        assert_eq!(beat(1_001)[..1_000], [1; 1_000]);
        assert!(beat(1_000).len() < 100);
        beat(1_001);
        pulse.beat();
        assert_eq!(beat(1_000), [1; 1_000]);
    }
}
