//! Facts that a gateway can know, and warnings about rules that need others.

use tidegate_rules::{Diagnostic, Fact, Mode, OnMissingKey, Rule, RuleSet, Severity};

use crate::config::Configuration;

/// Facts about clients that a gateway can know. At other listeners, the caller sends the facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownFacts {
    user: bool,
    api_key: bool,
    claims: bool,
}

impl KnownFacts {
    /// Facts that the gateway of this configuration can know; `None` if there is no gateway.
    pub(crate) fn of(configuration: &Configuration) -> Option<KnownFacts> {
        configuration.gateway.as_ref()?;
        let gateway = &configuration.forwarding;
        let has_jwt = configuration.jwt.is_some();
        // Only trusted proxies may send identity headers.
        let proxies = gateway.proxies.trusts_any();
        let said = |header: &Option<http::HeaderName>| header.is_some() && proxies;
        Some(KnownFacts {
            user: has_jwt || gateway.basic || gateway.client_certificate.is_some() || said(&gateway.auth_headers.user),
            api_key: gateway.api_key_header.is_some() || said(&gateway.auth_headers.api_key),
            claims: has_jwt,
        })
    }

    /// Setting that provides a missing fact; `None` if the fact is known, or not the gateway's to know.
    fn lacks(self, fact: Fact<'_>) -> Option<(String, &'static str)> {
        match fact {
            Fact::User if !self.user => {
                let help = "set `auth.jwt.jwks_url` (users come from tokens), `auth.user_header` (from a proxy) or \
                            `auth.client_certificate`";
                Some(("user".to_owned(), help))
            }
            Fact::ApiKey if !self.api_key => Some(("api_key".to_owned(), "set `gateway.api_key_header`")),
            Fact::Claim(name) if !self.claims => {
                Some((format!("claim:{name}"), "set `auth.jwt.jwks_url`, or another source of keys for tokens"))
            }
            // Rules may assign a tier themselves, and Envoy sends descriptors.
            _ => None,
        }
    }

    /// Warnings about rules whose keys the gateway cannot determine.
    pub(crate) fn warnings(self, rules: &RuleSet) -> Vec<Diagnostic> {
        let rules = rules.rules().iter().filter(|rule| rule.mode() != Mode::Off);
        rules.flat_map(|rule| rule.key_facts().filter_map(|fact| self.warning(rule, fact))).collect()
    }

    fn warning(self, rule: &Rule, fact: Fact<'_>) -> Option<Diagnostic> {
        let (name, help) = self.lacks(fact)?;
        let so = match rule.on_missing_key() {
            OnMissingKey::Share => "all its requests share one limit",
            OnMissingKey::Skip => "it never applies there",
            OnMissingKey::Refuse => "it refuses all requests",
        };
        let problem = format!("rule `{}` is keyed by `{name}`, which the gateway cannot know: {so}", rule.id());
        let warning = Diagnostic::bare(rule.place().clone(), problem, help);
        Some(Diagnostic { severity: Severity::Warning, ..warning })
    }

    /// Logs them.
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
        let nothing = KnownFacts { user: false, api_key: false, claims: false };
        let said = warnings(nothing, RULES);
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(said[0].contains("`a`") && said[0].ends_with("share one limit"), "{said:?}");
        assert!(said[1].contains("`claim:org`") && said[1].ends_with("never applies there"), "{said:?}");
        assert!(said[2].ends_with("refuses all requests"), "{said:?}");
        assert_eq!(warnings(KnownFacts { user: true, api_key: true, claims: true }, RULES), [""; 0]);
    }
}
