//! Envoy's rate-limit service over gRPC: Tidegate's listener compared with services that answer a constant.
//!
//! The server has one core, and this program, which generates the load, the other. Every request has one descriptor
//! with one of 100 000 values, and every response must be within its limit. The load consists of hand-written HTTP/2
//! frames, which refer to previously sent headers, as a typical client's do, so that the server is the bottleneck. The
//! peers:
//!
//! - *tonic*: a tonic service with the same messages, which answers a constant;
//! - *hyper*: the same on hyper's HTTP/2 with prost, with a task for each request;
//! - *inline*: the same, with requests run on their connection's own task, as in Tidegate's listener.

mod latency;
mod load;
mod servers;
mod wire;

use tidegate_bench::machine::pin_to_core;
use tidegate_bench::report::{Report, Row};
use tidegate_bench::sample::median;

use crate::servers::Kind;

const ROUNDS: usize = 5;

fn main() {
    let [ours, tonic, hyper, inline] = [Kind::Ours, Kind::Tonic, Kind::Hyper, Kind::Inline].map(servers::start);
    let echo = servers::start_echo();
    pin_to_core(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut report = Report::default();
        for (connections, in_flight) in [(50, 1), (4, 32)] {
            let mut rates: [Vec<f64>; 4] = Default::default();
            for _ in 0..ROUNDS {
                for (rates, server) in rates.iter_mut().zip([ours, tonic, hyper, inline]) {
                    rates.push(load::requests_a_second(server, connections, in_flight).await);
                }
            }
            let [ours, tonic, hyper, inline] = rates.map(median);
            let row = |peer, theirs| Row::larger_is_better("our listener", ours, peer, theirs, "requests/s");
            let of = |what, rate| Row::larger_is_better(what, rate, "tonic, a constant", tonic, "requests/s");
            let rows = vec![
                row("tonic, a constant", tonic).with_id(&format!("rls/{connections}x{in_flight}")),
                row("inline, a constant", inline),
                of("hyper, a constant", hyper),
                of("inline, a constant", inline),
            ];
            report.section(&format!("{connections} connections, {in_flight} in flight on each, one core"), rows);
        }
        latency::measure(&mut report, ours, tonic, echo).await;
        report.write("rls");
    });
}
