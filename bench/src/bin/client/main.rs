//! The time that the client adds to a call, and the time of a fleet under a limit.
//!
//! `overhead`: GET on a kept-alive connection to a server on this machine that answers at once and states no limits: reqwest alone, ours
//! around it, and reqwest-retry around it. In process: the layer around a service that answers at once, with and without a limit in its
//! responses.
//!
//! `fleet`: a thousand tasks make calls to a service that allows 500 a second, all of them at once at the beginning. Measured is the
//! time until every call has succeeded, beside the ideal, in which no moment of the limit is wasted. Every contestant makes the same
//! number of calls that succeed.

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
