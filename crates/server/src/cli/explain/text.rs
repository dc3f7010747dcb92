//! An explanation as text.

use std::io::{self, Write};

use anstyle::Style;
use tidegate_core::disclosure::DenialKind;
use tidegate_rules::{
    Charged, ExplainedRule, Explanation, Granted, Mode, RuleOutcome, ShownLimit, ShownWriteBehind, counted,
};

use crate::cli::{ERROR, FAINT, GOOD, STRONG, WARNING, plain};

pub(super) fn print(out: &mut impl Write, explanation: &Explanation) -> io::Result<()> {
    let address = explanation.address.map(|address| address.to_string());
    for (name, value) in [
        ("method", explanation.method.as_deref()),
        ("host", explanation.host.as_deref()),
        ("path", Some(explanation.path.as_str())),
        ("address", address.as_deref()),
        ("tier", explanation.tier.as_deref()),
    ] {
        match value {
            Some(value) => writeln!(out, "{FAINT}{name:<9}{FAINT:#}{}", plain(value))?,
            None => writeln!(out, "{FAINT}{name:<9}none{FAINT:#}")?,
        }
    }
    writeln!(out)?;
    let widest = explanation.rules.iter().map(|rule| rule.id.chars().count()).max().unwrap_or(0);
    for rule in &explanation.rules {
        print_rule(out, rule, widest)?;
    }
    summarise(out, explanation)
}

/// Prints the id of the rule, its result as one word, and further lines below.
fn print_rule(out: &mut impl Write, rule: &ExplainedRule, widest: usize) -> io::Result<()> {
    const WIDEST_WORD: usize = "not reached".len();
    let (style, word, lines) = outcome_lines(rule);
    let lines: Vec<String> = lines.iter().map(|line| plain(line)).collect();
    let (first, rest) = lines.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    let gap = if first.is_empty() { 0 } else { WIDEST_WORD + 2 - word.len() };
    writeln!(out, "{STRONG}{:<widest$}{STRONG:#}  {style}{word}{style:#}{:gap$}{first}", rule.id, "")?;
    let indent = widest + 2 + WIDEST_WORD + 2;
    rest.iter().try_for_each(|line| writeln!(out, "{:indent$}{line}", ""))
}

fn outcome_lines(rule: &ExplainedRule) -> (Style, &'static str, Vec<String>) {
    match &rule.outcome {
        RuleOutcome::Matched(charged) => (GOOD, "match", charged_lines(rule, charged)),
        RuleOutcome::Mismatch { condition, wanted, actual } => {
            let is = actual.as_ref().map_or_else(|| "is missing".to_owned(), |actual| format!("is `{actual}`"));
            (FAINT, "no match", vec![format!("{condition} {is}, wanted {wanted}")])
        }
        RuleOutcome::Replaced { by } => (WARNING, "replaced", vec![format!("by `{by}`")]),
        RuleOutcome::NotReached { stopped_by } => {
            (WARNING, "not reached", vec![format!("`{stopped_by}` stops the search")])
        }
        RuleOutcome::Off => (FAINT, "off", Vec::new()),
        RuleOutcome::NoLimit => (FAINT, "no limit", vec!["it limits other tiers or keys".to_owned()]),
        RuleOutcome::Skipped { missing } => {
            (WARNING, "skipped", vec![format!("the request has no {missing}, and the rule lets such requests pass")])
        }
        RuleOutcome::Refused { missing } if rule.mode == Mode::Shadow => {
            (WARNING, "refused", vec![format!("the request has no {missing}; in shadow mode, this is only reported")])
        }
        RuleOutcome::Refused { missing } => {
            (ERROR, "refused", vec![format!("the request has no {missing}, and the rule refuses such requests")])
        }
        RuleOutcome::Repeated { repeated } if rule.mode == Mode::Shadow => {
            let line = format!("the request has {repeated} more than once; in shadow mode, this is only reported");
            (WARNING, "refused", vec![line])
        }
        RuleOutcome::Repeated { repeated } => {
            let line = format!("the request has {repeated} more than once, and the rule refuses such requests");
            (ERROR, "refused", vec![line])
        }
        RuleOutcome::Unmeasured => {
            let style = if rule.mode == Mode::Shadow { WARNING } else { ERROR };
            (style, "refused", vec!["the cost is the length of the body, which the request does not state".to_owned()])
        }
    }
}

fn charged_lines(rule: &ExplainedRule, charged: &Charged) -> Vec<String> {
    let key = match &charged.missing {
        Some(missing) => format!("shared by all requests that have no {missing}"),
        None if charged.key.is_empty() => "shared by all requests".to_owned(),
        None => {
            let parts: Vec<String> = charged.key.iter().map(|part| format!("{} {}", part.part, part.value)).collect();
            parts.join(", ")
        }
    };
    let whose = match charged.granted {
        Granted::Everyone => "",
        Granted::Tier => " (for this tier)",
        Granted::Override => " (for this key)",
        Granted::Priority => " (for this priority)",
    };
    let mut lines = vec![labelled("key", &key)];
    lines.extend(charged.limits.iter().map(|limit| labelled("limit", &format!("{}{whose}", limit_line(limit)))));
    lines.extend(charged.limits.iter().filter_map(|limit| Some(labelled("adapts", &adapt_line(limit)?))));
    if charged.limits.is_empty() {
        lines.push(labelled("limit", &format!("unlimited{whose}")));
    }
    lines.push(labelled("mode", &rule.mode.to_string()));
    lines.push(labelled("store failure", &charged.on_store_failure));
    lines.extend(charged.store_deadline.as_ref().map(|deadline| labelled("store deadline", deadline)));
    if charged.problem != DenialKind::default().as_str() {
        lines.push(labelled("problem", charged.problem));
    }
    lines.extend(charged.status.map(|status| labelled("status", &status.to_string())));
    lines.push(labelled("written in", &rule.place.to_string()));
    lines
}

fn labelled(label: &str, value: &str) -> String {
    format!("{label:<16}{value}")
}

/// The bounds and the policy of a rate that adapts, after its present value if that is known.
fn adapt_line(limit: &ShownLimit) -> Option<String> {
    let terms = limit.adapt.as_ref()?;
    Some(match &limit.present_rate {
        Some(rate) => format!("{rate} at present, {terms}"),
        None => terms.clone(),
    })
}

fn limit_line(limit: &ShownLimit) -> String {
    let mut line = format!("{}, cost {}", limit.limit, limit.cost);
    match &limit.cost_from {
        Some(from) if limit.cost_is_fallback => {
            line.push_str(&format!(" by default, since the request has no number at {from}"));
        }
        Some(from) => line.push_str(&format!(" by {from}")),
        None => {}
    }
    if let Some(reserve) = &limit.reserve {
        line.push_str(&format!(", to be settled within {reserve}"));
    }
    if let Some(settle) = &limit.settle {
        line.push_str(&format!(" at the response's {settle}"));
    }
    if limit.cost > limit.capacity {
        line.push_str(&format!(": always denied, since it holds {} at most", limit.capacity));
    }
    match limit.lease.as_deref() {
        // Limits of this kind are never leased.
        None => {}
        Some("off") => line.push_str(", never leased"),
        // The default.
        Some("auto") => line.push_str(", leased"),
        Some(terms) => line.push_str(&format!(", leased {terms}")),
    }
    if let Some(rate) = limit.leased_from {
        line.push_str(&format!(", at nodes with {rate}/s of a key or more"));
    }
    if let Some(behind) = &limit.write_behind {
        let ShownWriteBehind { at_most_percent, at_most, every, .. } = behind;
        line.push_str(&format!(
            ", write-behind every {every}: the fleet admits at most {at_most} more ({at_most_percent}%)"
        ));
        if let (Some(nodes), Some(each)) = (behind.nodes, behind.each_node) {
            match each {
                0 => line.push_str(&format!("; with {nodes} nodes that is less than one each, so Redis decides")),
                _ => line.push_str(&format!("; {each} unreported at each of {}", counted(nodes as usize, "node"))),
            }
        }
    }
    if let Some(region) = &limit.region {
        line.push_str(&format!(", {region}"));
    }
    if let Some(split) = &limit.split {
        line.push_str(&format!(", with Redis split into {split}"));
    }
    if !limit.show {
        line.push_str(", not shown to clients");
    }
    line
}

fn summarise(out: &mut impl Write, explanation: &Explanation) -> io::Result<()> {
    let (matched, all) = (explanation.matched().count(), explanation.rules.len());
    writeln!(out, "\nrules that match: {STRONG}{matched}{STRONG:#} of {all}")?;
    if let Some(rule) = explanation.refused_by() {
        writeln!(out, "{ERROR}refused{ERROR:#} by `{}`, regardless of the other rules", rule.id)?;
    }
    Ok(())
}
