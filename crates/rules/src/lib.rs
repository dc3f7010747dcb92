//! Rules: limits as data.
//!
//! A rules file defines which requests are limited, by what key, and how much. It is read ([`load`], [`RuleSet::parse`])
//! into a [`RuleSet`], which determines for any request which rules govern it and what they charge ([`RuleSet::matching`]).
//! All mistakes in a file are reported at once, each with its place and how to correct it ([`Diagnostics`]).
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
mod condition;
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
mod override_name;
mod partition;
mod path;
mod path_policy;
mod pattern;
mod presets;
mod rate_ladder;
mod read;
mod regional_rules;
mod regions;
mod request_view;
mod route;
mod rule;
mod rule_effect;
mod rule_limit;
mod rule_limits;
mod rule_matcher;
mod rule_set;
mod rule_summary;
#[cfg(feature = "schema")]
mod schema;
mod secret;
mod secret_name;
mod settle;
mod single_rule;
mod split;
mod split_rules;
mod switches;
mod tier_directory;
mod tiers;
pub mod yaml;

pub use crate::yaml::{Diagnostic, Diagnostics, Place, Severity};
pub use adaptive_rate::AdaptiveRate;
pub use body_number::BodyNumber;
pub use counts::{RuleCounts, counted};
pub use explain::{Charged, ExplainedRule, Explanation, RuleOutcome, ShownLimit, ShownPart, ShownWriteBehind};
pub use facts::{Fact, Facts, Request, Values, syntax};
pub use field::{FieldPath, FieldPathError};
pub use limiter::{
    Charging, Condition, DecidedBy, DescriptorRequest, DescriptorRuling, DescriptorsRuling, DomainTerms, Generation,
    Health, Hits, InlineLimit, KeyAliases, KeyRefusal, Limiter, Refundable, Reports, ResetError, Ruled, RuledCharge,
    Ruling, ShareEnd, WithoutStore,
};
pub use load::{FilesHash, Loaded, SERVER_SETTINGS, load, rules_files};
pub use matched::{Granted, Matched, MatchedRule, RefusingRule};
pub use named_key::{NamedKey, NoSuchKey, PartName};
pub use partition::Partitions;
pub use path::normalize;
pub use path_policy::{PathPolicy, PathRefusal};
pub use regions::{Moves, RegionView, Regions};
pub use rule::{KeyFault, Mode, OnMissingKey, OnRepeatedKey, OnStoreFailure, Rule};
pub(crate) use rule_limit::RuleLimit;
pub use rule_set::RuleSet;
pub use rule_summary::{KeyPartName, LimitName, RateSummary, RuleSummary, key_in_full, readable_key};
#[cfg(feature = "schema")]
pub use schema::schema;
pub use secret::{SamePrevious, Secret, SecretError};
pub use secret_name::is_secret_name;
pub use settle::{Settle, SettleSource, SettleTerm};
pub use single_rule::KeyScope;
pub use switches::Switches;
pub use tidegate_core::priority::{Priority, PriorityError};
pub use tier_directory::{FoundTier, LONGEST_TIER, TierCounts, TierDirectory, TierLookup, TierSettings};

/// The crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
