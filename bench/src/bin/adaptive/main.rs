//! Adaptive concurrency and load shedding: their cost per call, and their effect under overload.
//!
//! - *Cost*: what a layer adds to a call of a service that responds immediately, compared with tower's
//!   `ConcurrencyLimit` (a fixed limit, the minimum that such a layer must do) and `tower-acc`. One thread, no sockets,
//!   no runtime; the limit is never reached. Contestants take turns, and processor time is measured.
//! - *Closed loop*: controllers in front of a modelled server with 20 workers, in virtual time, at three times its
//!   capacity, compared with the algorithms of `tower-acc` on the same model. The model does not depend on processors:
//!   its numbers are the same on every machine.
//! - *Shedding*: four priorities in front of the same server.

mod cost;
mod model;
mod shedding;

use tidegate_bench::report::{Report, Row, lowest};

use crate::model::{Loop, Ours, TowerAcc};

/// The target round trip, in service times: at most one request waits for each one being served.
const AIM: f64 = 2.0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut report = Report::default();
    report.section("added to a call that is admitted", cost::rows()?);

    let ours = |notation: &str| -> Result<Loop, Box<dyn std::error::Error>> { Ok(model::run(Ours::new(notation)?)) };
    let (gradient, vegas) = (ours("gradient2 1..200")?, ours("vegas 1..1000")?);
    let their_gradient = model::run(TowerAcc(tower_acc::Gradient2::builder().min_limit(1).max_limit(200).build()));
    let their_vegas = model::run(TowerAcc(tower_acc::Vegas::builder().max_limit(1_000).build()));
    let goodput = |what: &str, of: Loop| Row::larger_is_better(what, of.throughput, "capacity", 1.0, "of capacity");
    report.section(
        "closed loop: throughput at three times the capacity",
        lowest("adaptive/goodput", vec![goodput("gradient2", gradient), goodput("vegas", vegas)]),
    );
    let latency = |what: &str, of: Loop| Row::smaller_is_better(what, of.latency, "aim", AIM, "service times");
    report.section(
        "closed loop: mean round trip",
        lowest("adaptive/latency", vec![latency("gradient2", gradient), latency("vegas", vegas)]),
    );
    let beside = |what: &str, ours: Loop, peer: &str, theirs: Loop| {
        [
            Row::larger_is_better(
                format!("{what}: throughput"),
                ours.throughput,
                peer,
                theirs.throughput,
                "of capacity",
            ),
            Row::smaller_is_better(
                format!("{what}: mean round trip"),
                ours.latency,
                peer,
                theirs.latency,
                "service times",
            ),
        ]
    };
    let rows = [
        beside("gradient2", gradient, "tower-acc's Gradient2", their_gradient),
        beside("vegas", vegas, "tower-acc's Vegas", their_vegas),
    ];
    report.section("closed loop beside tower-acc", rows.concat());

    report.section("four priorities at three times the capacity", shedding::rows()?);
    report.write("adaptive");
    Ok(())
}
