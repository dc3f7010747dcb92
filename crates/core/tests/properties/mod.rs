//! Properties of the engine, tested on random traces.
//!
//! [`model`] contains a slow and simple model of each algorithm. Every other
//! module is one family of properties. Nothing sleeps or reads a clock.
//!
//! Each test runs a number of cases that keeps the whole suite within a minute. For a hundred times as many cases:
//! `TIMES=100 cargo test -p tidegate-core --test tests`.

mod model;

mod batches;
mod buckets;
mod carry_over;
mod clock;
mod concurrency;
mod denial;
mod extremes;
mod memory;
mod models;
mod refunds;
mod shaper;
mod shares;
mod traps;
mod windows;

use proptest::test_runner::Config;
use tidegate_test_support::times;

/// The number of cases, multiplied by the environment variable `TIMES`.
fn cases(cases: u32) -> Config {
    let cases = times(cases);
    Config { max_shrink_iters: 20_000, max_global_rejects: cases.saturating_mul(10), ..Config::with_cases(cases) }
}
