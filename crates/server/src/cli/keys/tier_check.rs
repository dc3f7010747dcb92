//! Check that rules know a tier, before API keys get it.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use tidegate_redis::fleet::{FleetControl, FleetError, Published};
use tidegate_rules::RuleSet;
use tidegate_rules::yaml::closest;

use crate::cli::meant;
use crate::cli::secret::SecretArgs;
use crate::cli::serve::refuse;

/// The rules that tiers are checked against.
#[derive(clap::Args)]
pub(super) struct TierCheckArgs {
    /// Rules files, or folders of them, to check tiers against. Default: the rules published for the fleet, or those of the
    /// configuration file.
    #[arg(long = "rules", value_name = "FILE")]
    rules: Vec<PathBuf>,

    /// Set the tier even if no rule knows it yet.
    #[arg(long)]
    force: bool,
}

/// Tiers that are not set.
#[derive(Debug, thiserror::Error)]
pub(super) enum TierError {
    #[error("{rules} no tier `{tier}`{}{} To set it in advance, add --force", meant(.closest), listed(.known))]
    Unknown { rules: String, tier: String, closest: Option<String>, known: Vec<String> },
    #[error(transparent)]
    Fleet(#[from] FleetError),
}

fn listed(tiers: &[String]) -> String {
    if tiers.is_empty() { String::new() } else { format!(" Known are {}.", tiers.join(", ")) }
}

/// Rules, and how a message about them begins.
struct TierRules {
    rules: RuleSet,
    subject: String,
}

/// A check of tiers before they are set.
pub(super) struct TierCheck {
    /// Rules that are named with `--rules`: they take precedence over published ones.
    named: Option<TierRules>,
    /// Rules of the configuration file, which published ones take precedence over.
    configured: Option<TierRules>,
    is_forced: bool,
}

impl TierCheckArgs {
    /// Reads the rules that are named, or the exit code if they cannot be used.
    pub(super) fn open(&self, server: &SecretArgs) -> io::Result<Result<TierCheck, ExitCode>> {
        let mut check = TierCheck { named: None, configured: None, is_forced: self.force };
        if self.force {
            return Ok(Ok(check));
        }
        if !self.rules.is_empty() {
            match tidegate_rules::load(&self.rules) {
                Ok(loaded) => check.named = Some(TierRules::local(loaded.rules)),
                Err(findings) => return refuse(&findings).map(Err),
            }
        } else if server.names_file() {
            // The file may name rules that are only on the servers. It is there for its key.
            let paths = server.configuration().map(|configuration| configuration.rules).unwrap_or_default();
            let loaded = (!paths.is_empty()).then(|| tidegate_rules::load(&paths).ok()).flatten();
            check.configured = loaded.map(|loaded| TierRules::local(loaded.rules));
        }
        Ok(Ok(check))
    }
}

impl TierRules {
    fn local(rules: RuleSet) -> TierRules {
        TierRules { rules, subject: "the rules know".to_owned() }
    }

    /// The published rules. Those of another version of Tidegate may not be readable here.
    fn published(published: Option<Published>) -> Option<TierRules> {
        let text = published?.rules?;
        let rules = RuleSet::parse(&text.name, &text.text).ok()?.rules;
        Some(TierRules { rules, subject: format!("{} of version {} knows", text.name, text.version) })
    }

    fn check(&self, tier: &str) -> Result<(), TierError> {
        if self.rules.knows_tier(tier) {
            return Ok(());
        }
        let known = self.rules.tier_names();
        let closest = closest(tier, known.iter().copied()).map(str::to_owned);
        let known = known.into_iter().map(str::to_owned).collect();
        Err(TierError::Unknown { rules: self.subject.clone(), tier: tier.to_owned(), closest, known })
    }
}

impl TierCheck {
    /// Checks all tiers. `Ok(false)` if there are no rules to check them against.
    pub(super) async fn check<'t>(
        &self,
        control: &FleetControl,
        tiers: impl Iterator<Item = &'t str>,
    ) -> Result<bool, TierError> {
        if self.is_forced {
            return Ok(true);
        }
        let published = match self.named {
            Some(_) => None,
            None => TierRules::published(control.published().await?),
        };
        let rules = self.named.as_ref().or(published.as_ref()).or(self.configured.as_ref());
        let Some(rules) = rules else { return Ok(false) };
        for tier in tiers {
            rules.check(tier)?;
        }
        Ok(true)
    }
}
