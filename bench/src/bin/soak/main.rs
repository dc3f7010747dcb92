//! Real servers under mixed load for `MINUTES` (default: 2), while their store is paused, killed and failed over,
//! upstreams stop and restart, listeners are flooded, and rules are reloaded every second.
//!
//! The peer of each row is its target: memory that does not grow, no decision past its deadline, no leaked slot,
//! nothing admitted beyond the stated bound, no log line without a matching fault. Ends with an error if any target is
//! missed. Memory is judged only by runs of ten minutes or more, which are warm for most of the time.

#[path = "../../../../crates/server/tests/soak/clients.rs"]
mod clients;
#[path = "../../../../crates/server/tests/soak/processes.rs"]
mod processes;
#[path = "../../../../crates/server/tests/soak/run.rs"]
mod run;

use std::process::ExitCode;
use std::time::Duration;

use tidegate_bench::report::{Report, Row};

/// Tolerated lateness of a decision, because everything runs on the same few cores.
const ALLOWANCE: Duration = Duration::from_millis(100);
/// Time between the end of a fault and the beginning of the next one.
const BETWEEN: Duration = Duration::from_secs(5);
const MEGABYTE: f64 = 1e6;

fn main() -> ExitCode {
    // The servers are this program too: `tidegate serve`, built like all benchmarks.
    if std::env::args().nth(1).as_deref() == Some("serve") {
        return tidegate::cli::run();
    }
    let minutes: f64 = std::env::var("MINUTES").ok().and_then(|minutes| minutes.parse().ok()).unwrap_or(2.0);
    let program = std::env::current_exe().expect("this program");
    let findings = run::run(&program, Duration::from_secs_f64(60.0 * minutes), BETWEEN, ALLOWANCE);

    println!("\n{:.0} s, {} questions, {} admitted", findings.seconds, findings.questions, findings.admitted);
    println!("  rules reloaded  {}", findings.reloads);
    for (fault, times) in &findings.faults {
        println!("  {fault}  {times}");
    }
    let mut report = Report::default();
    let memory = findings.memory.iter().flat_map(|(server, begin, end, an_hour)| {
        let megabytes = |bytes: u64| bytes as f64 / MEGABYTE;
        println!("  memory of {server}: slope {:.1} MB an hour", an_hour / MEGABYTE);
        let what = format!("memory of {server} at the end");
        [Row::smaller_is_better(what, megabytes(*end), "once it is warm", megabytes(*begin), "MB")
            .with_id("soak/memory")]
    });
    report.section("memory", memory.collect());
    let none = |what: &str, ours: usize| Row {
        ratio: if ours == 0 { 1.0 } else { 0.0 },
        ..Row::smaller_is_better(what, ours as f64, "aim", 0.0, "")
    };
    let bound = Row::smaller_is_better(
        "fullest key: share of its bound that was admitted",
        findings.fullest(),
        "bound",
        1.0,
        "",
    );
    let slowest = findings.slowest.as_secs_f64() * 1e3;
    let aim = (run::DEADLINE + ALLOWANCE).as_secs_f64() * 1e3;
    let leaked: u64 = findings.slots.iter().map(|(_, free, all)| all - free).sum();
    report.section(
        "promises",
        vec![
            bound.with_id("soak/bound"),
            Row::smaller_is_better("slowest decision", slowest, "deadline and 100 ms", aim, "ms")
                .with_id("soak/slowest"),
            none("decisions later than that", usize::try_from(findings.late).unwrap_or(usize::MAX))
                .with_id("soak/late"),
            none("slots that stay taken", usize::try_from(leaked).unwrap_or(usize::MAX)).with_id("soak/leaked"),
            none("questions without an answer", findings.unanswered.len()).with_id("soak/unanswered"),
            none("log lines that no fault explains", findings.unexpected.len()).with_id("soak/unexpected"),
        ],
    );
    report.write("soak");
    let mut wrong = findings.wrong();
    if minutes >= 10.0 {
        wrong.extend(
            findings
                .memory
                .iter()
                .filter(|(_, begin, end, _)| *end > begin + begin / 4)
                .map(|(server, begin, end, _)| format!("memory of {server} grew from {begin} to {end} bytes")),
        );
    }
    for line in wrong.iter().take(20) {
        eprintln!("soak: {line}");
    }
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
