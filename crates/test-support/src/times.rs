//! The number of random cases of a test.

/// This number of cases, multiplied by the environment variable `TIMES`.
///
/// `make nightly` sets the variable to 10.
pub fn times(cases: u32) -> u32 {
    let times = std::env::var("TIMES").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    cases.saturating_mul(times)
}
