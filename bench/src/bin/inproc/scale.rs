//! Sizes of runs.

/// The sizes of a run.
pub struct Scale {
    /// The numbers of live keys that checks are timed over.
    pub live: &'static [u64],
    /// The number of turns of each contestant.
    pub rounds: usize,
    /// The number of keys over which memory and pauses are measured.
    pub most: u64,
}

impl Scale {
    pub const FULL: Scale = Scale { live: &[1_000, 1_000_000, 10_000_000], rounds: 3, most: 10_000_000 };
    pub const QUICK: Scale = Scale { live: &[1_000, 1_000_000], rounds: 2, most: 1_000_000 };
}
