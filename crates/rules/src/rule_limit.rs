//! One of a rule's limits, with its settings.

use std::sync::Arc;

use tidegate_core::disclosure::Disclosure;
use tidegate_core::lease::{Block, Leasing, Terms};
use tidegate_core::limit::Limit;
use tidegate_core::notation::write_span;
use tidegate_core::write_behind::WriteBehind;
use tidegate_core::{Micros, RuleId};

use super::cost::Cost;
use super::regions::WholeLimit;
use super::settle::Settle;
use super::split::Split;

/// One of a rule's limits.
#[derive(Clone, Debug)]
pub(crate) struct RuleLimit {
    /// The id to which state belongs: the rule's id, with the name or number of the limit if the rule has several.
    pub(crate) id: RuleId,
    pub(super) cost: Cost,
    /// The time in which the cost can be settled.
    pub(super) reserve: Option<Micros>,
    pub(crate) limit: Limit,
    /// The place of the actual cost in the response.
    pub(super) settle: Option<Arc<Settle>>,
    /// The share that this process may decide alone while the store is unavailable, if the rule's policy is `local`.
    pub(super) share: Option<Box<Limit>>,
    /// Whether and how nodes lease the limit; `None` for the nodes' default.
    pub(super) leasing: Option<Leasing>,
    /// Whether and how far nodes decide the limit by their own copies.
    pub(super) write_behind: Option<WriteBehind>,
    /// The number of parts, of which each node charges one. `None` if the limit is not split, or is itself such a part.
    pub(super) split: Option<Split>,
    /// The properties that clients may see.
    pub(super) disclosure: Disclosure,
    /// The whole limit, if this is a region's part of one.
    pub(crate) whole: Option<Box<WholeLimit>>,
}

impl RuleLimit {
    /// A limit with a cost of 1 for each request, for the rule with this id.
    pub(super) fn plain(rule: &str, limit: Limit) -> RuleLimit {
        RuleLimit {
            id: RuleId::new(rule),
            cost: Cost::Fixed(1),
            reserve: None,
            limit,
            settle: None,
            share: None,
            leasing: None,
            write_behind: None,
            split: None,
            disclosure: Disclosure::DEFAULT,
            whole: None,
        }
    }

    /// Whether and how nodes lease the limit. Slots are leased only if the rule has `lease`, because a leased slot must be
    /// released at the node that took it.
    pub(super) fn leasing(&self) -> Leasing {
        let default = if self.limit.holds_slots() { Leasing::OFF } else { Leasing::AUTO };
        self.leasing.unwrap_or(default)
    }

    /// Describes whether and how nodes lease the limit. `None` if it is never leased.
    pub(super) fn leased(&self) -> Option<String> {
        if self.write_behind.is_some() || self.limit.holds_slots() && self.leasing.is_none() {
            return None;
        }
        let leasing = self.leasing();
        if leasing.is_off() {
            return Some("off".to_owned());
        }
        if Block::limit(&self.limit).is_some() {
            return Some(format!("in blocks of slots, at most {}%", leasing.percent()));
        }
        self.leased_from()?;
        Some(match leasing {
            Leasing::AUTO => "auto".to_owned(),
            leasing => format!("at most {}%, every {}", leasing.percent(), write_span(leasing.every())),
        })
    }

    /// The cost per second for a key at a node from which on the node leases it. `None` if it never does, or leases slots.
    pub(super) fn leased_from(&self) -> Option<u64> {
        let is_decided_elsewhere = self.write_behind.is_some() || self.reserve.is_some();
        let terms = Terms::under(&self.limit, self.leasing()).filter(|_| !is_decided_elsewhere)?;
        Some(terms.busy_from())
    }
}
