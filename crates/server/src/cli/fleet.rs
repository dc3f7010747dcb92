//! `tidegate fleet`: nodes and their versions.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anstyle::Style;
use serde::Serialize;
use tidegate_redis::fleet::{Fleet, FleetControl, FleetError, NodeReport, NodeState};
use tokio::time::{Instant, sleep};

use super::published::{ago, by};
use super::redis::RedisArgs;
use super::{ERROR, FAINT, GOOD, OutputFormat, STRONG, WARNING, plain, plain_text, print_json};

const EXAMPLES: &str = "\
Examples:
  tidegate fleet --redis redis://cache.internal
  tidegate fleet --redis redis://cache.internal --wait 10    wait until all nodes are current
  tidegate fleet --redis redis://cache.internal --format json

Exit status: 0 if there are nodes and all are current, 1 if not, 2 on a usage error.";

/// Show the nodes of a fleet, with the version of rules and modes that each one has.
///
/// A node is `current` if it has the published version; `behind` if it does not have it yet, normally for less than two
/// seconds; `refused` if it cannot use the published rules and keeps its own; `kept` if it has a version that Redis has
/// lost. Nodes that have not reported for ten seconds are not listed.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Wait until all nodes are current, for at most this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3_600))]
    wait: Option<u64>,

    /// Output format.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: OutputFormat,

    #[command(flatten)]
    redis: RedisArgs,
}

const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(super) fn run(args: &Args) -> io::Result<ExitCode> {
    let wait = Duration::from_secs(args.wait.unwrap_or(0));
    let fleet = match args.redis.with(async |control| poll(&control, wait).await)? {
        Ok(fleet) => fleet,
        Err(code) => return Ok(code),
    };
    match args.format {
        OutputFormat::Json => print_json(&FleetReport::of(&fleet))?,
        OutputFormat::Text => print(&mut anstream::stdout().lock(), &fleet)?,
    }
    Ok(if fleet.is_current() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The fleet, once all nodes are current or the time is over.
async fn poll(control: &FleetControl, wait: Duration) -> Result<Fleet, FleetError> {
    let until = Instant::now() + wait;
    loop {
        let fleet = control.fleet().await;
        if fleet.as_ref().is_ok_and(Fleet::is_current) || Instant::now() >= until {
            return fleet;
        }
        sleep(POLL_INTERVAL).await;
    }
}

const fn word(state: NodeState) -> (&'static str, Style) {
    match state {
        NodeState::Current => ("current", GOOD),
        NodeState::Behind => ("behind", WARNING),
        NodeState::Refused => ("refused", ERROR),
        NodeState::Kept => ("kept", WARNING),
    }
}

fn print(out: &mut impl Write, fleet: &Fleet) -> io::Result<()> {
    match &fleet.signed {
        Some(signed) => writeln!(out, "published: version {}, {}\n", fleet.version, by(signed, fleet.now))?,
        None => writeln!(out, "published: nothing\n")?,
    }
    if !fleet.nodes.is_empty() {
        table(out, fleet)?;
    }
    for (report, _) in &fleet.nodes {
        remarks(out, report)?;
    }
    for node in &fleet.unreadable {
        writeln!(out, "{ERROR}{}{ERROR:#}: its report cannot be read", plain(node))?;
    }
    summarise(out, fleet)
}

fn table(out: &mut impl Write, fleet: &Fleet) -> io::Result<()> {
    const HEADINGS: [&str; 6] = ["node", "host", "version", "rules", "generation", "since"];
    let number = |version: u64, none: &str| if version == 0 { none.to_owned() } else { version.to_string() };
    let rows: Vec<[String; 6]> = fleet
        .nodes
        .iter()
        .map(|(report, _)| {
            let since = if report.version == 0 { "-".to_owned() } else { ago(report.since, fleet.now) };
            let (version, rules) = (number(report.version, "-"), number(report.rules, "own"));
            [plain(report.called()), plain(&report.host), version, rules, report.generation.to_string(), since]
        })
        .collect();
    let width = |column: usize| {
        let widest = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        widest.max(HEADINGS[column].len()) + 2
    };
    let widths: [usize; 6] = std::array::from_fn(width);
    write!(out, "{FAINT}")?;
    for (heading, width) in HEADINGS.iter().zip(widths) {
        write!(out, "{heading:<width$}")?;
    }
    writeln!(out, "state{FAINT:#}")?;
    for (row, (_, state)) in rows.iter().zip(&fleet.nodes) {
        for (cell, width) in row.iter().zip(widths) {
            write!(out, "{cell:<width$}")?;
        }
        let (word, style) = word(*state);
        writeln!(out, "{style}{word}{style:#}")?;
    }
    writeln!(out)
}

fn remarks(out: &mut impl Write, report: &NodeReport) -> io::Result<()> {
    let node = plain(report.called());
    if let Some(reason) = &report.refused {
        writeln!(out, "{ERROR}{node}{ERROR:#} keeps its current rules: {}", plain_text(reason))?;
    }
    if !report.unknown.is_empty() {
        let unknown = plain(&report.unknown.join(", "));
        writeln!(out, "{WARNING}{node}{WARNING:#} has no rule for these switches: {unknown}")?;
    }
    Ok(())
}

fn summarise(out: &mut impl Write, fleet: &Fleet) -> io::Result<()> {
    let all = fleet.nodes.len() + fleet.unreadable.len();
    let current = fleet.nodes.iter().filter(|(_, state)| *state == NodeState::Current).count();
    match (all, fleet.version) {
        (0, _) => writeln!(out, "{WARNING}no node follows{WARNING:#}"),
        (_, 0) => writeln!(out, "{STRONG}{all}{STRONG:#} follow, and nothing is published"),
        (_, version) => {
            let style = if current == all { GOOD } else { ERROR };
            writeln!(out, "{style}{current} of {all}{style:#} have version {version}")
        }
    }
}

#[derive(Serialize)]
struct FleetReport<'f> {
    /// Whether there are nodes and all are current.
    current: bool,
    version: u64,
    nodes: Vec<NodeRow<'f>>,
    unreadable: &'f [String],
}

/// Times are in seconds since the Unix epoch, by the clock of Redis.
#[derive(Serialize)]
struct NodeRow<'f> {
    node: &'f str,
    name: &'f str,
    host: &'f str,
    build: &'f str,
    state: &'static str,
    version: u64,
    rules: u64,
    generation: u64,
    since: u64,
    seen: u64,
    refused: Option<&'f str>,
    unknown: &'f [String],
}

impl FleetReport<'_> {
    fn of(fleet: &Fleet) -> FleetReport<'_> {
        let nodes = fleet.nodes.iter().map(|(report, state)| NodeRow::of(report, *state)).collect();
        FleetReport { current: fleet.is_current(), version: fleet.version, nodes, unreadable: &fleet.unreadable }
    }
}

impl NodeRow<'_> {
    fn of(report: &NodeReport, state: NodeState) -> NodeRow<'_> {
        NodeRow {
            node: &report.node,
            name: report.called(),
            host: &report.host,
            build: &report.build,
            state: word(state).0,
            version: report.version,
            rules: report.rules,
            generation: report.generation,
            since: report.since.as_micros() / 1_000_000,
            seen: report.seen.as_micros() / 1_000_000,
            refused: report.refused.as_deref(),
            unknown: &report.unknown,
        }
    }
}
