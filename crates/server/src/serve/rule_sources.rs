//! Sources of rules in a running server: files, and rules published for a fleet.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_redis::fleet::{Event, FleetControl, Following, ModeChange, NoRuntime, NodeIdentity};
use tidegate_rules::{Diagnostics, FilesHash, Loaded, RuleCounts, RuleSet, load, rules_files};

use super::EXAMPLE_RULES;
use super::regions::warn_of_missing_share;
use crate::config::KnownFacts;
use crate::config::built_in_key_warning;
use crate::engine::Engine;
use crate::watch::{Watch, WatchError};

/// Loads the rules in these files. Without files, uses the example, or no rules if there is a gateway, whose traffic is
/// real. Empty folders yield no rules, unless a file is required.
pub(crate) fn load_rules(paths: &[PathBuf], has_gateway: bool, is_required: bool) -> Result<Loaded, Diagnostics> {
    let loaded = match paths {
        [] if has_gateway => RuleSet::parse("no rules", "rules: []")?,
        [_, ..] if !is_required && rules_files(paths).is_empty() => {
            tracing::warn!("there are no rules yet: nothing is limited until there is a rules file");
            RuleSet::parse("no rules", "rules: []")?
        }
        [] => RuleSet::parse("the example", EXAMPLE_RULES)?,
        paths => load(paths)?,
    };
    for warning in &loaded.warnings.0 {
        tracing::warn!(place = %warning.place, "{}", warning.problem);
    }
    Ok(loaded)
}

/// Follows rules and modes published for the fleet, and records whether published rules are in force.
pub(super) fn follow_fleet(
    control: &FleetControl,
    node: NodeIdentity,
    engine: &Engine,
    are_published: &Arc<AtomicBool>,
    known: Option<KnownFacts>,
) -> Result<Following, NoRuntime> {
    let are_published = Arc::clone(are_published);
    let limiter = engine.shared_limiter();
    control.follow(engine.shared_limiter(), node, move |event| match event {
        Event::Applied { version, rules, generation, unknown } => {
            let were_published = are_published.swap(rules > 0, Ordering::Relaxed);
            if rules > 0 && !were_published {
                limiter.with_rules(|present| warn_of_built_in_key(&present.rules));
            }
            if rules > 0 {
                warn_of_missing_share(&limiter);
            }
            tracing::info!(version, generation, "published rules and modes are in force");
            if let Some(known) = known.filter(|_| rules > 0) {
                limiter.with_rules(|present| known.warn(&present.rules));
            }
            if !unknown.is_empty() {
                tracing::warn!(rules = unknown.join(", "), "there are switches for unknown rules");
            }
        }
        Event::Switched(ModeChange { rule, mode, until, who }) => {
            let rule = rule.as_deref().unwrap_or("(all)");
            match mode {
                Some(mode) => {
                    let until_unix = until.map(|until| until.as_micros().div_ceil(1_000_000));
                    let ends = if until.is_some() { "by itself" } else { "when it is removed" };
                    tracing::info!(rule, %mode, until_unix, ends, by = who, "a published mode switch is in force");
                }
                None => tracing::info!(rule, by = who, "a published mode switch was removed"),
            }
        }
        Event::Ended { rule, mode } => {
            let rule = rule.as_deref().unwrap_or("(all)");
            tracing::info!(rule, %mode, "a published mode switch has expired");
        }
        Event::Refused { version, reason } => {
            tracing::error!(version, "published rules and modes cannot be used: {reason}");
        }
        Event::Forgotten { version } => {
            tracing::warn!(
                version,
                "Redis has lost the published rules and modes, perhaps by FLUSHALL or a restart without persistence: they stay in \
                 force here; publish them again, since new nodes do not get them"
            );
        }
        Event::Lost { reason } => tracing::warn!(reason, "published rules and modes cannot be read"),
        Event::Counted { nodes } => {
            limiter.store().set_nodes(nodes);
            tracing::debug!(nodes, "the fleet was counted");
        }
        Event::Uncounted { reason } => {
            tracing::warn!(reason, "this node cannot count the fleet: Redis decides limits with write_behind");
        }
        Event::Unreported { reason } => tracing::warn!(reason, "this node cannot report to the fleet"),
        event => tracing::debug!(?event, "the fleet"),
    })
}

/// Follows the rules files, of which `files` with these `contents` were read; `None` without files. A broken file
/// changes nothing, and neither does any file while published rules are in force.
pub(super) fn follow_files(
    paths: &[PathBuf],
    files: Vec<PathBuf>,
    contents: FilesHash,
    engine: &Arc<Engine>,
    are_published: &Arc<AtomicBool>,
    known: Option<KnownFacts>,
) -> Result<Option<Watch>, WatchError> {
    if paths.is_empty() {
        return Ok(None);
    }
    let (engine, are_published) = (Arc::clone(engine), Arc::clone(are_published));
    let watch = Watch::start(paths.to_vec(), files, contents, move |result| {
        engine.metrics().reloaded(result.as_ref().err().map(Diagnostics::to_string));
        match result {
            Ok(loaded) => {
                put_in_force(&engine, loaded.rules, &are_published, known);
            }
            Err(findings) => log_refused(&findings),
        }
    })?;
    Ok(Some(watch))
}

/// Logs why rules from files are not put in force.
pub(crate) fn log_refused(findings: &Diagnostics) {
    let errors = findings.errors();
    // Part of the message, because fields would follow its last line.
    tracing::error!("the rules cannot be used: the current rules stay in force; errors={errors}\n{findings}");
}

/// Puts rules from files in force, and logs warnings about them. Returns their generation; `None` if published rules
/// are in force, and stay so.
pub(crate) fn put_in_force(
    engine: &Engine,
    rules: RuleSet,
    are_published: &AtomicBool,
    known: Option<KnownFacts>,
) -> Option<u64> {
    if are_published.load(Ordering::Relaxed) {
        tracing::warn!("the rules files are not used: rules published for the fleet are in force");
        return None;
    }
    if let Some(known) = known {
        known.warn(&rules);
    }
    let RuleCounts { rules: number, descriptors, .. } = rules.counts();
    let generation = engine.limiter().replace(rules);
    tracing::info!(generation, rules = number, descriptors, "new rules are in force");
    engine.limiter().with_rules(|present| warn_of_built_in_key(&present.rules));
    warn_of_missing_share(engine.limiter());
    Some(generation)
}

/// Warns about rules whose secrets are hashed with the built-in key in Redis.
pub(super) fn warn_of_built_in_key(rules: &RuleSet) {
    if let Some(warning) = built_in_key_warning(rules) {
        tracing::warn!("{warning}");
    }
}
