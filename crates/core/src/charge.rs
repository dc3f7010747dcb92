//! Charges: the costs that a request takes from limits.

use crate::disclosure::Disclosure;
use crate::key::{Key, RuleId};
use crate::lease::Leasing;
use crate::limit::Limit;
use crate::time::Micros;
use crate::write_behind::WriteBehind;

/// The charge of one rule: take `cost` from `key` under `limit`.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The rule that makes the charge. State belongs to a pair of rule and key.
    pub rule: &'a RuleId,
    /// The key that is charged.
    pub key: &'a Key<'a>,
    /// The limit to enforce.
    pub limit: &'a Limit,
    /// The cost to take. A cost of zero takes nothing.
    pub cost: u64,
    /// The time for which the cost can be settled at its actual value; `None` if it is final.
    pub reserve: Option<Micros>,
    /// The longest wait for a store outside this process; `None` for the store's default. If the charges of a
    /// request have different deadlines, the shortest applies.
    pub deadline: Option<Micros>,
    /// Whether the charge repeats another charge of the same rule, under a second name of the same key, while the
    /// secret that names keys is rotated. Both are decided together and reported as one.
    pub alias: bool,
    /// Whether nodes that share a store may decide the charge from a [lease](crate::lease).
    pub leasing: Leasing,
    /// Whether, and how far, nodes that share a store may decide the charge by their own
    /// [copies](crate::write_behind).
    pub write_behind: Option<WriteBehind>,
    /// The parts of the limit that clients see.
    pub disclosure: Disclosure,
}

impl<'a> Charge<'a> {
    /// A charge of one unit, final at once.
    #[must_use]
    pub const fn new(rule: &'a RuleId, key: &'a Key<'a>, limit: &'a Limit) -> Charge<'a> {
        Charge {
            rule,
            key,
            limit,
            cost: 1,
            reserve: None,
            deadline: None,
            alias: false,
            leasing: Leasing::AUTO,
            write_behind: None,
            disclosure: Disclosure::DEFAULT,
        }
    }

    /// The same charge at another cost.
    #[must_use]
    pub const fn cost(self, cost: u64) -> Charge<'a> {
        Charge { cost, ..self }
    }

    /// The same charge, which can be settled for `ttl`. After that the cost is final.
    #[must_use]
    pub fn reserve(self, ttl: impl Into<Micros>) -> Charge<'a> {
        Charge { reserve: Some(ttl.into()), ..self }
    }

    /// The same charge with a deadline for the decision.
    #[must_use]
    pub fn deadline(self, deadline: impl Into<Micros>) -> Charge<'a> {
        Charge { deadline: Some(deadline.into()), ..self }
    }

    /// Returns `true` if an admission holds a reserved cost or a slot until it is settled.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        self.cost > 0 && (self.reserve.is_some() || self.limit.holds_slots())
    }

    /// Returns `true` if an admission reserves a cost. Slots are held by leases instead.
    #[must_use]
    pub const fn is_reserved(&self) -> bool {
        self.is_held() && !self.limit.holds_slots()
    }
}
