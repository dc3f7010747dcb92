//! The doors of the server beside what others serve, each on one core with the load on the other.

mod crab;
mod http;
mod latency;
mod load;
mod resp;
mod serving;

use tidegate_bench::machine::pin_to_core;
use tidegate_bench::report::Report;

fn main() {
    if serving::is_asked_for() {
        return serving::serve();
    }
    let mut report = Report::default();
    resp::measure(&mut report);
    pin_to_core(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    http::measure(&mut report, &runtime);
    latency::measure(&mut report, &runtime);
    report.write("doors");
}
