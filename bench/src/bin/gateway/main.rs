//! The gateway compared with nginx, each on one core; the load and the upstream are on the other.
//!
//! Without arguments, everything is measured. Any of `throughput`, `cost`, `latency` and `memory`, as an argument or in
//! the environment variable `GATEWAY`, selects parts. With `MINUTES=10` in the environment, the gateway runs
//! under mixed load for ten minutes instead: memory should not grow.

mod cost;
mod latency;
mod load;
mod memory;
mod mixed;
mod servers;
mod throughput;

use tidegate_bench::report::Report;

type Part = fn(&mut Report);

fn main() {
    if servers::is_asked_for() {
        return servers::serve();
    }
    if let Some(minutes) = std::env::var("MINUTES").ok().and_then(|minutes| minutes.parse().ok()) {
        return mixed::run(minutes);
    }
    let words = std::env::var("GATEWAY").unwrap_or_default();
    let words: Vec<_> = words.split([' ', ',']).map(String::from).chain(std::env::args().skip(1)).collect();
    let parts: [(&str, Part); 4] = [
        ("throughput", throughput::measure),
        ("cost", cost::measure),
        ("latency", latency::measure),
        ("memory", memory::measure),
    ];
    let said = |part: &str| words.iter().any(|word| word == part);
    let is_any_said = parts.iter().any(|(part, _)| said(part));
    let mut report = Report::default();
    for (part, measure) in parts {
        if said(part) || !is_any_said {
            measure(&mut report);
        }
    }
    report.write("gateway");
}
