//! `tidegate rules diff`: compares rules.

mod hunks;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anstyle::Style;
use serde::Serialize;
use tidegate_rules::{Diagnostics, Loaded, RuleSet, RuleSummary};

use self::hunks::{Hunk, Side, hunks};
use super::super::redis::RedisArgs;
use super::super::{ERROR, FAINT, GOOD, OutputFormat, STRONG, WARNING, check, failed, plain, print_json};
use super::history::rules_of;
use super::read;

const EXAMPLES: &str = "\
Examples:
  tidegate rules diff old.yaml new.yaml
  tidegate rules diff new.yaml --redis redis://cache.internal               against the published rules
  tidegate rules diff new.yaml --version 7 --redis redis://cache.internal   against an earlier version

Exit status: 0 if the rules are the same, 1 if they differ or cannot be used, 2 on a usage error.";

/// Compare rules: added, removed and changed rules, and a diff of the text.
///
/// Compares two files, or the published rules and a file.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, mut_arg("urls", |urls| urls.required(false)))]
pub(in crate::cli) struct Diff {
    /// Old and new rules file. With --redis, only the new one.
    #[arg(value_name = "FILE", required = true, num_args = 1..=2)]
    files: Vec<PathBuf>,

    /// Compare with the rules of this version, not with the current ones.
    #[arg(long, value_name = "VERSION", requires = "urls")]
    version: Option<u64>,

    /// Output format.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: OutputFormat,

    #[command(flatten)]
    redis: RedisArgs,
}

/// One side of a comparison: a rules file or published rules.
struct DiffSide {
    name: String,
    text: String,
    rules: RuleSet,
}

pub(super) fn diff(args: &Diff) -> io::Result<ExitCode> {
    let (old, new) = match (&args.files[..], args.redis.is_given()) {
        ([old, new], _) => (from_file(old)?, from_file(new)?),
        ([new], true) => match published(args)? {
            Ok(old) => (old, from_file(new)?),
            Err(code) => return Ok(code),
        },
        _ => return failed(&"one file is given: give another, or --redis to compare with what is published"),
    };
    let (Some(old), Some(new)) = (old, new) else { return Ok(ExitCode::FAILURE) };
    let report = DiffReport::of(&old, &new);
    let is_same = old.text == new.text;
    match args.format {
        OutputFormat::Json => print_json(&report)?,
        OutputFormat::Text => print(&mut anstream::stdout().lock(), &report, &old, &new)?,
    }
    Ok(if is_same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads and checks a file. Prints its problems if it cannot be used.
fn from_file(file: &Path) -> io::Result<Option<DiffSide>> {
    let (text, checked) = read(file);
    side(file.display().to_string(), text, checked)
}

fn side(name: String, text: String, checked: Result<Loaded, Diagnostics>) -> io::Result<Option<DiffSide>> {
    match checked {
        Ok(loaded) => Ok(Some(DiffSide { name, text, rules: loaded.rules })),
        Err(findings) => {
            check::print(&mut anstream::stderr().lock(), &findings)?;
            Ok(None)
        }
    }
}

/// Published rules, or those of the chosen version.
fn published(args: &Diff) -> io::Result<Result<Option<DiffSide>, ExitCode>> {
    let (name, text) = if let Some(version) = args.version {
        let changes = match args.redis.with(async |control| control.history().await)? {
            Ok(changes) => changes,
            Err(code) => return Ok(Err(code)),
        };
        match rules_of(&changes, version) {
            Ok((name, text)) => (format!("{name} of version {version}"), text.to_owned()),
            Err(problem) => return failed(&problem).map(Err),
        }
    } else {
        match args.redis.with(async |control| control.published().await)? {
            Ok(published) => match published.and_then(|published| published.rules) {
                Some(rules) => (format!("{} of version {}", rules.name, rules.version), rules.text),
                None => return failed(&"no rules are published").map(Err),
            },
            Err(code) => return Ok(Err(code)),
        }
    };
    let checked = RuleSet::parse(&name, &text);
    side(name, text, checked).map(Ok)
}

/// Added, removed and changed rules.
#[derive(Serialize)]
struct DiffReport {
    added: Vec<String>,
    removed: Vec<String>,
    changed: Vec<ChangedRule>,
}

/// A rule in both files with different fields.
#[derive(Serialize)]
struct ChangedRule {
    id: String,
    /// Changed fields, with old and new values.
    fields: Vec<ChangedField>,
}

#[derive(Serialize)]
struct ChangedField {
    field: &'static str,
    old: String,
    new: String,
}

impl DiffReport {
    fn of(old: &DiffSide, new: &DiffSide) -> DiffReport {
        let by_id = |side: &DiffSide| -> BTreeMap<String, Vec<(&'static str, String)>> {
            side.rules.shown().map(|rule| (rule.id.to_owned(), fields(&rule))).collect()
        };
        let (old, new) = (by_id(old), by_id(new));
        let missing_in = |some: &BTreeMap<String, _>, others: &BTreeMap<String, _>| -> Vec<String> {
            some.keys().filter(|id| !others.contains_key(*id)).cloned().collect()
        };
        let changed =
            old.iter().filter_map(|(id, before)| {
                let pairs = before.iter().zip(new.get(id)?);
                let fields = pairs
                    .filter(|((_, old), (_, new))| old != new)
                    .map(|((field, old), (_, new))| ChangedField { field, old: old.clone(), new: new.clone() });
                let fields: Vec<ChangedField> = fields.collect();
                (!fields.is_empty()).then(|| ChangedRule { id: id.clone(), fields })
            });
        DiffReport { added: missing_in(&new, &old), removed: missing_in(&old, &new), changed: changed.collect() }
    }
}

/// The fields of a rule that are compared, in the order of their names here.
fn fields(rule: &RuleSummary<'_>) -> Vec<(&'static str, String)> {
    let key = rule.key.iter().map(|part| part.name.as_str()).collect::<Vec<_>>();
    let limits = rule.limits.iter().map(|limit| match limit.id == rule.id {
        true => limit.limit.clone(),
        false => format!("{} {}", limit.id, limit.limit),
    });
    vec![
        ("limits", limits.collect::<Vec<_>>().join(", ")),
        ("key", if key.is_empty() { "none".to_owned() } else { key.join(", ") }),
        ("mode", rule.written.to_string()),
        ("on_missing_key", rule.on_missing_key.to_owned()),
        ("on_repeated_key", rule.on_repeated_key.to_owned()),
        ("on_store_failure", rule.on_store_failure.clone()),
        ("priority", rule.priority.unwrap_or("none").to_owned()),
    ]
}

const ADDED: Style = GOOD;
const REMOVED: Style = ERROR;

fn print(out: &mut impl Write, report: &DiffReport, old: &DiffSide, new: &DiffSide) -> io::Result<()> {
    if old.text == new.text {
        return writeln!(out, "{GOOD}no difference{GOOD:#}");
    }
    for id in &report.added {
        writeln!(out, "{ADDED}added{ADDED:#}    {}", plain(id))?;
    }
    for id in &report.removed {
        writeln!(out, "{REMOVED}removed{REMOVED:#}  {}", plain(id))?;
    }
    for rule in &report.changed {
        for ChangedField { field, old, new } in &rule.fields {
            let (id, old, new) = (plain(&rule.id), plain(old), plain(new));
            writeln!(out, "{WARNING}changed{WARNING:#}  {id}: {field} {old} -> {new}")?;
        }
    }
    if !(report.added.is_empty() && report.removed.is_empty() && report.changed.is_empty()) {
        writeln!(out)?;
    }
    writeln!(out, "{STRONG}--- {}{STRONG:#}", plain(&old.name))?;
    writeln!(out, "{STRONG}+++ {}{STRONG:#}", plain(&new.name))?;
    for Hunk { place, lines } in hunks(&old.text, &new.text) {
        writeln!(out, "{FAINT}{place}{FAINT:#}")?;
        for (side, line) in lines {
            let (sign, style) = match side {
                Side::Old => ("-", REMOVED),
                Side::New => ("+", ADDED),
                Side::Both => (" ", Style::new()),
            };
            writeln!(out, "{style}{sign}{}{style:#}", plain(line.trim_end_matches(['\r', '\n'])))?;
        }
    }
    Ok(())
}
