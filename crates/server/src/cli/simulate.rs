//! `tidegate simulate`: limits under synthetic traffic, compared with an estimate.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use serde::Serialize;
use tidegate_core::{Limit, Micros, NotationError};
use tidegate_lab::accuracy::{AccuracyTable, Judgement, Promise};
use tidegate_lab::expect::{Expectation, expect};
use tidegate_lab::simulate::{FleetFault, FleetTotals, SimulatedFleet, Simulation, Totals};
use tidegate_lab::traffic::{Arrival, START, Trace, Traffic};

use super::progress::progress_bar;
use super::replay::span;
use super::{ERROR, FAINT, OutputFormat, STRONG, plain_text, print_json};

const EXAMPLES: &str = "\
Examples:
  tidegate simulate '20/s burst 50' 'fixed 20/s' --traffic 'square 100/s 5/s every 10s'
  tidegate simulate 'sliding 100/min' 'log 100/min' --traffic 'boundary 100 every 1min' --for 1h --accuracy
  tidegate simulate '10/s' --traffic 'poisson 2000/s clients 500 zipf 1.1' --for 1day --seed 7
  tidegate simulate 'shaper 10/s queue 50' --trace arrivals.csv
  tidegate simulate '10000/s' --traffic 'poisson 15000/s' --fleet 20 --for 30s

Traffic:
  steady 20/s                     evenly spaced
  poisson 20/s                    at random intervals
  square 100/s 5/s every 10s      one rate for half of each period, the other for the rest
  ramp 0/s 200/s over 1min        from one rate to the other
  on-off 50/s on 2s off 8s        bursts with silence between
  spike 500 at 30s within 1s      a number of requests at once, or within a time
  boundary 100 every 1min         a number of requests just before and just after the end of a window
Options after each: random, clients 1000 [zipf 1.1], as 7, cost 5, times 2, for 30s. Parts are joined by `then` and `+`.

A seed produces the same arrivals on every machine. Time is virtual: a day takes seconds.";

/// Simulate limits under synthetic traffic, and print the results next to an estimate.
///
/// The engine decides every request, in virtual time. All limits see the same arrivals.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Limits in the notation of rules, such as '20/s burst 50'.
    #[arg(value_name = "LIMIT", required = true, value_parser = limit)]
    limits: Vec<Limit>,

    /// Synthetic traffic; see below.
    #[arg(long, short, value_name = "TRAFFIC", value_parser = traffic, required_unless_present = "trace")]
    traffic: Option<Traffic>,

    /// File with recorded arrivals in place of synthetic traffic. Each line has a time in seconds, and optionally a client and a cost.
    #[arg(long, value_name = "FILE", conflicts_with = "traffic")]
    trace: Option<PathBuf>,

    /// Length of the run. Default: the length of the trace, or a minute, or longer if the traffic has longer parts (`for`).
    #[arg(long = "for", value_name = "SPAN", value_parser = span)]
    length: Option<Micros>,

    /// Seed of the random numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Time that each request holds its slots under a concurrency limit. Default: until the lease expires.
    #[arg(long, value_name = "SPAN", value_parser = span)]
    holding: Option<Micros>,

    /// Also simulate fleets of this many nodes that share each limit through Redis, with leases: one without faults, one in which
    /// a tenth of the nodes crash half-way, and one with a tenth cut off from Redis for a while. Arrivals go to random nodes.
    #[arg(long, value_name = "NODES", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    fleet: Option<u16>,

    /// Also compare each limit with an exact log of its admissions.
    #[arg(long)]
    accuracy: bool,

    /// Output format.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: OutputFormat,
}

fn limit(text: &str) -> Result<Limit, String> {
    text.parse().map_err(|error: NotationError| format!("{} (at character {})", error.problem(), error.column()))
}

fn traffic(text: &str) -> Result<Traffic, String> {
    text.parse().map_err(|error: tidegate_lab::traffic::TrafficError| error.to_string())
}

pub(super) fn run(args: &Args) -> io::Result<ExitCode> {
    let (traffic, length) = match arriving(args) {
        Ok(arriving) => arriving,
        Err(problem) => {
            writeln!(anstream::stderr(), "{ERROR}error{ERROR:#}: {}", plain_text(&problem))?;
            return Ok(ExitCode::FAILURE);
        }
    };
    let runs = simulate(args, &traffic, length);
    let report = SimulateReport { traffic: traffic.to_string(), micros: length.get(), seed: args.seed, limits: runs };
    match args.format {
        OutputFormat::Json => print_json(&report)?,
        OutputFormat::Text => print(&mut anstream::stdout().lock(), &report)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn arriving(args: &Args) -> Result<(Traffic, Micros), String> {
    if let Some(traffic) = &args.traffic {
        return Ok((traffic.clone(), args.length.unwrap_or_else(|| default_length(traffic))));
    }
    let path = args.trace.as_deref().ok_or("the traffic is missing: add --traffic 'steady 20/s'")?;
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("`{shown}` cannot be read: {error}"))?;
    let trace = Trace::read(&text).map_err(|error| format!("`{shown}`, {error}"))?;
    let length = args.length.unwrap_or(trace.length());
    Ok((Traffic::Recorded(Arc::new(trace)), length))
}

/// A minute, unless the traffic has timed parts that take longer. Traffic that continues after them gets another
/// minute.
fn default_length(traffic: &Traffic) -> Micros {
    let minute = Micros::from_secs(60);
    match traffic.stated_length() {
        Some(stated) if stated >= minute && traffic.is_endless() => {
            Micros::new(stated.get().saturating_add(minute.get()))
        }
        stated => stated.map_or(minute, |stated| stated.max(minute)),
    }
}

#[derive(Serialize)]
struct SimulateReport {
    traffic: String,
    micros: u64,
    seed: u64,
    limits: Vec<SimulatedRun>,
}

#[derive(Serialize)]
struct SimulatedRun {
    limit: String,
    totals: Totals,
    expected: Expectation,
    #[serde(skip_serializing_if = "Option::is_none")]
    accuracy: Option<AccuracyReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fleet: Option<FleetOutcome>,
}

/// A fleet, and the same fleet with each fault.
#[derive(Serialize)]
struct FleetOutcome {
    #[serde(flatten)]
    faultless: FleetTotals,
    crash: FaultOutcome,
    partition: FaultOutcome,
}

/// The cost of a fault.
#[derive(Serialize)]
struct FaultOutcome {
    /// The number of affected nodes.
    nodes: usize,
    /// The time from the beginning of the run to the fault, and the length of the fault.
    after_micros: u64,
    micros: u64,
    /// The cost that these nodes held when the fault began.
    held_cost: u64,
    /// The cost of requests that these nodes could not decide.
    undecided_cost: u64,
    /// The cost that the fleet admitted without the fault, but not with it.
    lost_cost: u64,
    /// The cost that the fleet admitted beyond the limit.
    excess_cost: u64,
}

/// The simulated fleets of one limit.
struct Fleets {
    faultless: SimulatedFleet,
    crashing: SimulatedFleet,
    cut_off: SimulatedFleet,
    faults: FaultPlan,
}

/// The nodes that fail, when they fail, and for how long.
#[derive(Clone, Copy)]
struct FaultPlan {
    nodes: usize,
    after: Micros,
    length: Micros,
}

/// Maximum time for which nodes are cut off: longer than their leases last.
const LONGEST_CUT: Micros = Micros::from_secs(5);

impl Fleets {
    fn new(limit: Limit, nodes: u16, seed: u64, length: Micros) -> Fleets {
        let fleet = || SimulatedFleet::new(limit, usize::from(nodes), seed);
        let (after, cut) = (Micros::new(length.get() / 2), Micros::new(length.get() / 4).min(LONGEST_CUT));
        let faults = FaultPlan { nodes: usize::from(nodes).div_ceil(10), after, length: cut };
        let at = START + after;
        Fleets {
            faultless: fleet(),
            crashing: fleet().suffering(FleetFault::Crash { nodes: faults.nodes, at }),
            cut_off: fleet().suffering(FleetFault::Partition { nodes: faults.nodes, at, until: at + cut }),
            faults,
        }
    }

    fn take(&mut self, arrival: &Arrival) {
        for fleet in [&mut self.faultless, &mut self.crashing, &mut self.cut_off] {
            fleet.take(arrival);
        }
    }

    fn report(&self) -> FleetOutcome {
        let faultless = self.faultless.totals();
        let fault = |totals: &FleetTotals, length: Micros| FaultOutcome {
            nodes: self.faults.nodes,
            after_micros: self.faults.after.get(),
            micros: length.get(),
            held_cost: totals.held_cost,
            undecided_cost: totals.undecided_cost,
            lost_cost: faultless.admitted_cost.saturating_sub(totals.admitted_cost),
            excess_cost: totals.excess_cost,
        };
        let crash = fault(&self.crashing.totals(), Micros::ZERO);
        let partition = fault(&self.cut_off.totals(), self.faults.length);
        FleetOutcome { faultless, crash, partition }
    }
}

#[derive(Serialize)]
struct AccuracyReport {
    promised: u64,
    window_seconds: f64,
    #[serde(flatten)]
    judgement: Judgement,
}

fn simulate(args: &Args, traffic: &Traffic, length: Micros) -> Vec<SimulatedRun> {
    let bar = progress_bar(Some(length.get()), "{wide_bar} {percent} %  {eta} left");
    let mut simulation = Simulation::new(&args.limits);
    if let Some(holding) = args.holding {
        simulation = simulation.holding(holding);
    }
    let mut tables: Vec<Option<AccuracyTable>> = Vec::new();
    if args.accuracy {
        tables.extend(args.limits.iter().map(|limit| AccuracyTable::new(std::slice::from_ref(limit), limit)));
    }
    let mut fleets: Vec<Fleets> = Vec::new();
    if let Some(nodes) = args.fleet {
        fleets.extend(args.limits.iter().map(|limit| Fleets::new(*limit, nodes, args.seed, length)));
    }
    simulation.run(traffic.arrivals_from(START, length, args.seed), |simulation, arrival| {
        for fleet in &mut fleets {
            fleet.take(arrival);
        }
        tables.iter_mut().flatten().for_each(|table| table.take(arrival));
        if simulation.totals().first().is_some_and(|totals| totals.arrivals.is_multiple_of(1 << 16)) {
            bar.set_position(arrival.at.since(START).get());
        }
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    let judged = |number: usize| {
        let table = tables.get(number)?.as_ref()?;
        let Promise { limit, window } = table.promise();
        let (_, judgement) = table.rows().next()?;
        Some(AccuracyReport { promised: limit, window_seconds: window.get() as f64 / 1e6, judgement })
    };
    let runs = args.limits.iter().zip(simulation.totals()).enumerate();
    runs.map(|(number, (limit, totals))| SimulatedRun {
        limit: limit.to_string(),
        totals: *totals,
        expected: expect(traffic, limit, START, length, args.holding),
        accuracy: judged(number),
        fleet: fleets.get(number).map(Fleets::report),
    })
    .collect()
}

fn print(out: &mut impl Write, report: &SimulateReport) -> io::Result<()> {
    let length = Micros::new(report.micros);
    writeln!(out, "{} for {length}, seed {}\n", report.traffic, report.seed)?;
    for run in &report.limits {
        print_run(out, run, length)?;
    }
    Ok(())
}

fn print_run(out: &mut impl Write, run: &SimulatedRun, length: Micros) -> io::Result<()> {
    let SimulatedRun { limit, totals, expected, accuracy, fleet } = run;
    let (found, thought) = ("simulated", "estimate");
    writeln!(out, "{STRONG}{limit}{STRONG:#}")?;
    writeln!(out, "{FAINT}{:18}{found:>14}{thought:>14}{FAINT:#}", "")?;
    let mut line = |what: &str, one: String, other: String| writeln!(out, "  {what:<16}{one:>14}{other:>14}");
    line("requests", totals.arrivals.to_string(), format!("{:.0}", expected.arrivals))?;
    line("cost", totals.cost.to_string(), format!("{:.0}", expected.cost))?;
    line("admitted cost", totals.admitted_cost.to_string(), format!("{:.0}", expected.accepted))?;
    let admitted = totals.admitted_cost as f64 / totals.cost.max(1) as f64;
    line("acceptance", format!("{:.1} %", admitted * 100.0), format!("{:.1} %", expected.acceptance * 100.0))?;
    let ceiling = expected.ceiling.map_or_else(|| "none".to_owned(), |ceiling| ceiling.to_string());
    line("at most", String::new(), ceiling)?;
    line("denied", (totals.denied + totals.too_large).to_string(), String::new())?;
    if totals.delayed > 0 {
        line("delayed", totals.delayed.to_string(), String::new())?;
        line("longest delay", Micros::new(totals.longest_delay).to_string(), String::new())?;
    }
    if totals.longest_wait > 0 {
        line("longest wait", Micros::new(totals.longest_wait).to_string(), String::new())?;
    }
    line("time to drain", String::new(), Micros::new(expected.drain).to_string())?;
    let worst = accuracy.as_ref().map(|judged| judged.judgement.worst.to_string());
    if let Some(window) = expected.worst_window {
        let what = format!("most in {}", Micros::new(window.length));
        line(&what, worst.unwrap_or_default(), window.most.to_string())?;
    }
    if let Some(judged) = accuracy {
        let Judgement { wrongly_admitted, wrongly_denied, .. } = judged.judgement;
        line("wrongly admitted", wrongly_admitted.to_string(), String::new())?;
        line("wrongly denied", wrongly_denied.to_string(), String::new())?;
        line("wrong", format!("{:.4} %", judged.judgement.wrong() * 100.0), String::new())?;
    }
    if let Some(fleet) = fleet {
        print_fleet(out, fleet, length)?;
    }
    writeln!(out)
}

fn print_fleet(out: &mut impl Write, fleet: &FleetOutcome, length: Micros) -> io::Result<()> {
    print_faultless(out, &fleet.faultless, length)?;
    let count = |nodes: usize| if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") };
    let FaultOutcome { nodes, after_micros, .. } = fleet.crash;
    writeln!(out, "  {FAINT}{} crash after {}{FAINT:#}", count(nodes), Micros::new(after_micros))?;
    print_fault(out, &fleet.crash)?;
    let FaultOutcome { nodes, micros, .. } = fleet.partition;
    writeln!(out, "  {FAINT}{} cut off for {}{FAINT:#}", count(nodes), Micros::new(micros))?;
    print_fault(out, &fleet.partition)
}

fn print_fault(out: &mut impl Write, fault: &FaultOutcome) -> io::Result<()> {
    let mut line = |what: &str, value: u64| writeln!(out, "  {what:<20}{value:>10}");
    line("held by failed nodes", fault.held_cost)?;
    if fault.micros > 0 {
        line("undecided", fault.undecided_cost)?;
    }
    line("admitted less", fault.lost_cost)?;
    line("above the limit", fault.excess_cost)
}

fn print_faultless(out: &mut impl Write, fleet: &FleetTotals, length: Micros) -> io::Result<()> {
    let FleetTotals { nodes, arrivals, admitted_cost, ideal_cost, excess_cost, calls, renewals, acceptance, .. } =
        fleet;
    let seconds = (length.get() as f64 / 1e6).max(1e-6);
    let of_ideal = 100.0 * *admitted_cost as f64 / (*ideal_cost).max(1) as f64;
    let nodes = if *nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") };
    writeln!(out, "  {FAINT}{nodes} with leases{FAINT:#}")?;
    let mut line = |what: &str, value: String| writeln!(out, "  {what:<16}{value:>14}");
    line("store calls/s", format!("{:.1}", *calls as f64 / seconds))?;
    line("renewals/s", format!("{:.1}", *renewals as f64 / seconds))?;
    line("requests a call", format!("{:.1}", *arrivals as f64 / (*calls).max(1) as f64))?;
    line("admitted cost", admitted_cost.to_string())?;
    line("of the ideal", format!("{of_ideal:.1} %"))?;
    line("above the limit", excess_cost.to_string())?;
    line("least of a node", format!("{:.1} %", acceptance.0 * 100.0))?;
    line("most of a node", format!("{:.1} %", acceptance.1 * 100.0))
}
