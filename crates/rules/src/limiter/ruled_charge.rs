//! Charges with the decisions on them.

use tidegate_core::Charge;

use super::charges::charging;
use super::ruling::{Ruled, Ruling};
use crate::{Matched, MatchedRule};

/// A charge, with the rule that made it and the decision.
#[derive(Clone, Debug)]
pub struct RuledCharge<'a> {
    /// The rule, with the charged key.
    pub matched: &'a MatchedRule<'a, 'a>,
    /// The index of the limit among those of the rule.
    pub number: usize,
    /// The charge.
    pub charge: Charge<'a>,
    /// The decision on the charge.
    pub ruled: &'a Ruled<'a>,
}

impl Ruling<'_> {
    /// Each of [`Ruling::ruled`], in order, with the charge that it decides: `matched` are the rules that this ruling was made by.
    /// Ends at the first charge of another rule, so that no charge comes with the decision on another.
    pub fn charges<'a>(&'a self, matched: &'a Matched<'_, '_>) -> impl Iterator<Item = RuledCharge<'a>> {
        let rules = charging(matched, self.refused.is_some());
        let charges = rules
            .flat_map(|matched| matched.charges().enumerate().map(move |(number, charge)| (matched, number, charge)));
        charges.zip(&self.ruled).map_while(|((matched, number, charge), ruled)| {
            (*charge.rule == *ruled.id).then_some(RuledCharge { matched, number, charge, ruled })
        })
    }
}
