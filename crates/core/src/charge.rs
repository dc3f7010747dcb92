//! What a request asks of one limit.

use crate::disclosure::Disclosure;
use crate::key::{Key, RuleId};
use crate::limit::Limit;
use crate::time::Micros;

/// One rule's claim on a request: take `cost` from `key` under `limit`.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The rule that asks for it. State belongs to the rule and the key.
    pub rule: &'a RuleId,
    /// Whom it is charged to.
    pub key: &'a Key<'a>,
    /// The limit to hold.
    pub limit: &'a Limit,
    /// How much to take. Zero asks without taking.
    pub cost: u64,
    /// For how long the cost stays open to be settled at what it really was; `None` if it is final.
    pub reserve: Option<Micros>,
    /// For how long the request can wait for a store that is not in this process; `None` leaves it to the store. Of the
    /// charges of one request, the shortest counts.
    pub deadline: Option<Micros>,
    /// 0 if it counts. Any other number is one rule in the shadow: it tells the charges of one such rule from those of the
    /// next (see [`groups`]).
    pub group: u8,
    /// Whether it repeats a charge of the same rule under another name of the same key, while the
    /// secret that names keys is rotated. Both are decided together, and told of as one.
    pub alias: bool,
    /// The parts of the limit that clients see.
    pub disclosure: Disclosure,
}

/// The charges of a request that count, which come first, and then those of each rule in the shadow, which stand together.
///
/// The charges that count are those of group 0 up to the first of another group. Each run of charges of one group after
/// that is a rule in the shadow.
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

    /// The same charge, open to be settled for `ttl`. What is not settled by then stays as it was taken.
    #[must_use]
    pub fn reserve(self, ttl: impl Into<Micros>) -> Charge<'a> {
        Charge { reserve: Some(ttl.into()), ..self }
    }

    /// The same charge, to be decided within `deadline` or not at all.
    #[must_use]
    pub fn deadline(self, deadline: impl Into<Micros>) -> Charge<'a> {
        Charge { deadline: Some(deadline.into()), ..self }
    }

    /// The same charge in another group.
    #[must_use]
    pub const fn group(self, group: u8) -> Charge<'a> {
        Charge { group, ..self }
    }

    /// Whether admitting it takes something that is to be given back: a reserved cost or a slot.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        self.cost > 0 && (self.reserve.is_some() || self.limit.holds_slots())
    }

    /// Whether admitting it takes a cost that is to be settled. Slots have leases of their own.
    #[must_use]
    pub const fn is_reserved(&self) -> bool {
        self.is_held() && !self.limit.holds_slots()
    }
}
