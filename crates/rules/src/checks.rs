//! Checks that need all files.

use std::collections::HashMap;

use super::fact_name::FactName;
use super::read::{Mention, RulesFile};
use super::regions::RegionChoice;
use super::rule::{Conditions, Mode, Rule};
use crate::yaml::{Diagnostic, MOST_FINDINGS, Severity};
use crate::yaml::{Position, Source};
use tidegate_core::notation::closest;
use tidegate_core::regions::Share;

pub(super) fn across(files: &[(Source, RulesFile)]) -> Vec<Diagnostic> {
    let mut findings = Vec::new();
    let known = ids(files, &mut findings);
    replaced(files, &known, &mut findings);
    tiers(files, &mut findings);
    regions(files, &mut findings);
    let mut warnings = Vec::new();
    closed_in_regions(files, &mut warnings);
    unreachable(files, &mut warnings);
    unlimited_tiers(files, &mut warnings);
    warnings.truncate(MOST_FINDINGS);
    findings.append(&mut warnings);
    findings
}

type Ids<'f> = HashMap<&'f str, (&'f Source, &'f Mention)>;

/// Finds every id, with the place where it is first used.
fn ids<'f>(files: &'f [(Source, RulesFile)], findings: &mut Vec<Diagnostic>) -> Ids<'f> {
    let mut known = Ids::new();
    for (source, file) in files {
        for mention in &file.ids {
            let (first_source, first) = *known.entry(&mention.id).or_insert((source, mention));
            if !std::ptr::eq(first, mention) && findings.len() < MOST_FINDINGS {
                let problem = format!("a second rule with the id `{}`", mention.id);
                let help = format!(
                    "the first is at {}; what was counted belongs to the id, so each rule needs its own",
                    first_source.place(first.at)
                );
                findings.push(source.finding(Severity::Error, mention.at, problem, Some(help)));
            }
        }
    }
    known
}

fn replaced(files: &[(Source, RulesFile)], known: &Ids<'_>, findings: &mut Vec<Diagnostic>) {
    for (source, file) in files {
        for Mention { id, at, by } in &file.replaced {
            if findings.len() >= MOST_FINDINGS {
                return;
            }
            let (problem, help) = if id == by {
                (format!("the rule `{id}` replaces itself"), "remove it from `replaces`".to_owned())
            } else if !known.contains_key(&**id) {
                let help = match closest(id, known.keys().copied().filter(|known| **known != **by)) {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None => "name the id of a rule".to_owned(),
                };
                (format!("there is no rule `{id}` to replace"), help)
            } else {
                continue;
            };
            findings.push(source.finding(Severity::Error, *at, problem, Some(help)));
        }
    }
}

/// Maximum number of stopping rules examined; bounds the time for generated files.
const MOST_STOPPING: usize = 1_000;

fn unreachable(files: &[(Source, RulesFile)], findings: &mut Vec<Diagnostic>) {
    let mut stopping: Vec<&Rule> = Vec::new();
    for (source, rule) in rules(files).filter(|(_, rule)| rule.mode != Mode::Off) {
        let before = stopping.iter().find(|before| is_wider(&before.conditions, &rule.conditions));
        if let Some(before) = before {
            let problem = format!("the rule `{}` is never reached", rule.id());
            let help =
                format!("`{}` at {} matches all that it matches, and stops the search", before.id(), before.place);
            findings.push(at(source, rule, problem, help));
        }
        if findings.len() >= MOST_FINDINGS {
            return;
        }
        // Rules that are limited to certain tiers or keys, or let some requests pass, do not hide the rules after them.
        let stops = rule.stops
            && rule.mode == Mode::Enforce
            && rule.limits.default.is_some()
            && (rule.key.is_empty() || rule.on_missing_key != super::OnMissingKey::Skip);
        if stops && stopping.len() < MOST_STOPPING {
            stopping.push(rule);
        }
    }
}

/// If a rule limits certain tiers and has no default limit, requests of other tiers are not limited.
fn unlimited_tiers(files: &[(Source, RulesFile)], findings: &mut Vec<Diagnostic>) {
    let default = files.iter().find_map(|(_, file)| file.tiers.as_ref()?.default.as_deref());
    for (source, rule) in rules(files).filter(|(_, rule)| rule.mode != Mode::Off) {
        let limited = |tier: &str| rule.limits.tiers.iter().any(|(known, _)| known == tier);
        let wanted = rule.conditions.values.iter().find(|(fact, _)| *fact == FactName::Tier);
        let wanted = wanted.and_then(|(_, pattern)| pattern.exact());
        let all = match wanted {
            Some(tiers) => tiers.iter().all(|tier| limited(tier)),
            None => default.is_some_and(limited),
        };
        if rule.limits.default.is_none() && !rule.limits.tiers.is_empty() && !all {
            let problem = format!("the rule `{}` does not limit requests whose tier it does not list", rule.id());
            let help = "add `limit`, or name one of its tiers as the `default` of the file's `tiers`";
            findings.push(at(source, rule, problem, help.to_owned()));
        }
    }
}

fn tiers(files: &[(Source, RulesFile)], findings: &mut Vec<Diagnostic>) {
    let with_tiers: Vec<(&Source, Position)> =
        files.iter().filter_map(|(source, file)| file.tiers_at.map(|at| (source, at))).collect();
    if let [(first, first_at), rest @ ..] = &with_tiers[..] {
        for (source, at) in rest.iter().take(MOST_FINDINGS) {
            let help = Some(format!("the first is at {}; keep one", first.place(*first_at)));
            findings.push(source.finding(Severity::Error, *at, "`tiers` is set a second time", help));
        }
    }
}

/// Only one file may define regions, and rules may only name regions defined there.
fn regions(files: &[(Source, RulesFile)], findings: &mut Vec<Diagnostic>) {
    let stated = files.iter().filter_map(|(source, file)| Some((source, file.regions_at?)));
    let stated: Vec<(&Source, Position)> = stated.collect();
    if let [(first, first_at), rest @ ..] = &stated[..] {
        for (source, at) in rest.iter().take(MOST_FINDINGS) {
            let help = Some(format!("the first is at {}; keep one", first.place(*first_at)));
            findings.push(source.finding(Severity::Error, *at, "`regions` is set a second time", help));
        }
    }
    let Some(known) = files.iter().find_map(|(_, file)| file.regions.as_ref()) else { return };
    for (source, file) in files {
        for (at, named) in &file.rule_regions {
            let unknown = named.iter().find(|region| !known.shares.contains_key(*region));
            let Some(region) = unknown.filter(|_| findings.len() < MOST_FINDINGS) else { continue };
            let help = match closest(region, known.shares.keys().map(String::as_str)) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => "name it in the `regions` of the file too".to_owned(),
            };
            let problem = format!("there is no region `{region}`");
            findings.push(source.finding(Severity::Error, *at, problem, Some(help)));
        }
    }
}

/// If a region's share of a limit is too small, every request in that region is denied.
fn closed_in_regions(files: &[(Source, RulesFile)], findings: &mut Vec<Diagnostic>) {
    let Some(regions) = files.iter().find_map(|(_, file)| file.regions.as_ref()) else { return };
    for (source, rule) in rules(files).filter(|(_, rule)| rule.regions == RegionChoice::OfFile) {
        let closed = rule.limits.all().filter(|limit| limit.limit.capacity() > 0).find_map(|limit| {
            let closed = |share: &&Share| !share.is_none() && limit.limit.regional_part(**share).capacity() == 0;
            let (region, share) = regions.shares.iter().find(|(_, share)| closed(share))?;
            Some(format!("{share} of `{}` admits nothing in `{region}`", limit.limit))
        });
        if let Some(problem) = closed {
            let help = "raise the limit or the share, or write `regions: off` for a limit in each region";
            findings.push(at(source, rule, problem, help.to_owned()));
        }
    }
}

fn rules(files: &[(Source, RulesFile)]) -> impl Iterator<Item = (&Source, &Rule)> {
    files.iter().flat_map(|(source, file)| file.rules.iter().map(move |rule| (source, rule)))
}

/// A warning about a rule.
fn at(source: &Source, rule: &Rule, problem: String, help: String) -> Diagnostic {
    let at = Position { line: rule.place.line, column: rule.place.column, width: 1 };
    source.finding(Severity::Warning, at, problem, Some(help))
}

/// Whether every request that meets `narrow` certainly meets `wide`. Detects only simple cases.
fn is_wider(wide: &Conditions, narrow: &Conditions) -> bool {
    let path = match (&wide.path, &narrow.path) {
        (None, _) => true,
        (Some(wide), _) if wide.negated => false,
        (Some(wide), Some(narrow)) if !narrow.negated => {
            narrow.any.iter().all(|narrow| wide.any.iter().any(|wide| wide.covers(narrow)))
        }
        (Some(wide), _) => wide.any.iter().any(super::route::PathPattern::is_everything),
    };
    let address = match (&wide.address, &narrow.address) {
        (None, _) => true,
        (Some(wide), Some(narrow)) => {
            !wide.negated
                && !narrow.negated
                && narrow.any.iter().all(|inner| wide.any.iter().any(|outer| outer.contains(inner)))
        }
        (Some(_), None) => false,
    };
    let values = wide.values.iter().all(|(fact, pattern)| {
        let mut same_fact = narrow.values.iter().filter(|(other, _)| fact == other);
        same_fact.any(|(_, narrow)| match (pattern.exact(), narrow.exact()) {
            (Some(wide), Some(narrow)) => narrow.is_subset(wide),
            _ => false,
        })
    });
    path && address && values
}
