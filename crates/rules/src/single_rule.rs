//! One rule, without a file.

use std::sync::Arc;

use smallvec::smallvec;

use super::RuleSet;
use super::envoy::Domains;
use super::fact_name::FactName;
use super::regions::RegionChoice;
use super::rule::{Conditions, KeyPart, Mode, OnMissingKey, OnRepeatedKey, OnStoreFailure, Rule};
use super::rule_limit::RuleLimit;
use super::rule_limits::Limits;
use super::tiers::Tiers;
use crate::yaml::Place;
use tidegate_core::limit::Limit;

/// The key of a single rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyScope {
    /// All requests together.
    Everyone,
    /// Each client by its address; IPv6 by its /64 network, which belongs to one customer.
    Address,
    /// Each user, as verified by the caller.
    User,
    /// Each API key.
    ApiKey,
}

impl RuleSet {
    /// One rule for all requests: `limit`, for each `whom`. Requests without that value share one key.
    ///
    /// ```
    /// use tidegate_rules::{Limiter, Request, RuleSet, KeyScope};
    /// use tidegate_core::MemoryStore;
    ///
    /// let limiter = Limiter::new(RuleSet::one("api", KeyScope::User, "1/min".parse()?), MemoryStore::new());
    /// let request = |user: &str| Request::new("GET", "/").user(user);
    /// assert!(limiter.check_now(&request("alice")).is_allowed());
    /// assert!(!limiter.check_now(&request("alice")).is_allowed());
    /// assert!(limiter.check_now(&request("bob")).is_allowed());
    /// # Ok::<(), tidegate_core::NotationError>(())
    /// ```
    #[must_use]
    pub fn one(id: &str, whom: KeyScope, limit: Limit) -> RuleSet {
        let key = match whom {
            KeyScope::Everyone => smallvec![],
            KeyScope::Address => smallvec![KeyPart::ADDRESS],
            KeyScope::User => smallvec![KeyPart::of(FactName::User)],
            KeyScope::ApiKey => smallvec![KeyPart::of(FactName::ApiKey)],
        };
        let limit = RuleLimit::plain(id, limit);
        let rule = Rule {
            id: id.into(),
            place: Place { file: "(no file)".into(), line: 1, column: 1 },
            conditions: Conditions::default(),
            key,
            on_missing_key: OnMissingKey::default(),
            on_repeated_key: OnRepeatedKey::default(),
            limits: Limits { default: Some(Arc::new([limit])), ..Limits::default() },
            mode: Mode::default(),
            on_store_failure: OnStoreFailure::default(),
            store_deadline: None,
            priority: None,
            replaces: Vec::new(),
            stops: false,
            regions: RegionChoice::Off,
        };
        RuleSet::new(vec![rule], Tiers::default(), Domains::default(), None)
    }
}
