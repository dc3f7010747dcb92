//! Validated rules, with their modes.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::adaptive_rate::AdaptiveRate;
use super::envoy::Domains;
use super::index::Index;
use super::regions::Regions;
use super::rule::{KeyPart, Mode, Rule};
use super::secret::Secret;
use super::switches::Switches;
use super::tier_directory::{Answered, TierDirectory};
use super::tiers::{StoredTiers, Tiers};
use crate::facts::{Fact, Facts};

/// Validated rules, with their modes.
///
/// A clone shares the rules, so it is cheap for any number of rules.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    pub(super) written: Arc<LoadedRules>,
    /// The present modes, in the order of the rules.
    pub(super) modes: Arc<[Mode]>,
    pub(super) switches: Arc<Switches>,
    pub(super) secret: Secret,
    /// The tiers in a store.
    pub(super) directory: Option<Arc<TierDirectory>>,
}

/// The content of files.
#[derive(Debug, Default)]
pub(super) struct LoadedRules {
    pub(super) rules: Vec<Rule>,
    pub(super) index: Index,
    pub(super) tiers: Tiers,
    pub(super) domains: Arc<Domains>,
    /// Whether any rule reads the bodies of requests.
    pub(super) reads_bodies: bool,
    /// Whether any rule replaces other rules.
    pub(super) replaces: bool,
    /// Whether the limits of any rule depend on the priority.
    pub(super) sheds: bool,
    /// Whether the rate of any rule adapts.
    pub(super) adapts: bool,
    /// The regions that share the limits of all rules that do not name other regions.
    pub(super) regions: Option<Arc<Regions>>,
    /// Shared by all rule sets made from one text, for nodes or regions.
    pub(super) text: Arc<RulesText>,
}

/// The identity of the text that rules were read from.
#[derive(Debug, Default)]
pub(super) struct RulesText;

impl RuleSet {
    pub(super) fn new(rules: Vec<Rule>, mut tiers: Tiers, domains: Domains, regions: Option<Regions>) -> RuleSet {
        tiers.learn(&rules);
        let reads_bodies =
            rules.iter().flat_map(|rule| rule.limits.all()).any(|limit| limit.cost.fields().next().is_some());
        let replaces = rules.iter().any(|rule| !rule.replaces.is_empty());
        let sheds = rules.iter().any(|rule| rule.limits.by_priority().is_some());
        let adapts = rules.iter().any(|rule| rule.limits.ladder().is_some());
        let (index, domains) = (Index::new(&rules), Arc::new(domains));
        let (regions, text) = (regions.map(Arc::new), Arc::default());
        let written =
            LoadedRules { index, rules, tiers, domains, reads_bodies, replaces, sheds, adapts, regions, text };
        let modes = written.modes(&Switches::new());
        RuleSet {
            written: Arc::new(written),
            modes,
            switches: Arc::default(),
            secret: Secret::default(),
            directory: None,
        }
    }

    /// The same rules, with secrets hashed with another key.
    #[must_use]
    pub fn with_secret(self, secret: Secret) -> RuleSet {
        RuleSet { secret, ..self }
    }

    /// The same rules with the tiers of a store, for `tiers: { from: store }`.
    #[must_use]
    pub fn with_tiers(self, directory: Option<Arc<TierDirectory>>) -> RuleSet {
        RuleSet { directory, ..self }
    }

    /// The tiers in a store.
    #[must_use]
    pub const fn tiers(&self) -> Option<&Arc<TierDirectory>> {
        self.directory.as_ref()
    }

    /// Returns `true` if the tiers of API keys are looked up in the store.
    #[must_use]
    pub fn are_tiers_stored(&self) -> bool {
        self.written.tiers.is_stored
    }

    /// Returns `true` if any rule distinguishes this tier from others. All other tiers are the default in the store.
    #[must_use]
    pub fn knows_tier(&self, tier: &str) -> bool {
        self.written.tiers.knows(tier)
    }

    /// The names of tiers in these rules, without patterns.
    #[must_use]
    pub fn tier_names(&self) -> BTreeSet<&str> {
        self.written.tiers.names().collect()
    }

    pub(super) fn stored_tiers(&self) -> Option<StoredTiers<'_>> {
        let directory = self.directory.as_deref().filter(|_| self.written.tiers.is_stored)?;
        Some(StoredTiers { directory, secret: &self.secret })
    }

    /// Whether the tier of a request must be awaited.
    #[inline]
    pub(crate) fn awaits_tier(&self, facts: &(impl Facts + ?Sized)) -> bool {
        self.written.tiers.is_stored && self.missing_tiers(facts).next().is_some()
    }

    /// Waits until the tier of a request is known, or the store does not return it.
    pub(crate) async fn learn_tier(&self, facts: &(impl Facts + Sync + ?Sized)) {
        // Collected first: `facts` is not used while waiting.
        let waiting: Vec<_> = self.missing_tiers(facts).collect();
        for answered in waiting {
            answered.await;
        }
    }

    /// Asks for the tier of a request, if it is missing, without waiting.
    pub(crate) fn ask_tier(&self, facts: &(impl Facts + ?Sized)) {
        self.missing_tiers(facts).for_each(drop);
    }

    fn missing_tiers(&self, facts: &(impl Facts + ?Sized)) -> impl Iterator<Item = Answered<'_>> {
        let lookups = self.stored_tiers().map(|stored| {
            let lookups = self.written.tiers.lookups(facts, stored.secret);
            lookups.into_iter().filter_map(move |lookup| stored.directory.ask(lookup))
        });
        lookups.into_iter().flatten()
    }

    /// The key with which secrets are hashed.
    #[must_use]
    pub const fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The rules whose keys have a secret part, which is replaced by a hash ([`Secret`]).
    pub fn keyed_by_secrets(&self) -> impl Iterator<Item = &Rule> {
        self.rules().iter().filter(|rule| rule.key.iter().any(KeyPart::is_secret))
    }

    /// Returns `true` if any rule reads the bodies of requests. [`Matched::fields`](crate::Matched::fields) lists the
    /// fields.
    #[must_use]
    pub fn reads_bodies(&self) -> bool {
        self.written.reads_bodies
    }

    /// The rules, in the order of the files.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.written.rules
    }

    /// The facts from which a tier is derived if the caller has verified none; `None` if there is a default tier.
    #[must_use]
    pub fn tier_sources(&self) -> Option<Vec<Fact<'_>>> {
        let tiers = &self.written.tiers;
        tiers.default.is_none().then(|| tiers.sources().collect())
    }

    /// Returns `true` if both rule sets were made from the same text. They may differ in modes, secret, and parts of limits.
    #[must_use]
    pub fn shares_rules_with(&self, other: &RuleSet) -> bool {
        Arc::ptr_eq(&self.written.text, &other.written.text)
    }

    /// The rules with their modes, in order.
    pub(super) fn in_force(&self) -> impl Iterator<Item = (&Rule, Mode)> {
        self.written.rules.iter().zip(self.modes.iter().copied())
    }

    /// Whether both have the same limits.
    pub(crate) fn has_same_limits(&self, other: &RuleSet) -> bool {
        Arc::ptr_eq(&self.written, &other.written)
    }

    /// The same rules with other limits.
    pub(crate) fn with_limits_of(self, rules: Vec<Rule>) -> RuleSet {
        let LoadedRules { tiers, domains, reads_bodies, replaces, sheds, adapts, regions, text, .. } = &*self.written;
        let written = LoadedRules {
            index: Index::new(&rules),
            rules,
            tiers: tiers.clone(),
            domains: Arc::clone(domains),
            reads_bodies: *reads_bodies,
            replaces: *replaces,
            sheds: *sheds,
            adapts: *adapts,
            regions: regions.clone(),
            text: Arc::clone(text),
        };
        RuleSet { written: Arc::new(written), ..self }
    }

    /// The adaptive rates of all rules that are not off.
    pub fn adaptive_rates(&self) -> impl Iterator<Item = &Arc<AdaptiveRate>> {
        let rules = self.written.adapts.then(|| self.in_force()).into_iter().flatten();
        rules.filter(|(_, mode)| *mode != Mode::Off).filter_map(|(rule, _)| rule.adaptive_rate())
    }

    /// Makes adaptive rates start at those of the same rules in `other`.
    pub(crate) fn continue_rates_of(&self, other: &RuleSet) {
        if !self.written.adapts || !other.written.adapts || self.shares_rules_with(other) {
            return;
        }
        for rate in self.rules().iter().filter_map(Rule::adaptive_rate) {
            let same = other.rules().iter().filter_map(Rule::adaptive_rate).find(|other| other.rule() == rate.rule());
            if let Some(other) = same {
                rate.continue_from(other);
            }
        }
    }
}

impl RuleSet {
    /// The same rules with these switches.
    #[must_use]
    pub fn with_switches(self, switches: Switches) -> RuleSet {
        RuleSet { modes: self.written.modes(&switches), switches: Arc::new(switches), ..self }
    }

    /// Whether a rule with the mode `written` reports that a request is over its limit although it does not deny it,
    /// because an operator has put all rules into shadow mode to observe their effect.
    pub(crate) fn reports_as_written(&self, written: Mode) -> bool {
        self.switches.all() == Some(Mode::Shadow) && written == Mode::Enforce
    }

    /// The switches.
    #[must_use]
    pub fn switches(&self) -> &Switches {
        &self.switches
    }

    /// The mode of the rule with this id; `None` if there is no such rule.
    ///
    /// Searches all rules, so it is not suitable for every request.
    #[must_use]
    pub fn mode_of(&self, id: &str) -> Option<Mode> {
        self.in_force().find(|(rule, _)| rule.id() == id).map(|(_, mode)| mode)
    }

    /// The ids with a switch that no rule has.
    #[must_use]
    pub fn unknown_switches(&self) -> Vec<&str> {
        let ids: HashSet<&str> = match self.switches.rules().len() {
            0 => return Vec::new(),
            _ => self.rules().iter().map(Rule::id).collect(),
        };
        let is_unknown = |id: &&str| !ids.contains(id) && !self.is_descriptor(id);
        self.switches.rules().map(|(id, _)| id).filter(is_unknown).collect()
    }
}

impl LoadedRules {
    pub(super) fn modes(&self, switches: &Switches) -> Arc<[Mode]> {
        self.rules.iter().map(|rule| switches.over(rule.id(), rule.mode())).collect()
    }
}
