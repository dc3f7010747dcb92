//! The gateway beside nginx, each on one core; the load and the upstream are on the other.
//!
//! With `MINUTES=10` in the environment it is put under mixed load for so long instead: memory should stay where it is.

mod latency;
mod load;
mod memory;
mod mixed;
mod servers;
mod throughput;

use tidegate_bench::report::Report;

fn main() {
    if servers::is_asked_for() {
        return servers::serve();
    }
    if let Some(minutes) = std::env::var("MINUTES").ok().and_then(|minutes| minutes.parse().ok()) {
        return mixed::run(minutes);
    }
    let mut report = Report::default();
    throughput::measure(&mut report);
    latency::measure(&mut report);
    memory::measure(&mut report);
    report.write("gateway");
}
