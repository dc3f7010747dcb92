//! Rules from text, and their effects on a request.

use tidegate_rules::{Diagnostic, Diagnostics, Matched, Request, RuleSet, Severity};

/// Rules that must load. Warnings are allowed.
#[track_caller]
pub(crate) fn rules(text: &str) -> RuleSet {
    match RuleSet::parse("rules.yaml", text) {
        Ok(loaded) => loaded.rules,
        Err(findings) => panic!("{findings}"),
    }
}

/// A rule named `r`, from the text after its id.
#[track_caller]
pub(crate) fn rule(rest: &str) -> RuleSet {
    rules(&format!("rules: [{{ id: r, {rest} }}]"))
}

/// A rule with this condition.
#[track_caller]
pub(crate) fn when(condition: &str) -> RuleSet {
    rule(&format!("limit: 1/s, match: {{ {condition} }}"))
}

pub(crate) fn get(target: &str) -> Request {
    Request::new("GET", target)
}

pub(crate) fn ids<'r>(matched: &Matched<'r, '_>) -> Vec<&'r str> {
    matched.rules.iter().map(|matched| matched.rule.id()).collect()
}

pub(crate) fn governs(rules: &RuleSet, request: &Request) -> bool {
    !rules.matching(request).rules.is_empty()
}

/// The parts of the key that the only rule charges.
pub(crate) fn key(rules: &RuleSet, request: &Request) -> Option<Vec<String>> {
    let matched = rules.matching(request);
    let text = |part: &[u8]| String::from_utf8_lossy(part).into_owned();
    matched.rules.first().map(|matched| matched.key.parts().map(text).collect())
}

/// The charges, each as `rule: cost of limit`.
pub(crate) fn charges(rules: &RuleSet, request: &Request) -> Vec<String> {
    let matched = rules.matching(request);
    matched.charges().map(|charge| format!("{}: {} of {}", charge.rule, charge.cost, charge.limit)).collect()
}

/// The errors in text that must not load.
#[track_caller]
pub(crate) fn findings(text: &str) -> Diagnostics {
    match RuleSet::parse("rules.yaml", text) {
        Ok(_) => panic!("this loads:\n{text}"),
        Err(findings) => findings,
    }
}

/// The warnings about text that must load.
#[track_caller]
pub(crate) fn doubts(text: &str) -> Vec<String> {
    let loaded = RuleSet::parse("rules.yaml", text).unwrap_or_else(|findings| panic!("{findings}"));
    loaded.warnings.0.iter().map(line).collect()
}

/// A finding as `line:column marked text: problem; help`.
pub(crate) fn line(finding: &Diagnostic) -> String {
    let (from, width) = finding.mark;
    let marked: String = finding.excerpt.chars().skip(from).take(width).collect();
    let help = finding.help.as_deref().map_or(String::new(), |help| format!("; {help}"));
    let warning = if finding.severity == Severity::Warning { "warning: " } else { "" };
    format!("{warning}{}:{} [{marked}] {}{help}", finding.place.line, finding.place.column, finding.problem)
}

/// All findings about a text, one per line.
#[track_caller]
pub(crate) fn mistakes(text: &str) -> Vec<String> {
    findings(text).0.iter().map(line).collect()
}

/// Compares the findings about each text with the expected ones, and reports all differences.
#[track_caller]
pub(crate) fn compare(cases: impl IntoIterator<Item = (String, Vec<String>, Vec<String>)>) {
    let differing: Vec<String> = cases
        .into_iter()
        .filter(|(_, said, expected)| said != expected)
        .map(|(text, said, expected)| format!("{text}\n   said: {said:#?}\n   expected: {expected:#?}"))
        .collect();
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}
