//! Envoy's rate-limit files load unchanged and have the same meaning.

mod descriptor_decisions;
mod descriptor_matches;
mod errors;
mod files;
mod naive;
mod requests;

use tidegate_rules::envoy::{DescriptorMatch, Domain};
use tidegate_rules::{Diagnostics, RuleSet};

/// The rules in `text`, which must be valid.
fn rules(text: &str) -> RuleSet {
    let loaded = RuleSet::parse("limits.yaml", text).unwrap_or_else(|findings| panic!("{findings}"));
    assert_eq!(loaded.warnings.0, [], "{}", loaded.warnings);
    loaded.rules
}

/// The findings about `text`, which may be errors or warnings.
fn findings(text: &str) -> Diagnostics {
    match RuleSet::parse("limits.yaml", text) {
        Ok(loaded) => loaded.warnings,
        Err(findings) => findings,
    }
}

/// The limits of `asked`. Entries are written `key=value`, with a space between them.
fn found<T>(domain: &Domain, asked: &str, then: impl FnOnce(Option<DescriptorMatch<'_, '_>>) -> T) -> T {
    then(domain.find(&entries(asked)))
}

fn entries(asked: &str) -> Vec<(&str, &str)> {
    asked.split_whitespace().map(|entry| entry.split_once('=').expect("an entry is key=value")).collect()
}

/// The limit of `asked`, as in the file: `5/minute`, `unlimited`, `whitelisted`, or `-` for none.
fn ruling(domain: &Domain, asked: &str) -> String {
    use tidegate_rules::envoy::Allowance;
    found(domain, asked, |found| match found {
        None => "-".to_owned(),
        Some(found) => match (found.allowance, found.per_unit) {
            (Allowance::Whitelisted, None) => "whitelisted".to_owned(),
            (Allowance::Unlimited, None) => "unlimited".to_owned(),
            (Allowance::Limited(_), Some(written)) => format!("{}/{}", written.requests, written.unit.name()),
            mixed => panic!("{mixed:?}"),
        },
    })
}
