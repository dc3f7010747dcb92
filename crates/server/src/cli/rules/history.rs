//! `tidegate rules history` and `tidegate rules rollback`.

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;
use tidegate_core::Timestamp;
use tidegate_redis::fleet::{ChangeKind, PublishedChange};
use tidegate_rules::Mode;

use super::super::published::{ago, end};
use super::super::redis::{RedisArgs, SignatureArgs};
use super::super::{FAINT, OutputFormat, STRONG, failed, plain, print_json};
use super::{SignatureReport, print_published, seconds};

const HISTORY_EXAMPLES: &str = "\
Examples:
  tidegate rules history --redis redis://cache.internal
  tidegate rules show --version 7 --redis redis://cache.internal
  tidegate rules rollback 7 --redis redis://cache.internal

Exit status: 0 if something was published, 1 if not, 2 on a usage error.";

/// List the latest changes of rules and modes, with version, author and time.
///
/// The last fifty changes are kept, if they take less than 4 MiB together.
#[derive(clap::Args)]
#[command(after_help = HISTORY_EXAMPLES)]
pub(in crate::cli) struct HistoryArgs {
    /// Output format.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: OutputFormat,

    #[command(flatten)]
    redis: RedisArgs,
}

pub(super) fn history(args: &HistoryArgs) -> io::Result<ExitCode> {
    let asked = args.redis.with(async |control| {
        let (changes, published) = (control.history().await?, control.published().await?);
        Ok::<_, tidegate_redis::fleet::FleetError>((changes, published))
    })?;
    let (changes, published) = match asked {
        Ok((changes, Some(published))) => (changes, published),
        Ok((_, None)) => return failed(&"nothing is published"),
        Err(code) => return Ok(code),
    };
    match args.format {
        OutputFormat::Json => print_json(&changes.iter().map(ChangeReport::of).collect::<Vec<_>>())?,
        OutputFormat::Text => {
            let in_force = published.rules.map(|rules| rules.version);
            print(&mut anstream::stdout().lock(), &changes, in_force, published.now)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints one line for each change, and marks the one whose rules are published.
fn print(out: &mut impl Write, changes: &[PublishedChange], in_force: Option<u64>, now: Timestamp) -> io::Result<()> {
    let width = |of: fn(&PublishedChange) -> usize, least: usize| changes.iter().map(of).max().unwrap_or(0).max(least);
    let who = width(|change| plain(&change.signed.who).chars().count(), "by".len());
    writeln!(out, "{FAINT}version  when          {:<who$}  change{FAINT:#}", "by")?;
    for change in changes {
        let mark = if Some(change.version) == in_force { "*" } else { " " };
        let when = ago(change.signed.at, now);
        let by = plain(&change.signed.who);
        let words = plain(&words(&change.kind, now));
        writeln!(out, "{STRONG}{:>6}{STRONG:#}{mark}  {when:<12}  {by:<who$}  {words}", change.version)?;
    }
    if in_force.is_some_and(|version| changes.iter().any(|change| change.version == version)) {
        writeln!(out, "{FAINT}* the rules that are published{FAINT:#}")?;
    }
    Ok(())
}

fn words(kind: &ChangeKind, now: Timestamp) -> String {
    match kind {
        ChangeKind::Rules { name, text, rollback_to } => {
            let rollback = rollback_to.map(|version| format!(", rollback to version {version}")).unwrap_or_default();
            let kept = if text.is_some() { "" } else { " (too large to be kept)" };
            format!("rules: {name}{rollback}{kept}")
        }
        ChangeKind::Mode { rule, mode, until } => {
            let target = rule.as_ref().map_or_else(|| "all rules".to_owned(), |rule| format!("rule {rule}"));
            let end = until.map(|until| end(until, now)).unwrap_or_default();
            match mode {
                Some(mode) => format!("mode: {target} to {mode}{end}"),
                None => format!("mode: {target} back to the mode in the rules"),
            }
        }
    }
}

#[derive(Serialize)]
struct ChangeReport<'c> {
    version: u64,
    #[serde(flatten)]
    signed: SignatureReport<'c>,
    #[serde(flatten)]
    kind: KindReport<'c>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum KindReport<'c> {
    Rules {
        name: &'c str,
        /// Whether the text can still be shown.
        kept: bool,
        /// The version that was rolled back to; `null` if the rules were new.
        rollback_to: Option<u64>,
    },
    Mode {
        /// `null` stands for all rules.
        rule: Option<&'c str>,
        /// `null` if a switch was removed.
        mode: Option<Mode>,
        /// End of the switch, in seconds since the Unix epoch; `null` if it lasts until it is removed.
        until: Option<u64>,
    },
}

impl ChangeReport<'_> {
    fn of(change: &PublishedChange) -> ChangeReport<'_> {
        let kind = match &change.kind {
            ChangeKind::Rules { name, text, rollback_to } => {
                KindReport::Rules { name, kept: text.is_some(), rollback_to: *rollback_to }
            }
            ChangeKind::Mode { rule, mode, until } => {
                KindReport::Mode { rule: rule.as_deref(), mode: *mode, until: until.map(seconds) }
            }
        };
        ChangeReport { version: change.version, signed: SignatureReport::of(&change.signed), kind }
    }
}

/// The name and text of the rules published by a version.
///
/// # Errors
/// A message for people if there are none.
pub(super) fn rules_of(changes: &[PublishedChange], version: u64) -> Result<(&str, &str), String> {
    let Some(change) = changes.iter().find(|change| change.version == version) else {
        return Err(format!("version {version} is not among the last changes: `tidegate rules history` lists them"));
    };
    match &change.kind {
        ChangeKind::Rules { name, text: Some(text), .. } => Ok((name, text)),
        ChangeKind::Rules { text: None, .. } => {
            Err(format!("the rules of version {version} were too large to be kept"))
        }
        ChangeKind::Mode { .. } => {
            Err(format!("version {version} changed modes, not rules: use `tidegate mode` to change modes"))
        }
    }
}

const ROLLBACK_EXAMPLES: &str = "\
Examples:
  tidegate rules history --redis redis://cache.internal
  tidegate rules rollback 7 --redis redis://cache.internal
  tidegate rules rollback 7 --redis redis://cache.internal --expect 9 --who ann

Exit status: 0 if the rules are published, 1 if not, 2 on a usage error.";

/// Publish the rules of an earlier version again.
///
/// They get a new version, so that the rollback is part of the history and can itself be rolled back. Modes are kept.
#[derive(clap::Args)]
#[command(after_help = ROLLBACK_EXAMPLES)]
pub(in crate::cli) struct Rollback {
    /// Version of the rules to publish.
    #[arg(value_name = "VERSION")]
    version: u64,

    #[command(flatten)]
    signature: SignatureArgs,

    #[command(flatten)]
    redis: RedisArgs,
}

pub(super) fn rollback(args: &Rollback) -> io::Result<ExitCode> {
    let (who, expected) = (args.signature.who(), args.signature.expect);
    let published = args.redis.with(async |control| control.roll_back(args.version, &who, expected).await)?;
    match published {
        Ok(published) => print_published(&mut anstream::stdout().lock(), &published, &who)?,
        Err(code) => return Ok(code),
    }
    Ok(ExitCode::SUCCESS)
}
