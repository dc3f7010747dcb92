//! `tidegate rules`: the rules of a fleet.

mod diff;
mod history;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use tidegate_core::Timestamp;
use tidegate_redis::fleet::{Publication, Published, Signature};
use tidegate_rules::{Diagnostics, Loaded, RuleSet};

use super::published::{by, switched};
use super::redis::{RedisArgs, SignatureArgs};
use super::{FAINT, GOOD, OutputFormat, STRONG, check, failed, plain, plain_text, print_json};

/// Publish rules to a fleet; show, compare and roll back published rules.
#[derive(clap::Subcommand)]
pub(super) enum RulesCommand {
    Push(Push),
    Show(Show),
    Diff(diff::Diff),
    History(history::HistoryArgs),
    Rollback(history::Rollback),
}

pub(super) fn run(command: &RulesCommand) -> io::Result<ExitCode> {
    match command {
        RulesCommand::Push(args) => push(args),
        RulesCommand::Show(args) => show(args),
        RulesCommand::Diff(args) => diff::diff(args),
        RulesCommand::History(args) => history::history(args),
        RulesCommand::Rollback(args) => history::rollback(args),
    }
}

const PUSH_EXAMPLES: &str = "\
Examples:
  tidegate rules push rules.yaml --redis redis://cache.internal
  tidegate rules push rules.yaml --redis redis://cache.internal --expect 7 --who ann
  tidegate fleet --wait 10 --redis redis://cache.internal     wait until all nodes have them

Exit status: 0 if the rules are published, 1 if not, 2 on a usage error.";

/// Publish rules to all nodes that follow the same Redis.
///
/// The file is checked first, as by `tidegate check`. A file with errors is not published. Nodes apply it within two
/// seconds. Each node checks it again, and keeps its current rules if it cannot use the new ones. Counts are kept.
///
/// Every change has a version. `--expect` names the version that the change is based on, and publishes nothing if
/// another one is current, so that two people do not overwrite each other's changes.
#[derive(clap::Args)]
#[command(after_help = PUSH_EXAMPLES)]
pub(super) struct Push {
    /// Rules file. It must not include other files: the nodes do not have them.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    signature: SignatureArgs,

    #[command(flatten)]
    redis: RedisArgs,
}

fn push(args: &Push) -> io::Result<ExitCode> {
    if args.file.is_dir() {
        return failed(&format_args!("`{}` is a folder: publish a single file", args.file.display()));
    }
    let (text, checked) = read(&args.file);
    let mut out = anstream::stdout().lock();
    if !check::one(&mut out, checked)? {
        return Ok(ExitCode::FAILURE);
    }
    let name = args.file.file_name().map_or_else(|| "rules".to_owned(), |name| name.to_string_lossy().into_owned());
    let (who, expected) = (args.signature.who(), args.signature.expect);
    let published = args.redis.with(async |control| control.publish_rules(&name, &text, &who, expected).await)?;
    match published {
        Ok(published) => print_published(&mut out, &published, &who)?,
        Err(code) => return Ok(code),
    }
    Ok(ExitCode::SUCCESS)
}

fn print_published(out: &mut impl Write, published: &Publication, who: &str) -> io::Result<()> {
    let version = published.version;
    write!(out, "{GOOD}published{GOOD:#}: version {STRONG}{version}{STRONG:#}, by {}", plain(who))?;
    match &published.before {
        Some(before) => writeln!(out, "; the last change before it was {}", by(before, published.at)),
        None => writeln!(out, "; the first"),
    }
}

/// The text of a file, and the rules in it.
fn read(file: &Path) -> (String, Result<Loaded, Diagnostics>) {
    match std::fs::read_to_string(file) {
        Ok(text) => {
            let checked = RuleSet::parse(&file.display().to_string(), &text);
            (text, checked)
        }
        // `load` fails in the same way, with a better report.
        Err(error) => {
            let findings = tidegate_rules::load(&[file.to_owned()]).err().unwrap_or_else(|| {
                let place = tidegate_rules::Place { file: file.display().to_string().into(), line: 1, column: 1 };
                Diagnostics(vec![tidegate_rules::Diagnostic {
                    severity: tidegate_rules::Severity::Error,
                    place,
                    problem: format!("it cannot be read: {error}"),
                    help: None,
                    excerpt: String::new(),
                    mark: (0, 0),
                }])
            });
            (String::new(), Err(findings))
        }
    }
}

const SHOW_EXAMPLES: &str = "\
Examples:
  tidegate rules show --redis redis://cache.internal
  tidegate rules show --redis redis://cache.internal > rules.yaml
  tidegate rules show --redis redis://cache.internal --version 7 > rules.yaml
  tidegate rules show --redis redis://cache.internal --format json

Exit status: 0 if rules or switches are published, 1 if not, 2 on a usage error.";

/// Show the published rules and switches, with the author and time of each.
///
/// The text of the rules goes to standard output, as published; its version, author and switches go to standard error.
#[derive(clap::Args)]
#[command(after_help = SHOW_EXAMPLES)]
pub(super) struct Show {
    /// Show the rules of this version, as listed by `tidegate rules history`.
    #[arg(long, value_name = "VERSION", conflicts_with = "format")]
    version: Option<u64>,

    /// Output format.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: OutputFormat,

    #[command(flatten)]
    redis: RedisArgs,
}

fn show(args: &Show) -> io::Result<ExitCode> {
    if let Some(version) = args.version {
        return show_version(args, version);
    }
    let published = match args.redis.with(async |control| control.published().await)? {
        Ok(Some(published)) => published,
        Ok(None) => return failed(&"nothing is published"),
        Err(code) => return Ok(code),
    };
    match args.format {
        OutputFormat::Json => print_json(&PublishedReport::of(&published))?,
        OutputFormat::Text => {
            about(&mut anstream::stderr().lock(), &published)?;
            if let Some(rules) = &published.rules {
                print_text(&rules.text)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show_version(args: &Show, version: u64) -> io::Result<ExitCode> {
    let changes = match args.redis.with(async |control| control.history().await)? {
        Ok(changes) => changes,
        Err(code) => return Ok(code),
    };
    match history::rules_of(&changes, version) {
        Ok((_, text)) => print_text(text)?,
        Err(problem) => return failed(&problem),
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the text of rules: unchanged to a file, without control characters to a terminal.
fn print_text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if io::IsTerminal::is_terminal(&out) {
        return out.write_all(plain_text(text).as_bytes());
    }
    out.write_all(text.as_bytes())
}

fn about(out: &mut impl Write, published: &Published) -> io::Result<()> {
    let now = published.now;
    let line = |out: &mut dyn Write, label: &str, value: &str| writeln!(out, "{FAINT}{label:<10}{FAINT:#}{value}");
    line(out, "version", &format!("{}, {}", published.version, by(&published.signed, now)))?;
    match &published.rules {
        Some(rules) => {
            let signed = by(&rules.signed, now);
            line(out, "rules", &format!("{} of version {}, {signed}", plain(&rules.name), rules.version))?;
        }
        None => line(out, "rules", "none: each node has its own")?,
    }
    let mut label = "switched";
    for switched in switched(published) {
        line(out, label, &switched)?;
        label = "";
    }
    writeln!(out)
}

#[derive(Serialize)]
struct PublishedReport<'p> {
    version: u64,
    #[serde(flatten)]
    signed: SignatureReport<'p>,
    rules: Option<PublishedRulesReport<'p>>,
    switched: Vec<SwitchReport<'p>>,
}

/// `at` is in seconds since the Unix epoch.
#[derive(Serialize)]
struct SignatureReport<'p> {
    who: &'p str,
    at: u64,
}

#[derive(Serialize)]
struct PublishedRulesReport<'p> {
    version: u64,
    name: &'p str,
    #[serde(flatten)]
    signed: SignatureReport<'p>,
    text: &'p str,
}

#[derive(Serialize)]
struct SwitchReport<'p> {
    /// `null` stands for all rules.
    rule: Option<&'p str>,
    mode: tidegate_rules::Mode,
    /// End, in seconds since the Unix epoch; `null` if it lasts until it is removed.
    until: Option<u64>,
    #[serde(flatten)]
    signed: SignatureReport<'p>,
}

impl SignatureReport<'_> {
    const fn of(signature: &Signature) -> SignatureReport<'_> {
        SignatureReport { who: signature.who.as_str(), at: signature.at.as_micros() / 1_000_000 }
    }
}

/// The end of a switch, in seconds since the Unix epoch.
const fn seconds(until: Timestamp) -> u64 {
    until.as_micros().div_ceil(1_000_000)
}

impl PublishedReport<'_> {
    fn of(published: &Published) -> PublishedReport<'_> {
        let all = published.modes.all.iter().map(|switched| (None, switched));
        let single = published.modes.rules.iter().map(|(rule, switched)| (Some(rule.as_str()), switched));
        PublishedReport {
            version: published.version,
            signed: SignatureReport::of(&published.signed),
            rules: published.rules.as_ref().map(|rules| PublishedRulesReport {
                version: rules.version,
                name: &rules.name,
                signed: SignatureReport::of(&rules.signed),
                text: &rules.text,
            }),
            switched: all
                .chain(single)
                .map(|(rule, switched)| SwitchReport {
                    rule,
                    mode: switched.mode,
                    until: switched.until.map(seconds),
                    signed: SignatureReport::of(&switched.signed),
                })
                .collect(),
        }
    }
}
