//! The charges of a request, in order: those of the rules that are enforced, then those of each rule in shadow mode.
//!
//! Stores are asked in this order, and rulings answer in it.

use smallvec::SmallVec;

use super::ruling::{Ruled, Ruling};
use crate::{Matched, MatchedRule, Mode};
use tidegate_core::Charge;

pub(super) type Charges<'a> = SmallVec<[Charge<'a>; 4]>;

/// Adds what the rules of a request charge, for the store to decide in one go. A request that is refused is charged nothing under
/// the rules that are enforced. `each` may change single charges.
#[inline]
pub(super) fn add_charges<'m>(
    charges: &mut Charges<'m>,
    matched: &'m Matched<'_, '_>,
    is_refused: bool,
    each: impl Fn(Charge<'m>) -> Charge<'m>,
) {
    // One by one: extending such a list costs as much as deciding a charge.
    for rule in enforced(matched).filter(|_| !is_refused) {
        rule.charges_and_aliases().for_each(|charge| charges.push(each(charge)));
    }
    for (rule, group) in shadows(matched).zip(group_numbers()) {
        rule.charges_and_aliases().for_each(|charge| charges.push(each(charge.group(group))));
    }
}

/// Numbers for groups. Neighbours differ, and none is 0, which is the group of the charges that decide.
pub(super) fn group_numbers() -> impl Iterator<Item = u8> {
    (1..=u8::MAX).cycle()
}

pub(super) fn enforced<'m>(matched: &'m Matched<'_, '_>) -> impl Iterator<Item = &'m MatchedRule<'m, 'm>> {
    matched.rules.iter().filter(|matched| matched.mode == Mode::Enforce)
}

pub(super) fn shadows<'m>(matched: &'m Matched<'_, '_>) -> impl Iterator<Item = &'m MatchedRule<'m, 'm>> {
    matched.rules.iter().filter(|matched| matched.mode == Mode::Shadow)
}

/// The rules whose charges are put to the store, in the order of the charges.
pub(super) fn charging<'m>(
    matched: &'m Matched<'_, '_>,
    is_refused: bool,
) -> impl Iterator<Item = &'m MatchedRule<'m, 'm>> {
    enforced(matched).filter(move |_| !is_refused).chain(shadows(matched))
}

/// A charge, with the rule that made it and what was decided on it.
#[derive(Clone, Debug)]
pub struct RuledCharge<'a> {
    /// The rule, with the key that it charges.
    pub matched: &'a MatchedRule<'a, 'a>,
    /// The number of the limit among those of the rule.
    pub number: usize,
    /// The charge.
    pub charge: Charge<'a>,
    /// The decision on it.
    pub ruled: &'a Ruled<'a>,
}

impl Ruling<'_> {
    /// Each of [`Ruling::ruled`], in order, with the charge that it decides: `matched` are the rules that this ruling was made by.
    pub fn charges<'a>(&'a self, matched: &'a Matched<'_, '_>) -> impl Iterator<Item = RuledCharge<'a>> {
        let rules = charging(matched, self.refused.is_some());
        let charges = rules
            .flat_map(|matched| matched.charges().enumerate().map(move |(number, charge)| (matched, number, charge)));
        let each = charges.zip(&self.ruled);
        each.map(|((matched, number, charge), ruled)| RuledCharge { matched, number, charge, ruled })
    }
}
