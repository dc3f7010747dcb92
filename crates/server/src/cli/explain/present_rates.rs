//! The present rates of rules that adapt, at a running server.

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Deserialize;
use tidegate_rules::{AdaptiveRate, Explanation, RateSummary, RuleSet};

use crate::cli::admin_server::{AdminArgs, AdminServer, TOKEN_HELP};
use crate::cli::{WARNING, failed, plain};
use crate::serve;

/// The rules in force at a server, as its admin listener shows them.
#[derive(Debug, Deserialize)]
struct RulesInForce {
    rules: Vec<RuleInForce>,
}

#[derive(Debug, Deserialize)]
struct RuleInForce {
    id: String,
    adaptive: Option<RateSummary>,
}

/// Rates reported by a server, by rule, and the reasons why others are unknown.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PresentRates {
    known: Vec<(String, String)>,
    unknown: Vec<String>,
}

/// Sets the rates of these rules to those of the server in the arguments. Prints why a rate is not known, or the error.
pub(super) fn of_server(args: &AdminArgs, rules: &RuleSet) -> io::Result<Result<PresentRates, ExitCode>> {
    let Some(url) = &args.admin else { return Ok(Ok(PresentRates::default())) };
    if rules.adaptive_rates().next().is_none() {
        note("no rule has `adapt`, so --admin changes nothing")?;
        return Ok(Ok(PresentRates::default()));
    }
    let Some(token) = args.token.as_deref().filter(|token| !token.is_empty()) else {
        failed(&format_args!("the admin listener requires its token: {TOKEN_HELP}"))?;
        return Ok(Err(ExitCode::from(2)));
    };
    let server = match AdminServer::new(url, token, args.ca.as_deref()) {
        Ok(server) => server,
        Err(error) => return failed(&error).map(Err),
    };
    let in_force: RulesInForce = match serve::runtime()?.block_on(server.get_json("/v1/rules")) {
        Ok(in_force) => in_force,
        Err(error) => return failed(&format_args!("{server}: {error}")).map(Err),
    };
    let rates = PresentRates::set(rules, &in_force);
    for reason in &rates.unknown {
        note(reason)?;
    }
    Ok(Ok(rates))
}

fn note(text: &str) -> io::Result<()> {
    writeln!(anstream::stderr(), "{WARNING}note{WARNING:#}: {}\n", plain(text))
}

impl PresentRates {
    /// Sets the rates of rules that adapt at a server on the same terms.
    fn set(rules: &RuleSet, in_force: &RulesInForce) -> PresentRates {
        let mut rates = PresentRates::default();
        for rate in rules.adaptive_rates() {
            match at_server(rate, in_force) {
                Ok(present) => rates.known.push((rate.rule().to_owned(), present)),
                Err(reason) => rates.unknown.push(reason),
            }
        }
        rates
    }

    /// Adds the known rates to an explanation.
    pub(super) fn show_in(&self, explanation: &mut Explanation) {
        for (rule, rate) in &self.known {
            explanation.set_present_rate(rule, rate);
        }
    }
}

/// Sets a rate to that of a server. Returns it as text, or the reason why it is not known.
fn at_server(rate: &AdaptiveRate, in_force: &RulesInForce) -> Result<String, String> {
    let rule = rate.rule();
    let in_force = in_force.rules.iter().find(|in_force| in_force.id == rule);
    let Some(there) = in_force.and_then(|in_force| in_force.adaptive.as_ref()) else {
        return Err(format!("the server has no rule `{rule}` with `adapt`: its highest rate is shown"));
    };
    let tokens = there.present.split_once('/').and_then(|(tokens, _)| tokens.parse().ok());
    match tokens.filter(|_| there.terms == rate.to_string()) {
        Some(tokens) => {
            rate.set_tokens(tokens);
            Ok(there.present.clone())
        }
        None => {
            Err(format!("`{rule}` adapts on other terms at the server, {}: its highest rate is shown", there.terms))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "
rules:
  - { id: api, limit: 1000/s burst 200, adapt: { between: 100/s..1000/s, on: errors > 5% } }
  - { id: off, adapt: { between: 1/s..5/s, on: errors > 5% }, mode: off }
";
    const TERMS: &str = "100/s..1000/s by aimd, down 30% on errors > 5%, up 5% of the range every 1s";

    fn rates(rules: &RuleSet, in_force: &str) -> PresentRates {
        PresentRates::set(rules, &serde_json::from_str(in_force).unwrap())
    }

    fn rules() -> RuleSet {
        RuleSet::parse("rules.yaml", RULES).unwrap_or_else(|findings| panic!("{findings}")).rules
    }

    #[test]
    fn a_rate_on_the_same_terms_is_that_of_the_server() {
        let rules = rules();
        let there = format!(
            r#"{{"generation":7,"rules":[{{"id":"other"}},{{"id":"api","mode":"enforce","adaptive":
               {{"present":"550/s","lowest":"100/s","highest":"1000/s","terms":"{TERMS}"}}}}]}}"#
        );
        let rates = rates(&rules, &there);
        assert_eq!((&*rates.known, &*rates.unknown), (&[("api".to_owned(), "550/s".to_owned())][..], &[][..]));
        let mut explanation = rules.explain(&tidegate_rules::Request::new("GET", "/"));
        rates.show_in(&mut explanation);
        let shown = serde_json::to_value(&explanation).unwrap();
        let limit = &shown["rules"][0]["limits"][0];
        assert_eq!((&limit["limit"], &limit["capacity"]), (&"550/s burst 110".into(), &110.into()), "{shown}");
        assert_eq!((&limit["present_rate"], &limit["adapt"]), (&"550/s".into(), &TERMS.into()), "{shown}");
    }

    #[test]
    fn a_rate_that_the_server_does_not_have_is_told_and_stays() {
        let rules = rules();
        let no_rule = rates(&rules, r#"{"rules":[{"id":"other"}]}"#);
        assert_eq!(no_rule.unknown, ["the server has no rule `api` with `adapt`: its highest rate is shown"]);
        let fixed = rates(&rules, r#"{"rules":[{"id":"api","limits":[]}]}"#);
        assert_eq!(fixed, no_rule);
        let terms = TERMS.replace("1000", "500");
        let other = format!(
            r#"{{"rules":[{{"id":"api","adaptive":{{"present":"300/s","lowest":"100/s","highest":"500/s","terms":"{terms}"}}}}]}}"#
        );
        let other = rates(&rules, &other);
        assert!(
            other.known.is_empty() && other.unknown[0].contains("on other terms at the server, 100/s..500/s"),
            "{other:?}"
        );
        assert_eq!(rules.adaptive_rates().map(|rate| rate.tokens()).collect::<Vec<_>>(), [1_000]);
    }
}
