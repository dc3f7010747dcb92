//! The doors of the server beside what others serve, each on one core with the load on the other.

mod crab;
mod latency;
mod load;
mod resp;
mod serving;

use tidegate_bench::report::Report;

fn main() {
    if serving::is_asked_for() {
        return serving::serve();
    }
    let mut report = Report::default();
    resp::measure(&mut report);
    latency::measure(&mut report);
    report.write("doors");
}
