//! Rules: limits as data.
//!
//! A rules file says which requests are limited, by what key, and how much. It is read ([`load`], [`RuleSet::parse`]) into
//! a [`RuleSet`], which tells for any request which rules govern it and what they charge ([`RuleSet::matching`]). Every
//! mistake in a file is reported at once, each with its place and what to write instead ([`Diagnostics`]).
//!
//! ```
//! use tidegate_rules::{Request, RuleSet};
//!
//! let text = "
//! rules:
//!   - id: login
//!     match: { method: POST, path: /login }
//!     key: address
//!     limit: 5/min
//! ";
//! let rules = RuleSet::parse("rules.yaml", text).map_err(|findings| findings.to_string())?.rules;
//! let request = Request::new("POST", "/login").address("203.0.113.7".parse().map_err(|_| "not an address")?);
//! let matched = rules.matching(&request);
//! assert_eq!(matched.rules[0].rule.id(), "login");
//! # Ok::<(), String>(())
//! ```

mod adaptive_rate;
mod applicable_rule;
mod body_number;
mod canonical;
mod checks;
mod cost;
mod counts;
mod decimal;
pub mod envoy;
mod explain;
mod fact_name;
pub mod facts;
mod field;
mod index;
mod key_parts;
mod limiter;
mod load;
mod matched;
mod named_key;
mod partition;
mod path;
mod path_policy;
mod pattern;
mod presets;
mod read;
mod regions;
mod request_view;
mod route;
mod rule;
mod rule_effect;
mod rule_limits;
mod rule_summary;
#[cfg(feature = "schema")]
mod schema;
mod secret;
mod settle;
mod single_rule;
mod split;
mod switches;
mod tier_directory;
mod tiers;
pub mod yaml;

pub use crate::yaml::{Diagnostic, Diagnostics, Place, Severity};
pub use adaptive_rate::AdaptiveRate;
pub use body_number::BodyNumber;
pub use counts::{RuleCounts, counted};
pub use explain::{Charged, ExplainedRule, Explanation, RuleOutcome, ShownLimit, ShownPart, ShownWriteBehind};
pub use fact_name::is_secret_name;
pub use facts::{Fact, Facts, Request, Values, syntax};
pub use field::{FieldPath, FieldPathError};
pub use limiter::{
    Charging, Condition, DecidedBy, DescriptorRequest, DescriptorRuling, DescriptorsRuling, DomainTerms, Generation,
    Health, Hits, InlineLimit, KeyAliases, KeyRefusal, Limiter, Refundable, Reports, ResetError, Ruled, RuledCharge,
    Ruling, WithoutStore,
};
pub use load::{Loaded, SERVER_SETTINGS, file_contents, load, rules_files};
pub use matched::{Granted, Matched, MatchedRule, RefusingRule};
pub use named_key::{NamedKey, NoSuchKey, PartName};
pub use partition::Partitions;
pub use path::normalize;
pub use path_policy::{PathPolicy, PathRefusal};
pub use regions::{Moves, RegionView, Regions};
pub use rule::{KeyFault, Mode, OnMissingKey, OnRepeatedKey, OnStoreFailure, Rule};
pub(crate) use rule_limits::RuleLimit;
pub use rule_summary::{KeyPartName, LimitName, RateSummary, RuleSummary, key_in_full, readable_key};
#[cfg(feature = "schema")]
pub use schema::schema;
pub use secret::{SamePrevious, Secret, SecretError};
pub use settle::{Settle, SettleSource, SettleTerm};
pub use single_rule::KeyScope;
pub use switches::Switches;
pub use tidegate_core::{Priority, PriorityError};
pub use tier_directory::{FoundTier, LONGEST_TIER, TierCounts, TierDirectory, TierLookup, TierSettings};

use std::sync::Arc;

use self::envoy::Domains;
use self::index::Index;
use self::tier_directory::Answered;
use self::tiers::{StoredTiers, Tiers};

/// Rules, ready to be held against requests, with the mode that each of them is in.
///
/// A clone shares the rules, so it costs little, whatever their number.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    written: Arc<LoadedRules>,
    /// The modes in force, in the order of the rules.
    modes: Arc<[Mode]>,
    switches: Arc<Switches>,
    secret: Secret,
    /// The tiers that a store keeps.
    directory: Option<Arc<TierDirectory>>,
}

/// The content of files.
#[derive(Debug, Default)]
struct LoadedRules {
    rules: Vec<Rule>,
    index: Index,
    tiers: Tiers,
    domains: Arc<Domains>,
    /// Whether any rule looks into the bodies of requests.
    reads_bodies: bool,
    /// Whether any rule replaces others.
    replaces: bool,
    /// Whether the limits of any rule depend on the priority.
    sheds: bool,
    /// Whether the rate of any rule adapts.
    adapts: bool,
    /// The regions that share the limits of all rules that name no others.
    regions: Option<Arc<Regions>>,
    /// Common to rules that were made from one text, for nodes or regions.
    text: Arc<RulesText>,
}

/// The identity of the text that rules were read from.
#[derive(Debug, Default)]
struct RulesText;

impl RuleSet {
    fn new(rules: Vec<Rule>, mut tiers: Tiers, domains: Domains, regions: Option<Regions>) -> RuleSet {
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

    /// The same rules, hiding secrets under another key.
    #[must_use]
    pub fn with_secret(self, secret: Secret) -> RuleSet {
        RuleSet { secret, ..self }
    }

    /// The same rules with the tiers that a store keeps, for `tiers: { from: store }`.
    #[must_use]
    pub fn with_tiers(self, directory: Option<Arc<TierDirectory>>) -> RuleSet {
        RuleSet { directory, ..self }
    }

    /// The tiers that a store keeps.
    #[must_use]
    pub const fn tiers(&self) -> Option<&Arc<TierDirectory>> {
        self.directory.as_ref()
    }

    /// Whether the tiers of API keys are looked up in the store.
    #[must_use]
    pub fn are_tiers_stored(&self) -> bool {
        self.written.tiers.is_stored
    }

    fn stored_tiers(&self) -> Option<StoredTiers<'_>> {
        let directory = self.directory.as_deref().filter(|_| self.written.tiers.is_stored)?;
        Some(StoredTiers { directory, secret: &self.secret })
    }

    /// Whether the tier of a request has to be waited for.
    #[inline]
    pub(crate) fn awaits_tier(&self, facts: &(impl Facts + ?Sized)) -> bool {
        self.written.tiers.is_stored && self.missing_tiers(facts).next().is_some()
    }

    /// Waits until the tier of a request is known, or the store does not tell.
    pub(crate) async fn learn_tier(&self, facts: &(impl Facts + Sync + ?Sized)) {
        // Collected: facts need not be there while it waits.
        let waiting: Vec<_> = self.missing_tiers(facts).collect();
        for answered in waiting {
            answered.await;
        }
    }

    fn missing_tiers(&self, facts: &(impl Facts + ?Sized)) -> impl Iterator<Item = Answered<'_>> {
        let lookups = self.stored_tiers().map(|stored| {
            let lookups = self.written.tiers.lookups(facts, stored.secret);
            lookups.into_iter().filter_map(move |lookup| stored.directory.ask(lookup))
        });
        lookups.into_iter().flatten()
    }

    /// The key that secrets are hashed with.
    #[must_use]
    pub const fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The rules whose keys have a secret part: what they count is named by hashes ([`Secret`]).
    pub fn keyed_by_secrets(&self) -> impl Iterator<Item = &Rule> {
        self.rules().iter().filter(|rule| rule.key.iter().any(rule::KeyPart::is_secret))
    }

    /// Whether any rule looks into the bodies of requests: [`Matched::fields`] says what for.
    #[must_use]
    pub fn reads_bodies(&self) -> bool {
        self.written.reads_bodies
    }

    /// The rules, in the order in which they are written.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.written.rules
    }

    /// The facts that a tier is derived from, where the caller has verified none; `None` if there is a default tier.
    #[must_use]
    pub fn tier_sources(&self) -> Option<Vec<Fact<'_>>> {
        let tiers = &self.written.tiers;
        tiers.default.is_none().then(|| tiers.sources().collect())
    }

    /// Whether the other was made from this one or this from it, with other modes, another secret, or parts of limits at most.
    #[must_use]
    pub fn shares_rules_with(&self, other: &RuleSet) -> bool {
        Arc::ptr_eq(&self.written.text, &other.written.text)
    }

    /// The rules with the modes that they are in, in the same order.
    fn in_force(&self) -> impl Iterator<Item = (&Rule, Mode)> {
        self.written.rules.iter().zip(self.modes.iter().copied())
    }
}

/// The crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
