//! Limits with write-behind: fleets of 2, 5 and 20 nodes on one Redis, compared with the bound that they state.
//!
//! All nodes together request four times the limit, of a bucket that other clients have emptied. Every second, the
//! proxy between nodes and Redis drops responses, requests, or everything for a while, and a node crashes. The highest
//! level of one bucket that counts every admission immediately is compared with its capacity plus the bound: the share
//! of every node, of every crash, and of lost messages.
//!
//! Redis runs on the first core, this program on the other one.

mod fleet;

use tidegate_bench::machine::pin_to_core;
use tidegate_bench::report::{Report, Row, lowest};
use tidegate_test_support::redis::Server;

fn main() {
    let server = Server::start_pinned();
    pin_to_core(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (mut calm, mut faulty) = (Vec::new(), Vec::new());
    for nodes in [2, 5, 20] {
        for millis in [20, 100, 500] {
            for has_faults in [false, true] {
                let outcome = runtime.block_on(fleet::run(&server, nodes, millis, has_faults));
                let faults = if has_faults { format!(", {} crashes, cuts", outcome.crashes) } else { String::new() };
                let what = format!("{nodes} nodes, every {millis} ms{faults}");
                let (over, stated) = (outcome.over, outcome.stated as f64);
                let mut row = Row::smaller_is_better(&what, over, "stated", stated, "admitted beyond the limit");
                // No excess is within any bound.
                row.ratio = stated / over.max(1.0);
                println!("{what}: {over:.0} beyond, stated {stated}; {} of {} asked", outcome.asked, outcome.requests);
                if has_faults { faulty.push(row) } else { calm.push(row) }
            }
        }
    }
    let mut report = Report::default();
    report.section("Admitted beyond the limit", calm);
    report.section("Admitted beyond the limit, with faults", lowest("write-behind/bound", faulty));
    report.write("write_behind");
}
