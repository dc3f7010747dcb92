//! `tidegate mode`: rules in and out of force, on all nodes at once.

use std::io::{self, Write};
use std::process::ExitCode;

use tidegate_core::rules::{Mode, RuleSet};
use tidegate_redis::steering::{PublishError, Published, Target};

use super::redis::{RedisArgs, user_at_host};
use super::{GOOD, STRONG, WARNING, plain};
use crate::mode_choice::ModeChoice;

const EXAMPLES: &str = "\
Examples:
  tidegate mode login off --redis redis://cache.internal          one rule does nothing any more
  tidegate mode search shadow --redis redis://cache.internal      it counts and reports, and denies nobody
  tidegate mode --all off --redis redis://cache.internal          the kill switch
  tidegate mode --all as-written --redis redis://cache.internal   and back

Exit status: 0 if it is published, 1 if not, 2 if the command was not understood.";

/// Put one rule, or all of them, into another mode on all nodes that follow the same Redis.
///
/// It holds within two seconds and until it is taken back with `as-written`, whatever rules the nodes have or get. What is
/// said of all rules goes before what is said of one. What rules have counted stays; a rule that is off does not count.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, allow_missing_positional = true)]
pub(super) struct Args {
    /// The id of the rule.
    #[arg(value_name = "RULE", required_unless_present = "all", conflicts_with = "all")]
    rule: Option<String>,

    /// The mode.
    #[arg(value_name = "MODE", value_enum)]
    mode: ModeChoice,

    /// All rules instead of one, also those that are written as shadow or off.
    #[arg(long)]
    all: bool,

    /// Publish only if this version is the present one.
    #[arg(long, value_name = "VERSION")]
    expect: Option<u64>,

    /// Who publishes, for others to see. You at this machine, otherwise.
    #[arg(long, value_name = "NAME")]
    who: Option<String>,

    #[command(flatten)]
    redis: RedisArgs,
}

pub(super) fn run(args: &Args) -> io::Result<ExitCode> {
    let target = args.rule.clone().map_or(Target::All, Target::Rule);
    let who = args.who.clone().unwrap_or_else(user_at_host);
    let mode = args.mode.mode();
    let done = args.redis.with(async |steering| {
        let publication = steering.publish_mode(&target, mode, &who, args.expect).await?;
        Ok::<_, PublishError>((publication, steering.published().await?))
    })?;
    let (publication, published) = match done {
        Ok(done) => done,
        Err(code) => return Ok(code),
    };
    let what = match &target {
        Target::All => "all rules are".to_owned(),
        Target::Rule(rule) => format!("`{}` is", plain(rule)),
    };
    let how = mode.map_or_else(|| "as written".to_owned(), |mode| mode.to_string());
    let mut out = anstream::stdout().lock();
    let version = publication.version;
    writeln!(out, "{GOOD}published{GOOD:#}: version {STRONG}{version}{STRONG:#}: {what} {STRONG}{how}{STRONG:#}")?;
    for doubt in published.iter().flat_map(|published| doubts(&target, mode, published)) {
        writeln!(out, "{WARNING}note{WARNING:#}: {}", plain(&doubt))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What whoever switches may not have in mind.
fn doubts(target: &Target, mode: Option<Mode>, published: &Published) -> Vec<String> {
    let mut doubts = Vec::new();
    let single = published.modes.rules.len();
    match target {
        Target::All if mode == Some(Mode::Enforce) => {
            doubts.push("this enforces rules that are written as shadow or off, too".to_owned());
        }
        Target::All if mode.is_none() && single > 0 => {
            doubts.push(format!("{} switched: `tidegate rules show` lists them", switched_one_by_one(single)));
        }
        Target::All => {}
        Target::Rule(rule) => {
            if let Some(all) = &published.modes.all {
                doubts.push(format!("all rules are switched to {}, which goes before", all.mode));
            }
            if let Some(rules) = &published.rules
                && mode.is_some()
                && let Ok(loaded) = RuleSet::parse(&rules.name, &rules.text)
                && loaded.rules.with_switches(published.modes.switches()).unknown_switches().contains(&rule.as_str())
            {
                let (name, version) = (&rules.name, rules.version);
                doubts.push(format!("{name} of version {version} has no rule `{rule}`; the switch waits for one"));
            }
        }
    }
    doubts
}

fn switched_one_by_one(count: usize) -> String {
    if count == 1 { "one rule is still".to_owned() } else { format!("{count} rules are still") }
}
