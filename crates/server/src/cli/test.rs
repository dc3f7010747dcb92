//! `tidegate test`: tests rules with requests and expected outcomes.

mod outcome;
mod scenario;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use tidegate_rules::{Diagnostics, RuleSet, counted};

use self::outcome::{OutcomeMismatch, run_scenario};
use self::scenario::TestFile;
use super::{ERROR, GOOD, OutputFormat, STRONG, check, plain, plain_text, print_json};

const EXAMPLES: &str = "\
Examples:
  tidegate test rules.test.yaml
  tidegate test tests/*.yaml --rules rules/        rules other than those that the files name
  tidegate test rules.test.yaml --format json

A test file:
  rules: rules.yaml
  tests:
    - name: the sixth login within a minute is denied
      steps:
        - { request: POST /login, address: 203.0.113.7, times: 5, expect: allowed }
        - { request: POST /login, address: 203.0.113.7, expect: denied, by: login }
        - { after: 1min, request: POST /login, address: 203.0.113.7, expect: allowed }

Time is simulated: no test waits. Exit status: 0 if all tests pass, 1 if not, 2 on a usage error.";

/// Test rules: decide the requests of test files, and compare the decisions with the expected ones.
///
/// Each test begins with empty state, at midnight UTC on Monday, 1 January 2024. Its steps happen in order, each `after`
/// the previous one. The requests of a step arrive at the same instant. State is kept in memory.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Test files.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Rules files, or folders of them, to test in place of the rules that the test files name.
    #[arg(long, value_name = "FILE")]
    rules: Vec<PathBuf>,

    /// Output format.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: OutputFormat,
}

pub(super) fn run(args: &Args) -> io::Result<ExitCode> {
    let (mut results, mut unusable) = (Vec::new(), false);
    for file in &args.files {
        match run_file(file, &args.rules) {
            Ok(of_file) => results.extend(of_file),
            Err(findings) => {
                unusable = true;
                check::print(&mut anstream::stderr().lock(), &findings)?;
            }
        }
    }
    let failed = results.iter().filter(|result| result.failure.is_some()).count();
    let report = TestReport { passed: results.len() - failed, failed, tests: &results };
    match args.format {
        OutputFormat::Json => print_json(&report)?,
        OutputFormat::Text => print(&mut anstream::stdout().lock(), &report)?,
    }
    Ok(if failed == 0 && !unusable { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the tests of a file independently of each other.
fn run_file(file: &Path, other_rules: &[PathBuf]) -> Result<Vec<TestResult>, Diagnostics> {
    let tests = TestFile::read(file)?;
    let rules = load(if other_rules.is_empty() { &tests.rules } else { other_rules })?;
    tests.deniers_exist(&rules)?;
    let results = tests.scenarios.iter().map(|scenario| TestResult {
        file: file.display().to_string(),
        line: scenario.place.line,
        name: scenario.name.clone(),
        failure: run_scenario(scenario, &rules).err(),
    });
    Ok(results.collect())
}

fn load(files: &[PathBuf]) -> Result<RuleSet, Diagnostics> {
    tidegate_rules::load(files).map(|loaded| loaded.rules)
}

#[derive(Serialize)]
struct TestReport<'r> {
    passed: usize,
    failed: usize,
    tests: &'r [TestResult],
}

#[derive(Serialize)]
struct TestResult {
    file: String,
    line: usize,
    name: String,
    /// `null` if the test passed.
    failure: Option<OutcomeMismatch>,
}

fn print(out: &mut impl Write, report: &TestReport<'_>) -> io::Result<()> {
    for result in report.tests {
        let name = plain(&result.name);
        let Some(failure) = &result.failure else {
            writeln!(out, "{GOOD}passed{GOOD:#}  {name}")?;
            continue;
        };
        writeln!(out, "{ERROR}failed{ERROR:#}  {STRONG}{name}{STRONG:#}")?;
        writeln!(out, "        {}: {}", plain(&failure.place.to_string()), plain_text(&failure.to_string()))?;
        for limit in &failure.limits {
            writeln!(out, "          {}", plain(&limit.to_string()))?;
        }
    }
    let (passed, failed) = (report.passed, report.failed);
    match (passed + failed, failed) {
        (0, _) => Ok(()),
        (all, 0) => writeln!(out, "{GOOD}{}{GOOD:#}: all passed", counted(all, "test")),
        (all, failed) => writeln!(out, "{ERROR}{}{ERROR:#}: {failed} failed", counted(all, "test")),
    }
}
