//! What the engine promises, tried on traces that nobody would write by hand.
//!
//! [`model`] holds a slow and obvious twin of each algorithm; [`limits`] and [`traces`] draw what the tests are tried
//! on. Every other module is one family of promises. Nothing sleeps and nothing reads a clock.
//!
//! Each test runs a number of cases that keeps the whole suite within a minute. For a hundred times as many:
//! `TIMES=100 cargo test -p tidegate-core --test properties`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod limits;
mod model;
mod traces;

mod buckets;
mod changing;
mod clock;
mod concurrency;
mod denial;
mod extremes;
mod giving_back;
mod memory;
mod models;
mod shaper;
mod shares;
mod together;
mod traps;
mod windows;

use proptest::test_runner::Config;

/// So many cases, or a multiple of them if the environment says so.
fn cases(cases: u32) -> Config {
    let times = std::env::var("TIMES").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    let cases = cases.saturating_mul(times);
    Config { max_shrink_iters: 20_000, max_global_rejects: cases.saturating_mul(10), ..Config::with_cases(cases) }
}
