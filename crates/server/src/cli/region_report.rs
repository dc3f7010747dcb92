//! Output of `tidegate regions`: shares, transfers, and steps by demand.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::process::ExitCode;

use tidegate_redis::fleet::{BalanceStep, Resumption, Retirement};

use super::{ERROR, FAINT, GOOD, OutputFormat, STRONG, WARNING, failed, plain, print_json};
use crate::region_records::{RegionRecords, ShownOutcome, ShownShare, ShownTransfer};

/// Prints what became of transfers. The status is a failure if anything is left to do, or a region could not be read.
pub(super) fn transfers(resumed: &Resumption, format: OutputFormat) -> io::Result<ExitCode> {
    let shown: Vec<ShownOutcome> = resumed.outcomes.iter().map(ShownOutcome::of).collect();
    if format == OutputFormat::Json {
        print_json(&shown)?;
    } else {
        let mut out = anstream::stdout().lock();
        for outcome in &shown {
            for line in done(outcome).into_iter().chain(left(outcome)) {
                writeln!(out, "{line}")?;
            }
        }
        if shown.is_empty() && resumed.problems.is_empty() {
            writeln!(out, "nothing to move")?;
        }
    }
    for problem in &resumed.problems {
        failed(problem)?;
    }
    Ok(if resumed.is_over() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The line about a share that has moved.
fn done(outcome: &ShownOutcome) -> Option<String> {
    let ShownOutcome { from, to, share, .. } = outcome;
    let of = of_rule(&outcome.rule);
    match outcome {
        ShownOutcome { parked: Some(_), .. } => None,
        ShownOutcome { taken_back: true, .. } => {
            Some(format!("{GOOD}taken back{GOOD:#}: {share} from {to} to {from}{of}"))
        }
        _ => Some(format!("{GOOD}moved{GOOD:#}: {share} from {from} to {to}{of}")),
    }
}

/// The line about what could not be done.
fn left(outcome: &ShownOutcome) -> Option<String> {
    let ShownOutcome { from, to, rule, share, parked, stranded, unfinished, .. } = outcome;
    let of = of_rule(rule);
    let warning = |what: &str, reason: &str| format!("{WARNING}warning{WARNING:#}: {what}: {}", plain(reason));
    if let Some(reason) = parked {
        return Some(format!("{WARNING}parked{WARNING:#}: {share} from {from} to {to}{of}: {}", plain(reason)));
    }
    let unfinished = unfinished
        .as_ref()
        .map(|reason| warning("the transfer is not over, and `tidegate regions resume` continues it", reason));
    let stranded = stranded.as_ref().map(|reason| warning("rights of running windows stay behind", reason));
    unfinished.or(stranded)
}

/// Lines of a command that runs until it is stopped. A line is printed once, until it no longer applies.
#[derive(Default)]
pub(super) struct StandingReports(BTreeSet<String>);

impl StandingReports {
    /// Prints what one step has done, and what is new of what it could not do.
    pub(super) fn print(&mut self, step: &BalanceStep) -> io::Result<()> {
        let shown: Vec<ShownOutcome> = step.resumed.outcomes.iter().map(ShownOutcome::of).collect();
        let mut out = anstream::stdout().lock();
        for line in shown.iter().filter_map(done) {
            writeln!(out, "{line}")?;
        }
        let waits = |rule: &String| format!("waiting{}: the last share has not settled", of_rule(rule));
        let standing = shown.iter().filter_map(left).chain(step.settling.iter().map(waits));
        let problem =
            |problem: &dyn std::fmt::Display| format!("{ERROR}error{ERROR:#}: {}", plain(&problem.to_string()));
        let problems = step.resumed.problems.iter().map(|found| problem(found));
        for line in self.new_ones(standing.chain(problems).collect()) {
            writeln!(out, "{line}")?;
        }
        out.flush()
    }

    /// Lines that the previous step did not have.
    fn new_ones(&mut self, lines: BTreeSet<String>) -> Vec<String> {
        let found = lines.difference(&self.0).cloned().collect();
        self.0 = lines;
        found
    }
}

pub(super) fn retirement(retired: &Retirement) -> io::Result<ExitCode> {
    let mut out = anstream::stdout().lock();
    let some = retired.inherited.iter().filter(|(_, inheritance)| !inheritance.share.is_none());
    for (rule, inheritance) in some.clone() {
        writeln!(out, "{GOOD}retired{GOOD:#}: {} has {} more{}", inheritance.heir, inheritance.share, of_rule(rule))?;
    }
    if some.count() == 0 {
        writeln!(out, "{GOOD}retired{GOOD:#}: nothing was left to inherit")?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn of_rule(rule: &str) -> String {
    if rule.is_empty() { String::new() } else { format!(" of rule {}", plain(rule)) }
}

/// Prints the records. The status is a failure if anything is wrong, or a share is on its way.
pub(super) fn status(shown: &RegionRecords, format: OutputFormat) -> io::Result<ExitCode> {
    if format == OutputFormat::Json {
        print_json(shown)?;
    } else {
        print(&mut anstream::stdout().lock(), shown)?;
    }
    let is_parked = shown.regions.iter().any(|region| !region.outgoing.is_empty());
    Ok(if shown.are_well() && !is_parked { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(out: &mut impl Write, shown: &RegionRecords) -> io::Result<()> {
    let width = shown.regions.iter().map(|region| region.region.len()).max().unwrap_or(0);
    for region in &shown.regions {
        let name = &region.region;
        if let Some(error) = &region.error {
            writeln!(out, "{STRONG}{name:width$}{STRONG:#}  {ERROR}error{ERROR:#}: {}", plain(error))?;
            continue;
        }
        for ShownShare { rule, share, floor, demand, .. } in &region.shares {
            let rule = if rule.is_empty() { "(all rules)".to_owned() } else { plain(rule) };
            let demand = demand.filter(|demand| *demand >= 0.5);
            let demand = demand.map(|demand| format!("  demand {demand:.0}/s")).unwrap_or_default();
            writeln!(
                out,
                "{STRONG}{name:width$}{STRONG:#}  {share:>8}  {rule}  {FAINT}floor {floor}{FAINT:#}{demand}"
            )?;
        }
        for ShownTransfer { number, to, rule, share } in &region.reserved {
            let of = of_rule(rule);
            writeln!(
                out,
                "{name:width$}  {WARNING}reserved{WARNING:#}: {share}{of} of these, taken back from {to} as transfer {number}; `tidegate \
                 regions resume` asks {to}"
            )?;
        }
        for ShownTransfer { number, to, rule, share } in &region.outgoing {
            let of = of_rule(rule);
            writeln!(
                out,
                "{name:width$}  {WARNING}parked{WARNING:#}: {share} on the way to {to}{of}, transfer {number}; `tidegate regions resume`"
            )?;
        }
    }
    for problem in &shown.problems {
        writeln!(out, "{ERROR}error{ERROR:#}: {}", plain(problem))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_is_reported_once() {
        let mut reports = StandingReports::default();
        let mut told = |lines: &[&str]| reports.new_ones(lines.iter().map(|line| (*line).to_owned()).collect());
        assert_eq!(told(&["parked: a"]), ["parked: a"]);
        assert_eq!(told(&["parked: a", "error: b"]), ["error: b"]);
        assert_eq!(told(&["error: b"]), [""; 0]);
        assert_eq!(told(&["parked: a"]), ["parked: a"], "it was over in between");
    }
}
