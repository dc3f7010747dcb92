//! `tidegate bench`: the speed of this machine.

use std::io::{self, Write};
use std::num::{NonZero, NonZeroU32};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use serde::Serialize;

use super::progress::progress_bar;
use super::{FAINT, OutputFormat, STRONG, failed, print_json};
use crate::bench::{Bench, BenchPlan, Measurement};
use crate::{serve, version};

const EXAMPLES: &str = "\
Examples:
  tidegate bench
  tidegate bench --seconds 10 --json
  tidegate bench --redis redis://127.0.0.1:6379

Clients and server share the processors of this machine: with clients on another machine, throughput is higher. In process, one
check in 64 is timed, and its latency includes a reading of the clock. Keys in Redis begin with `tidegate-bench` and expire
within a second. Redis users and passwords are part of the URL.

Exit status: 0 on success, 1 if a measurement failed, 2 on a usage error.";

/// Measure the performance of this machine: checks in process, each listener over loopback, and optionally a Redis.
///
/// Prints the throughput, the median and 99th percentile of the latency, and the number of allowed checks of each.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Total time of all measurements, in seconds: 0.1 to 3600.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    seconds: Duration,

    /// Number of keys in measurements with many keys.
    #[arg(long, value_name = "NUMBER", default_value = "100000", value_parser = clap::value_parser!(u32).range(2..=10_000_000))]
    keys: u32,

    /// Number of connections to each listener, each with one request in flight.
    #[arg(long, value_name = "NUMBER", default_value = "32", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    connections: u32,

    /// URL of a Redis to measure too. For a cluster, one or several nodes, separated by commas.
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    redis: Vec<String>,

    /// Output format.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: OutputFormat,

    /// Short for `--format json`.
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

/// Parses a number of seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "it is not a number of seconds".to_owned())?;
    if !(0.1..=3_600.0).contains(&seconds) {
        return Err("write a number from 0.1 to 3600".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// The measurements of a machine, for programs.
#[derive(Serialize)]
struct BenchReport {
    version: &'static str,
    /// Processors that this process may use.
    processors: usize,
    seconds: f64,
    /// Cargo's profile of this build.
    profile: &'static str,
    /// Whether the program was built without optimisation.
    is_debug_build: bool,
    measurements: Vec<Measurement>,
}

pub(super) fn run(args: &Args) -> io::Result<ExitCode> {
    let threads = thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
    let plan = BenchPlan {
        time: args.seconds,
        keys: NonZeroU32::new(args.keys).unwrap_or(NonZeroU32::MIN),
        connections: NonZeroU32::new(args.connections).unwrap_or(NonZeroU32::MIN),
        threads,
        redis: args.redis.clone(),
    };
    let bench = Bench::new(&plan, quanta::Clock::new());
    let bar = progress_bar(Some(bench.len() as u64), "{bar:30} {pos}/{len}  {msg}");
    // Progress advances when the next measurement starts.
    let mut done = 0;
    let measured = serve::runtime()?.block_on(bench.run(|about| {
        bar.set_position(done);
        bar.set_message(about.to_owned());
        done += 1;
    }));
    bar.finish_and_clear();
    let measurements = match measured {
        Ok(measurements) => measurements,
        Err(error) => return failed(&error),
    };
    let report = BenchReport {
        version: version::short(),
        processors: threads.get(),
        seconds: args.seconds.as_secs_f64(),
        profile: version::PROFILE,
        is_debug_build: cfg!(debug_assertions),
        measurements,
    };
    if args.json || args.format == OutputFormat::Json {
        print_json(&report)?;
    } else {
        print(&mut anstream::stdout().lock(), &report)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(out: &mut impl Write, report: &BenchReport) -> io::Result<()> {
    let BenchReport { version, processors, profile, measurements, .. } = report;
    let slowness = version::slowness().map(|slowness| format!(" ({slowness})")).unwrap_or_default();
    writeln!(out, "tidegate {version}, processors: {processors}, profile {profile}{slowness}\n")?;
    let width = measurements.iter().map(|measured| measured.about.chars().count()).max().unwrap_or(0);
    let [rate, half, most, allowed] = ["checks/s", "p50", "p99", "allowed"];
    writeln!(out, "{FAINT}{:width$}  {rate:>14}  {half:>9}  {most:>9}  {allowed:>7}{FAINT:#}", "")?;
    for Measurement { about, checks, allowed, per_second, p50_ns, p99_ns, .. } in measurements {
        let allowed = 100.0 * *allowed as f64 / (*checks).max(1) as f64;
        let (half, most) = (span(*p50_ns), span(*p99_ns));
        let rate = grouped(*per_second);
        writeln!(out, "{about:width$}  {STRONG}{rate:>14}{STRONG:#}  {half:>9}  {most:>9}  {allowed:>5.0} %")?;
    }
    Ok(())
}

/// A latency with three digits: `62 ns`, `1.24 ms`.
fn span(nanos: u64) -> String {
    let (value, unit) = match nanos {
        0..1_000 => return format!("{nanos} ns"),
        1_000..1_000_000 => (nanos as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => (nanos as f64 / 1e6, "ms"),
        _ => (nanos as f64 / 1e9, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

/// A number with commas between groups of three digits, rounded.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_round() {
        assert_eq!(
            [0, 999, 1_240, 62_340, 1_500_000_000].map(span),
            ["0 ns", "999 ns", "1.24 µs", "62.3 µs", "1.50 s"]
        );
        assert_eq!([0.4, 999.6, 1_234_567.0, 12_345.0].map(grouped), ["0", "1,000", "1,234,567", "12,345"]);
    }

    #[test]
    fn the_time_is_bounded() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "NaN", "inf", "1e9", "1min"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
