//! Facts that a gateway can determine, and warnings about rules that need others.

use tidegate_rules::{Diagnostic, Fact, Mode, OnMissingKey, Rule, RuleSet, Severity};

use super::Configuration;

/// Facts about clients that a gateway can determine. At other listeners, the caller sends the facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownFacts {
    user: bool,
    api_key: bool,
    claims: bool,
    tier: bool,
}

impl KnownFacts {
    /// Facts that the gateway of this configuration can determine; `None` if there is no gateway.
    pub(crate) fn of(configuration: &Configuration) -> Option<KnownFacts> {
        configuration.gateway.as_ref()?;
        let gateway = &configuration.forwarding;
        let has_jwt = configuration.jwt.is_some();
        // Only trusted proxies may send identity headers.
        let proxies = gateway.proxies.trusts_any();
        let is_sent = |header: &Option<http::HeaderName>| header.is_some() && proxies;
        Some(KnownFacts {
            user: has_jwt
                || gateway.basic
                || gateway.client_certificate.is_some()
                || is_sent(&gateway.auth_headers.user),
            api_key: gateway.api_key_header.is_some() || is_sent(&gateway.auth_headers.api_key),
            claims: has_jwt,
            tier: configuration.jwt.as_ref().is_some_and(|jwt| jwt.names.tier.is_some())
                || is_sent(&gateway.auth_headers.tier),
        })
    }

    /// Setting that would provide a missing fact; `None` if the fact is available, or does not depend on the gateway.
    fn lacks(self, rules: &RuleSet, fact: Fact<'_>) -> Option<(String, &'static str)> {
        match fact {
            // Rules may derive it from another fact.
            Fact::Tier if !self.tier => {
                let is_unknown = |source: &Fact<'_>| self.lacks(rules, *source).is_some();
                rules.tier_sources()?.iter().all(is_unknown).then(|| {
                    let help = "set `auth.jwt.tier_claim` (tiers come from tokens) or `auth.tier_header` (from a proxy), or \
                                name a default in `tiers`";
                    ("tier".to_owned(), help)
                })
            }
            Fact::User if !self.user => {
                let help = "set `auth.jwt.jwks_url` (users come from tokens), `auth.user_header` (from a proxy) or \
                            `auth.client_certificate`";
                Some(("user".to_owned(), help))
            }
            Fact::ApiKey if !self.api_key => Some(("api_key".to_owned(), "set `gateway.api_key_header`")),
            Fact::Claim(name) if !self.claims => {
                Some((format!("claim:{name}"), "set `auth.jwt.jwks_url`, or another source of keys for tokens"))
            }
            // All other facts are in the request, or sent by Envoy.
            _ => None,
        }
    }

    /// Warnings about rules with keys, conditions, tiers or costs that the gateway cannot determine.
    pub(crate) fn warnings(self, rules: &RuleSet) -> Vec<Diagnostic> {
        rules
            .rules()
            .iter()
            .filter(|rule| rule.mode() != Mode::Off)
            .flat_map(|rule| self.warnings_of(rules, rule))
            .collect()
    }

    fn warnings_of(self, rules: &RuleSet, rule: &Rule) -> Vec<Diagnostic> {
        let without_key = match rule.on_missing_key() {
            OnMissingKey::Share => "all its requests share one limit",
            OnMissingKey::Skip => "it never applies there",
            OnMissingKey::Refuse => "it refuses all requests",
        };
        let tier = rule.has_tiers().then_some(Fact::Tier);
        let keys = rule.key_facts().map(|fact| (fact, "is keyed by", without_key));
        let conditions = rule.condition_facts().map(|fact| (fact, "has a condition on", "it sees no value there"));
        let tiers = tier.into_iter().map(|fact| (fact, "has limits by", "none of them applies there"));
        let costs = rule.cost_facts().map(|fact| (fact, "takes its cost from", "it charges the cost of `otherwise`"));
        let needs = keys.chain(conditions).chain(tiers).chain(costs);
        let warnings = needs.filter_map(|(fact, need, effect)| {
            let (name, help) = self.lacks(rules, fact)?;
            let problem = format!("rule `{}` {need} `{name}`, which the gateway cannot know: {effect}", rule.id());
            let warning = Diagnostic::bare(rule.place().clone(), problem, help);
            Some(Diagnostic { severity: Severity::Warning, ..warning })
        });
        warnings.collect()
    }

    /// Logs the warnings.
    pub(crate) fn warn(self, rules: &RuleSet) {
        for Diagnostic { place, problem, help, .. } in self.warnings(rules) {
            tracing::warn!(%place, help = help.unwrap_or_default(), "{problem}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(known: KnownFacts, rules: &str) -> Vec<String> {
        let rules = RuleSet::parse("rules.yaml", rules).unwrap().rules;
        known.warnings(&rules).into_iter().map(|warning| warning.problem).collect()
    }

    const RULES: &str = "
rules:
  - { id: a, key: user, limit: 1/s }
  - { id: b, key: [address, 'claim:org'], limit: 1/s, on_missing_key: skip }
  - { id: c, key: api_key, limit: 1/s, on_missing_key: refuse }
  - { id: d, key: user, limit: 1/s, mode: off }
  - { id: e, key: 'header:x-tenant', limit: 1/s }
";

    #[test]
    fn rules_are_warned_of_that_need_what_cannot_be_known() {
        let warned = warnings(NOTHING, RULES);
        assert_eq!(warned.len(), 3, "{warned:?}");
        assert!(warned[0].contains("`a`") && warned[0].ends_with("share one limit"), "{warned:?}");
        assert!(warned[1].contains("`claim:org`") && warned[1].ends_with("never applies there"), "{warned:?}");
        assert!(warned[2].ends_with("refuses all requests"), "{warned:?}");
        let everything = KnownFacts { user: true, api_key: true, claims: true, tier: true };
        assert_eq!(warnings(everything, RULES), [""; 0]);
    }

    const NOTHING: KnownFacts = KnownFacts { user: false, api_key: false, claims: false, tier: false };

    #[test]
    fn conditions_tiers_and_costs_are_warned_of_too() {
        let warned = warnings(
            NOTHING,
            "
rules:
  - { id: a, match: { user: alice }, limit: 1/s }
  - { id: b, match: { tier: gold }, limit: 1/s }
  - { id: c, tiers: { gold: 9/s, free: 1/s } }
  - { id: d, limit: 1/s, cost: { from: 'claim:weight' } }
",
        );
        assert_eq!(warned.len(), 4, "{warned:?}");
        assert!(warned[0].contains("condition on `user`") && warned[1].contains("condition on `tier`"), "{warned:?}");
        assert!(warned[2].contains("limits by `tier`") && warned[3].contains("cost from `claim:weight`"), "{warned:?}");
    }

    #[test]
    fn tiers_that_rules_derive_need_what_they_are_derived_from() {
        let limits = "rules: [{ id: a, tiers: { gold: 9/s, free: 1/s } }]";
        for (tiers, count) in [
            ("{ default: free }", 0),
            ("{ from: 'header:x-tier' }", 0),
            ("{ from: 'claim:tier' }", 1),
            ("{ api_keys: { k1: gold } }", 1),
            ("{ from: 'header:x-tier', api_keys: { k1: gold } }", 0),
        ] {
            assert_eq!(warnings(NOTHING, &format!("tiers: {tiers}\n{limits}")).len(), count, "{tiers}");
        }
    }
}
