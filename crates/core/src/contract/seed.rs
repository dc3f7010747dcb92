//! Seeds of tests that draw random numbers.
//!
//! A seed is printed when it is drawn; the test harness shows it if the test fails.

use std::ops::Range;

/// The environment variable that sets the seed of every random test outside proptest.
pub const SEED_VARIABLE: &str = "TIDEGATE_TEST_SEED";

/// The seed in [`SEED_VARIABLE`], or else `usual`.
///
/// # Panics
/// Panics if the variable is not a whole number.
#[must_use]
pub fn seed(usual: u64) -> u64 {
    printed(from_environment().unwrap_or(usual))
}

/// The seed in [`SEED_VARIABLE`], or else all of `usual` in turn.
///
/// # Panics
/// Panics if the variable is not a whole number.
pub fn seeds(usual: Range<u64>) -> impl Iterator<Item = u64> {
    let only = from_environment();
    let usual = if only.is_some() { 0..0 } else { usual };
    only.into_iter().chain(usual).map(printed)
}

fn from_environment() -> Option<u64> {
    let text = std::env::var(SEED_VARIABLE).ok()?;
    match text.parse() {
        Ok(seed) => Some(seed),
        Err(_) => panic!("{SEED_VARIABLE} is `{text}`: write a whole number from 0 to {}", u64::MAX),
    }
}

fn printed(seed: u64) -> u64 {
    println!("drawn at random; to draw the same: {SEED_VARIABLE}={seed}");
    seed
}
