//! Numbers of rules, domains and descriptors.

use std::fmt;

use serde::Serialize;

use super::RuleSet;
use super::envoy::Domain;

/// Numbers of rules, and of Envoy's domains and descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RuleCounts {
    /// Rules.
    pub rules: usize,
    /// Domains of Envoy's files.
    pub domains: usize,
    /// Descriptors in these domains, at every level.
    pub descriptors: usize,
}

impl RuleSet {
    /// The numbers of rules, domains and descriptors.
    #[must_use]
    pub fn counts(&self) -> RuleCounts {
        RuleCounts {
            rules: self.rules().len(),
            domains: self.domains().count(),
            descriptors: self.domains().map(Domain::descriptor_count).sum(),
        }
    }
}

/// A number with its noun: `1 rule`, `2 rules`.
#[must_use]
pub fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Displays `3 rules`, `1 domain with 5 descriptors`, or both.
impl fmt::Display for RuleCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RuleCounts { rules, domains, descriptors } = *self;
        if rules > 0 || domains == 0 {
            f.write_str(&counted(rules, "rule"))?;
        }
        if rules > 0 && domains > 0 {
            f.write_str(" and ")?;
        }
        if domains > 0 {
            write!(f, "{} with {}", counted(domains, "domain"), counted(descriptors, "descriptor"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envoys_files_are_counted_by_domains_and_descriptors() {
        let counted = |text: &str| {
            let loaded = RuleSet::parse("a.yaml", text).unwrap_or_else(|findings| panic!("{findings}"));
            loaded.rules.counts().to_string()
        };
        assert_eq!(counted("rules: []"), "0 rules");
        assert_eq!(counted("rules: [{ id: a, limit: 1/s }]"), "1 rule");
        let limit = "rate_limit: { unit: day, requests_per_unit: 5 }";
        let text = format!("domain: d\ndescriptors: [{{ key: a, {limit}, descriptors: [{{ key: b, {limit} }}] }}]");
        assert_eq!(counted(&text), "1 domain with 2 descriptors");
        let both = RuleCounts { rules: 2, domains: 1, descriptors: 1 };
        assert_eq!(both.to_string(), "2 rules and 1 domain with 1 descriptor");
    }
}
