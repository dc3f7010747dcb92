//! How many random cases a test runs.

/// This number of cases, multiplied by the environment variable `TIMES`.
///
/// `make test` runs as many as find every defect that the tests are known to find; `make nightly` sets the variable.
pub fn times(cases: u32) -> u32 {
    let times = std::env::var("TIMES").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    cases.saturating_mul(times)
}
