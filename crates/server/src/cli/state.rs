//! `tidegate state`: inspects a server's state file.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use serde::Serialize;
use tidegate_core::memory::{Restored, RuleUsage};
use tidegate_core::{Clock, Micros, SystemClock};
use tidegate_rules::counted;

use super::{FAINT, GOOD, OutputFormat, STRONG, failed, plain, print_json};
use crate::state_file;

const EXAMPLES: &str = "\
Examples:
  tidegate state verify /var/lib/tidegate/state
  tidegate state show /var/lib/tidegate/state --format json

A running server replaces its state file atomically, so both commands work at any time. A unit is the space of one key. Logs,
slots and reservations take several, depending on their size.";

/// Inspect a state file, in which a store in memory survives restarts.
#[derive(Subcommand)]
#[command(after_help = EXAMPLES)]
pub(super) enum StateCommand {
    /// Check that a state file is complete, undamaged, and of a supported version.
    Verify(Args),
    /// Show the time and contents of a state file, by rule.
    Show(Args),
}

#[derive(clap::Args)]
pub(super) struct Args {
    /// State file (`store.file`).
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Output format.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: OutputFormat,
}

/// Contents of a state file, for programs.
#[derive(Serialize)]
struct StateReport {
    /// Time at which it was written, in milliseconds since the Unix epoch.
    saved_at_ms: u64,
    keys: u64,
    /// Units used by the keys of all rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    units: Option<u64>,
    reservations: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<Vec<SavedRuleReport>>,
}

/// Units used by the keys of one rule.
#[derive(Serialize)]
struct SavedRuleReport {
    /// Id of the limit or its reservations; `None` for all rules that are not counted separately.
    rule: Option<String>,
    /// In units. A key takes one unit; logs, slots and reservations take more, depending on their size.
    used: u64,
}

pub(super) fn run(command: &StateCommand) -> io::Result<ExitCode> {
    let (args, shows_rules) = match command {
        StateCommand::Verify(args) => (args, false),
        StateCommand::Show(args) => (args, true),
    };
    let restored = match state_file::read(&args.file, usize::MAX >> 24) {
        Ok(Some(restored)) => restored,
        Ok(None) => return failed(&format!("there is no file `{}`", args.file.display())),
        Err(error) => return failed(&error),
    };
    let Restored { store, counts, saved_at, .. } = restored;
    let rules = shows_rules.then(|| {
        let mut rules = store.usage_by_rule();
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.used));
        rules
    });
    let units = rules.as_ref().map(|rules| rules.iter().map(|rule| rule.used).sum::<u64>());
    if args.format == OutputFormat::Json {
        let rule =
            |RuleUsage { rule, used, .. }: RuleUsage| SavedRuleReport { rule: rule.map(|rule| rule.to_string()), used };
        print_json(&StateReport {
            saved_at_ms: saved_at.as_micros() / 1_000,
            keys: counts.keys,
            units,
            reservations: counts.reservations,
            rules: rules.map(|rules| rules.into_iter().map(rule).collect()),
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = anstream::stdout().lock();
    let age = SystemClock::new().now().since(saved_at).as_secs_ceil();
    let counted = |number: u64, what: &str| counted(usize::try_from(number).unwrap_or(usize::MAX), what);
    let keys = counted(counts.keys, "key");
    let room = units.map_or_else(String::new, |units| format!(" in {}", counted(units, "unit")));
    let reservations = counted(counts.reservations, "open reservation");
    writeln!(out, "{GOOD}ok{GOOD:#}: {keys}{room}, {reservations}, saved {} ago", Micros::from_secs(age))?;
    if rules.as_ref().is_some_and(|rules| !rules.is_empty()) {
        writeln!(out, "{FAINT}{:>10}  rule{FAINT:#}", "units")?;
    }
    for RuleUsage { rule, used, .. } in rules.iter().flatten() {
        let name = rule.as_ref().map_or_else(|| "(all other rules)".to_owned(), |rule| plain(rule.as_str()));
        writeln!(out, "{used:>10}  {STRONG}{name}{STRONG:#}")?;
    }
    Ok(ExitCode::SUCCESS)
}
