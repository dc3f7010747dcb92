//! The time that the client adds to a call, and the time that a fleet takes under a limit.
//!
//! `overhead`: GET on a kept-alive connection to a server on this machine that responds immediately and states no
//! limits: reqwest alone, with Tidegate's client, and with reqwest-retry. In process: the layer around a service that
//! responds immediately, with and without a limit in its responses.
//!
//! `fleet`: a thousand tasks call a service that allows 500 requests a second, all starting at once. Measures the time
//! until every call has succeeded, compared with the ideal, in which the limit is always used fully. Every contestant
//! makes the same number of successful calls.

mod fleet;
mod overhead;

use tidegate_bench::report::Report;

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut report = Report::default();
    overhead::measure(&mut report)?;
    fleet::measure(&mut report)?;
    report.write("client");
    Ok(())
}
