//! The Redis store compared with scripts that people write themselves, on the same server in the same run.
//!
//! The server has one core to itself, and this program the other.

mod latency;
mod memory;
mod peers;
mod server;
mod throughput;

use tidegate_bench::machine::pin_to_core;
use tidegate_bench::report::Report;

fn main() {
    pin_to_core(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let server = server::Server::start();
        let mut report = Report::default();
        throughput::measure(&mut report, &server).await;
        latency::measure(&mut report, &server).await;
        memory::measure(&mut report, &server).await;
        report.write("redis");
    });
}
