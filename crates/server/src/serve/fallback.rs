//! Reports a store that is unavailable at startup, and the failure policies in effect.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_rules::{Mode, RuleSet};

use super::{FIRST_POLL, Server};
use crate::readiness::StoreTrouble;

/// Interval between checks until the first connection attempt has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum number of rules named for each policy.
const MOST_NAMES: usize = 5;

/// A store that is unavailable at startup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFallback {
    /// Reason.
    pub reason: String,
    /// Failure policies in effect: `allow (login, search), deny (api)`.
    pub fallbacks: String,
}

impl Server {
    /// Logs and returns the outage of a store that is unavailable at startup. Waits for a bounded time for the first
    /// connection attempt. The recovery is logged too.
    pub async fn store_trouble(&mut self) -> Option<StoreFallback> {
        let pending = async {
            while StoreTrouble::of(&self.engine).is_some_and(|trouble| trouble.is_pending) {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        let _ = tokio::time::timeout(FIRST_POLL, pending).await;
        let StoreTrouble { reason, .. } = StoreTrouble::of(&self.engine)?;
        let fallbacks = fallbacks(&self.engine.limiter().rules().rules);
        tracing::warn!(
            reason,
            fallbacks,
            "the store does not answer: until it does, rules apply their `on_store_failure`"
        );
        self.is_store_awaited = true;
        Some(StoreFallback { reason, fallbacks })
    }

    /// Logs the recovery of a store that was unavailable at startup.
    pub(super) fn look_for_store(&mut self) {
        if self.is_store_awaited && StoreTrouble::of(&self.engine).is_none() {
            self.is_store_awaited = false;
            tracing::info!("the store answers now, and decides limits");
        }
    }
}

/// Rules grouped by failure policy, as text.
fn fallbacks(rules: &RuleSet) -> String {
    let mut by_policy: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for rule in rules.shown().filter(|rule| rule.mode != Mode::Off) {
        by_policy.entry(rule.on_store_failure).or_default().push(rule.id);
    }
    let mut texts: Vec<String> = by_policy.iter().map(|(policy, ids)| format!("{policy} ({})", names(ids))).collect();
    if rules.domains().next().is_some() {
        texts.push("Envoy's descriptors by `rls.on_store_failure`".to_owned());
    }
    if texts.is_empty() { "there are none".to_owned() } else { texts.join(", ") }
}

fn names(ids: &[&str]) -> String {
    let first = ids.iter().take(MOST_NAMES).copied().collect::<Vec<_>>().join(", ");
    match ids.len().saturating_sub(MOST_NAMES) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_told_by_what_they_do_without_the_store() {
        let rules =
            |text: &str| RuleSet::parse("rules.yaml", text).unwrap_or_else(|findings| panic!("{findings}")).rules;
        let several = "
rules:
  - { id: login, limit: 5/h, on_store_failure: deny }
  - { id: search, limit: 5/h, on_store_failure: allow }
  - { id: api, limit: 5/h, on_store_failure: local }
  - { id: off, limit: 5/h, on_store_failure: deny, mode: 'off' }
";
        assert_eq!(fallbacks(&rules(several)), "allow (search), deny (login), local (api)");
        let many: String =
            (0..7).map(|number| format!("  - {{ id: r{number}, limit: 5/h, on_store_failure: deny }}\n")).collect();
        assert_eq!(fallbacks(&rules(&format!("rules:\n{many}"))), "deny (r0, r1, r2, r3, r4 and 2 more)");
    }
}
