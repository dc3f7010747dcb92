//! Charges: the demands of a request on limits.

use crate::disclosure::Disclosure;
use crate::key::{Key, RuleId};
use crate::limit::Limit;
use crate::time::Micros;

/// The demand of one rule: take `cost` from `key` under `limit`.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The rule that makes the charge. State belongs to the rule and the key.
    pub rule: &'a RuleId,
    /// The key that is charged.
    pub key: &'a Key<'a>,
    /// The limit to enforce.
    pub limit: &'a Limit,
    /// The cost to take. Zero asks without taking.
    pub cost: u64,
    /// The time for which the cost can be settled at its actual value; `None` if it is final.
    pub reserve: Option<Micros>,
    /// The longest wait for a store outside this process; `None` for the default of the store. The shortest deadline of a request's
    /// charges applies.
    pub deadline: Option<Micros>,
    /// 0 if the charge counts. Any other number means a rule in shadow mode, and separates the charges of one such rule from those
    /// of the next (see [`groups`]).
    pub group: u8,
    /// Whether the charge repeats another one of the same rule under a second name of the same key, while the
    /// secret that names keys is rotated. Both are decided together and reported as one.
    pub alias: bool,
    /// The parts of the limit that clients see.
    pub disclosure: Disclosure,
}

/// Splits the charges of a request into those that count and those of each rule in shadow mode.
///
/// The charges that count come first: those of group 0 up to the first of another group. After that, each run of charges of one group
/// is a rule in shadow mode.
pub fn groups<'s, 'a>(charges: &'s [Charge<'a>]) -> (&'s [Charge<'a>], impl Iterator<Item = &'s [Charge<'a>]>) {
    let counting = charges.iter().take_while(|charge| charge.group == 0).count();
    let (counting, shadows) = charges.split_at(counting);
    (counting, shadows.chunk_by(|one, other| one.group == other.group))
}

impl<'a> Charge<'a> {
    /// A charge of one, final at once.
    #[must_use]
    pub const fn new(rule: &'a RuleId, key: &'a Key<'a>, limit: &'a Limit) -> Charge<'a> {
        Charge {
            rule,
            key,
            limit,
            cost: 1,
            reserve: None,
            deadline: None,
            group: 0,
            alias: false,
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

    /// The same charge in another group.
    #[must_use]
    pub const fn group(self, group: u8) -> Charge<'a> {
        Charge { group, ..self }
    }

    /// Whether an admission holds something until it is settled: a reserved cost or a slot.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        self.cost > 0 && (self.reserve.is_some() || self.limit.holds_slots())
    }

    /// Whether an admission reserves a cost. Slots are held by leases instead.
    #[must_use]
    pub const fn is_reserved(&self) -> bool {
        self.is_held() && !self.limit.holds_slots()
    }
}
