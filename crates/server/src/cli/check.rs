//! `tidegate check`: checks rules files.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use tidegate_rules::{Diagnostic, Diagnostics, Loaded, RuleCounts, RuleSet, Severity, counted};

use super::serve::refuse;
use super::settings_args::variables;
use super::{ERROR, GOOD, OutputFormat, Rules, STRONG, WARNING, failed, plain_text, print_json, secret};
use crate::config::KnownFacts;
use crate::config::{ConfigErrors, Configuration, StartupArgs};

const EXAMPLES: &str = "\
Examples:
  tidegate check rules.yaml             one file
  tidegate check rules/                 all YAML files in a folder
  tidegate check --deny-warnings rules/ for continuous integration
  tidegate check --format json rules/   for programs
  tidegate check rules/ --with tidegate.yaml   also check that this server can determine the keys
  generate | tidegate check -           standard input

Exit status: 0 if the rules can be used, 1 if there are errors (or warnings, with --deny-warnings), 2 on a usage error.";

/// Check rules files, and print all problems.
///
/// A file with errors cannot be used. A file with warnings can, but probably not as its author intended. Each finding
/// names its place and the correction. Check files that belong together in one call, since rules of one file may refer
/// to rules of another.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    rules: Rules,

    /// Configuration of the server that will use the rules. Warns about rules whose keys its gateway cannot determine.
    #[arg(long, value_name = "FILE")]
    with: Option<PathBuf>,

    /// Exit with 1 if there are warnings.
    #[arg(long)]
    deny_warnings: bool,
}

pub(super) fn run(args: &Args) -> io::Result<ExitCode> {
    let configuration = match args.with.as_deref().map(configuration).transpose() {
        Ok(configuration) => configuration,
        Err(faults) => return refuse(&faults),
    };
    let loaded = match &args.rules.files[..] {
        [file] if is_standard_input(file) => match io::read_to_string(io::stdin()) {
            Ok(text) => RuleSet::parse("standard input", &text),
            Err(error) => return failed(&format!("standard input cannot be read: {error}")),
        },
        files => tidegate_rules::load(files),
    };
    let loaded = loaded.map(|mut loaded| {
        if let Some(known) = configuration.as_ref().and_then(KnownFacts::of) {
            loaded.warnings.0.extend(known.warnings(&loaded.rules));
        }
        loaded
    });
    let checked = CheckedRules::of(loaded);
    let report = checked.report();
    match args.rules.format {
        OutputFormat::Json => print_json(&report)?,
        OutputFormat::Text => print_report(&mut anstream::stdout().lock(), &report, args.deny_warnings)?,
    }
    let is_denied = args.deny_warnings && report.warnings > 0;
    Ok(if report.usable && !is_denied { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn is_standard_input(file: &Path) -> bool {
    file == Path::new("-") || file == Path::new("/dev/stdin")
}

/// Configuration of a server, with the current environment variables.
pub(super) fn configuration(file: &Path) -> Result<Configuration, ConfigErrors> {
    Configuration::load(&StartupArgs { file: Some(file.to_owned()), flags: Vec::new() }, &variables())
}

/// Checks a text before it is published, and prints its findings. Returns whether it is valid.
pub(super) fn one(out: &mut impl Write, checked: Result<Loaded, Diagnostics>) -> io::Result<bool> {
    let checked = CheckedRules::of(checked);
    print_report(out, &checked.report(), false)?;
    Ok(checked.counts.is_some())
}

fn print_report(out: &mut impl Write, report: &CheckReport<'_>, denies_warnings: bool) -> io::Result<()> {
    print(out, report.findings)?;
    // Printed to standard error: a note is not a finding.
    if let Some(note) = report.note {
        writeln!(anstream::stderr(), "{STRONG}note{STRONG:#}: {}", plain_text(note))?;
    }
    summarise(out, report, denies_warnings)
}

/// Rules that were checked.
struct CheckedRules {
    findings: Diagnostics,
    counts: Option<RuleCounts>,
    note: Option<String>,
}

impl CheckedRules {
    fn of(checked: Result<Loaded, Diagnostics>) -> CheckedRules {
        match checked {
            Ok(loaded) => {
                let (counts, note) = (Some(loaded.rules.counts()), secret::note(&loaded.rules));
                CheckedRules { findings: loaded.warnings, counts, note }
            }
            Err(findings) => CheckedRules { findings, counts: None, note: None },
        }
    }

    fn report(&self) -> CheckReport<'_> {
        let CheckedRules { findings, counts, note } = self;
        let (errors, warnings) = (findings.errors(), findings.warnings());
        CheckReport { usable: counts.is_some(), errors, warnings, counts: *counts, findings, note: note.as_deref() }
    }
}

#[derive(Serialize)]
struct CheckReport<'f> {
    usable: bool,
    errors: usize,
    warnings: usize,
    /// Counts of rules; absent if there are errors.
    #[serde(flatten)]
    counts: Option<RuleCounts>,
    findings: &'f Diagnostics,
    /// Note on settings that the rules need.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'f str>,
}

/// Prints every finding, each followed by an empty line.
pub(super) fn print(out: &mut impl Write, findings: &Diagnostics) -> io::Result<()> {
    findings.0.iter().try_for_each(|finding| print_one(out, finding))
}

fn print_one(out: &mut impl Write, finding: &Diagnostic) -> io::Result<()> {
    let style = match finding.severity {
        Severity::Error => ERROR,
        Severity::Warning => WARNING,
    };
    let text = plain_text(&finding.to_string());
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    let (severity, problem) = first.split_once(": ").unwrap_or(("", first));
    writeln!(out, "{style}{severity}{style:#}: {STRONG}{problem}{STRONG:#}")?;
    writeln!(out, "{rest}")
}

fn summarise(out: &mut impl Write, report: &CheckReport<'_>, denies_warnings: bool) -> io::Result<()> {
    let found = match (report.errors, report.warnings) {
        (0, 0) => "no problems found".to_owned(),
        (0, warnings) => counted(warnings, "warning"),
        (errors, 0) => counted(errors, "error"),
        (errors, warnings) => format!("{} and {}", counted(errors, "error"), counted(warnings, "warning")),
    };
    match report.counts {
        Some(counts) if denies_warnings && report.warnings > 0 => {
            writeln!(out, "{ERROR}denied{ERROR:#}: {counts}, {found}, and --deny-warnings is set")
        }
        Some(counts) => writeln!(out, "{GOOD}ok{GOOD:#}: {counts}, {found}"),
        None => writeln!(out, "{ERROR}not usable{ERROR:#}: {found}"),
    }
}
