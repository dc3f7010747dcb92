//! `tidegate mode`: switches the mode of rules on all nodes at once.

use std::io::{self, Write};
use std::process::ExitCode;

use tidegate_core::Micros;
use tidegate_redis::fleet::{FleetError, PublicationTarget, PublishError, Published};
use tidegate_rules::yaml::closest;
use tidegate_rules::{Mode, Rule, RuleSet, Switches};

use super::redis::{RedisArgs, SignatureArgs};
use super::{GOOD, STRONG, WARNING, failed, meant, plain};
use crate::mode_choice::{LONGEST_SWITCH, ModeChoice};

const EXAMPLES: &str = "\
Examples:
  tidegate mode login off --redis redis://cache.internal          turn one rule off
  tidegate mode search shadow --redis redis://cache.internal      count and report, but deny nothing
  tidegate mode --all off --for 15min --redis redis://cache.internal   kill switch for 15 minutes
  tidegate mode --all as-written --redis redis://cache.internal   end the switch

Exit status: 0 if the switch is published, 1 if not, 2 on a usage error.";

/// Switch the mode of one rule, or of all rules, on all nodes that follow the same Redis.
///
/// Takes effect within two seconds. Lasts until `as-written` removes it, or for the time given by `--for`, even if the
/// rules change until then. Each node ends an expired switch by its own clock, even while Redis is unavailable. A switch
/// of all rules takes precedence over a switch of one rule. Counts are kept. A rule that is off does not count.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, allow_missing_positional = true)]
pub(super) struct Args {
    /// Id of the rule.
    #[arg(value_name = "RULE", required_unless_present = "all", conflicts_with = "all")]
    rule: Option<String>,

    /// Mode to switch to.
    #[arg(value_name = "MODE", value_enum)]
    mode: ModeChoice,

    /// Switch all rules, including those with mode shadow or off in the file.
    #[arg(long)]
    all: bool,

    /// Duration of the switch, such as 90s, 15min or 2h. Default: until it is removed.
    #[arg(long = "for", value_name = "TIME", value_parser = lasting)]
    lasting: Option<Micros>,

    /// Switch the rule even if it is not among the published rules yet.
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    signature: SignatureArgs,

    #[command(flatten)]
    redis: RedisArgs,
}

pub(super) fn run(args: &Args) -> io::Result<ExitCode> {
    let target = args.rule.clone().map_or(PublicationTarget::All, PublicationTarget::Rule);
    let (who, expected) = (args.signature.who(), args.signature.expect);
    let mode = args.mode.mode();
    if mode.is_none() && args.lasting.is_some() {
        failed(&"`--for` sets the end of a switch, and `as-written` removes one: use only one of them")?;
        return Ok(ExitCode::from(2));
    }
    let done = args.redis.with(async |control| {
        if !args.force
            && mode.is_some()
            && let PublicationTarget::Rule(rule) = &target
        {
            check_rule(rule, control.published().await?.as_ref())?;
        }
        let publication = match (mode, args.lasting) {
            (Some(mode), Some(lasting)) => control.publish_mode_for(&target, mode, lasting, &who, expected).await?,
            (mode, _) => control.publish_mode(&target, mode, &who, expected).await?,
        };
        Ok::<_, ModeError>((publication, control.published().await?))
    })?;
    let (publication, published) = match done {
        Ok(done) => done,
        Err(code) => return Ok(code),
    };
    let what = match &target {
        PublicationTarget::All => "all rules are".to_owned(),
        PublicationTarget::Rule(rule) => format!("`{}` is", plain(rule)),
    };
    let how = mode.map_or_else(|| "as written".to_owned(), |mode| mode.to_string());
    let lasting = args.lasting.map(|lasting| format!(" for {lasting}")).unwrap_or_default();
    let mut out = anstream::stdout().lock();
    let version = publication.version;
    writeln!(
        out,
        "{GOOD}published{GOOD:#}: version {STRONG}{version}{STRONG:#}: {what} {STRONG}{how}{STRONG:#}{lasting}"
    )?;
    for doubt in published.iter().flat_map(|published| doubts(&target, mode, published)) {
        writeln!(out, "{WARNING}note{WARNING:#}: {}", plain(&doubt))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A switch that was not published.
#[derive(Debug, thiserror::Error)]
enum ModeError {
    #[error("{file} of version {version} has no rule `{rule}`{} To switch it in advance, add --force", meant(.closest))]
    NoRule { file: String, version: u64, rule: String, closest: Option<String> },
    #[error("`{limit}` is a limit of the rule `{rule}`, and only whole rules are switched: write `{rule}`")]
    Limit { limit: String, rule: String },
    #[error(transparent)]
    Publish(#[from] PublishError),
    #[error(transparent)]
    Fleet(#[from] FleetError),
}

/// Parses the duration of a switch.
fn lasting(text: &str) -> Result<Micros, String> {
    match text.parse::<Micros>() {
        Ok(lasting) if lasting.is_zero() => Err("the duration is zero".to_owned()),
        Ok(lasting) if lasting > LONGEST_SWITCH => Err("the duration is longer than a year: leave it out".to_owned()),
        Ok(lasting) => Ok(lasting),
        Err(error) => Err(error.to_string()),
    }
}

/// Rejects a switch for a rule that is not published, which is probably a typo. Rules in the nodes' own files are
/// not known here.
fn check_rule(rule: &str, published: Option<&Published>) -> Result<(), ModeError> {
    let Some(text) = published.and_then(|published| published.rules.as_ref()) else { return Ok(()) };
    // Rules of another version of Tidegate may not be readable here.
    let Ok(loaded) = RuleSet::parse(&text.name, &text.text) else { return Ok(()) };
    let rules = loaded.rules;
    let mut alone = Switches::new();
    alone.switch(rule, Some(Mode::Off));
    if rules.clone().with_switches(alone).unknown_switches().is_empty() {
        return Ok(());
    }
    if let Some(whole) = rules.rule_of(rule) {
        return Err(ModeError::Limit { limit: rule.to_owned(), rule: whole.id().to_owned() });
    }
    let closest = closest(rule, rules.rules().iter().map(Rule::id)).map(str::to_owned);
    Err(ModeError::NoRule { file: text.name.clone(), version: text.version, rule: rule.to_owned(), closest })
}

/// Notes on effects of a switch that the operator may not expect.
fn doubts(target: &PublicationTarget, mode: Option<Mode>, published: &Published) -> Vec<String> {
    let mut doubts = Vec::new();
    let single = published.modes.rules.len();
    match target {
        PublicationTarget::All if mode == Some(Mode::Enforce) => {
            doubts.push("this also enforces rules that are written as shadow or off".to_owned());
        }
        PublicationTarget::All if mode.is_none() && single > 0 => {
            doubts.push(format!("{} switched: `tidegate rules show` lists them", switched_one_by_one(single)));
        }
        PublicationTarget::All => {}
        PublicationTarget::Rule(rule) => {
            if let Some(all) = &published.modes.all {
                doubts.push(format!("all rules are switched to {}, which takes precedence", all.mode));
            }
            if published.rules.is_none() && mode.is_some() {
                doubts.push(format!(
                    "no rules are published, so only the nodes know whether there is a rule `{rule}`: `tidegate fleet` shows those that do not"
                ));
            }
            if let Some(rules) = &published.rules
                && mode.is_some()
                && let Ok(loaded) = RuleSet::parse(&rules.name, &rules.text)
                && loaded
                    .rules
                    .with_switches(published.modes.switches_at(published.now))
                    .unknown_switches()
                    .contains(&rule.as_str())
            {
                let (name, version) = (&rules.name, rules.version);
                doubts.push(format!(
                    "{name} of version {version} has no rule `{rule}`; the switch applies once there is one"
                ));
            }
        }
    }
    doubts
}

fn switched_one_by_one(count: usize) -> String {
    if count == 1 { "one rule is still".to_owned() } else { format!("{count} rules are still") }
}
