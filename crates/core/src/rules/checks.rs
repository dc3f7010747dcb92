//! What can only be seen with all files side by side.

use std::collections::BTreeMap;

use super::diagnostic::{Diagnostic, Severity};
use super::read::File;
use super::rule::{Conditions, Mode, Rule};
use super::yaml::Source;
use crate::notation::closest;

pub(super) fn across(files: &[(Source, File)]) -> Vec<Diagnostic> {
    let mut findings = Vec::new();
    let rules: Vec<(&Source, &Rule)> =
        files.iter().flat_map(|(source, file)| file.rules.iter().map(move |rule| (source, rule))).collect();
    let mut known: BTreeMap<&str, &Rule> = BTreeMap::new();
    for (source, rule) in &rules {
        match known.get(rule.id()) {
            Some(first) => {
                let problem = format!("a second rule with the id `{}`", rule.id());
                let help = format!(
                    "the first is at {}; what was counted belongs to the id, so each rule needs its own",
                    first.place
                );
                findings.push(at(source, rule, Severity::Error, problem, help));
            }
            None => {
                known.insert(rule.id(), rule);
            }
        }
    }
    for (source, rule) in &rules {
        for id in &rule.replaces {
            if &**id == rule.id() {
                let help = "remove it from `replaces`".to_owned();
                findings.push(at(source, rule, Severity::Error, format!("the rule `{id}` replaces itself"), help));
            } else if !known.contains_key(&**id) {
                let help = match closest(id, known.keys().copied()) {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None => "name the id of a rule".to_owned(),
                };
                findings.push(at(source, rule, Severity::Error, format!("there is no rule `{id}` to replace"), help));
            }
        }
    }
    for (number, (source, rule)) in rules.iter().enumerate() {
        let before = rules[..number].iter().find(|(_, before)| {
            before.stops && before.mode != Mode::Off && is_wider(&before.conditions, &rule.conditions)
        });
        if let Some((_, before)) = before {
            let problem = format!("the rule `{}` is never reached", rule.id());
            let help =
                format!("`{}` at {} matches all that it matches, and stops the search", before.id(), before.place);
            findings.push(at(source, rule, Severity::Warning, problem, help));
        }
    }
    let with_tiers: Vec<&Source> =
        files.iter().filter(|(_, file)| file.tiers.is_some()).map(|(source, _)| source).collect();
    if let [first, second, ..] = with_tiers[..] {
        let problem = "`tiers` is said a second time";
        let help = Some(format!("the first is in {}; keep one", first.name));
        findings.push(second.finding(Severity::Error, Default::default(), problem, help));
    }
    findings
}

fn at(source: &Source, rule: &Rule, severity: Severity, problem: String, help: String) -> Diagnostic {
    let at = super::yaml::Position { line: rule.place.line, column: rule.place.column, width: 1 };
    source.finding(severity, at, problem, Some(help))
}

/// Whether every request that meets `narrow` surely meets `wide`. Only what is plain to see counts.
fn is_wider(wide: &Conditions, narrow: &Conditions) -> bool {
    let path = match (&wide.path, &narrow.path) {
        (None, _) => true,
        (Some(wide), narrow) => {
            !wide.negated
                && (wide.any.iter().any(super::route::PathPattern::is_everything)
                    || narrow
                        .as_ref()
                        .is_some_and(|narrow| !narrow.negated && narrow.any.iter().all(|path| wide.any.contains(path))))
        }
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
        let wanted = pattern.exact();
        narrow.values.iter().any(|(other, narrow)| {
            fact == other
                && match (wanted, narrow.exact()) {
                    (Some(wide), Some(narrow)) => narrow.is_subset(wide),
                    _ => false,
                }
        })
    });
    path && address && values
}
