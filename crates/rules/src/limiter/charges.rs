//! The charges of a request in the order of questions to stores and of rulings: those of enforced rules, then those of each
//! rule in shadow mode.

use smallvec::SmallVec;

use crate::{Matched, MatchedRule, Mode};
use tidegate_core::{Charge, Question};

/// Some charges.
pub(super) type ChargeList<'a> = SmallVec<[Charge<'a>; 4]>;

/// The charges of each rule in shadow mode.
pub(super) type Shadows<'s, 'a> = SmallVec<[&'s [Charge<'a>]; 2]>;

/// All charges of a request: counting charges, followed by those of each rule in shadow mode.
#[derive(Default)]
pub(super) struct Charges<'a> {
    all: ChargeList<'a>,
    counting: usize,
    /// The number of charges of each rule in shadow mode.
    shadows: SmallVec<[usize; 2]>,
}

impl<'a> Charges<'a> {
    pub(super) fn new() -> Charges<'a> {
        Charges::default()
    }

    /// Adds a counting charge. Must be called before [`Charges::shadow`].
    #[inline]
    pub(super) fn count(&mut self, charge: Charge<'a>) {
        self.all.push(charge);
        self.counting += 1;
    }

    /// Adds the charges of one rule in shadow mode. Does nothing without charges.
    pub(super) fn shadow(&mut self, charges: impl Iterator<Item = Charge<'a>>) {
        let before = self.all.len();
        charges.for_each(|charge| self.all.push(charge));
        if self.all.len() > before {
            self.shadows.push(self.all.len() - before);
        }
    }

    pub(super) fn all(&self) -> &[Charge<'a>] {
        &self.all
    }

    pub(super) fn counting(&self) -> &[Charge<'a>] {
        &self.all[..self.counting]
    }

    pub(super) fn shadows(&self) -> Shadows<'_, 'a> {
        let mut rest = &self.all[self.counting..];
        let each = |&number: &usize| {
            let (shadow, others) = rest.split_at(number);
            rest = others;
            shadow
        };
        self.shadows.iter().map(each).collect()
    }

    /// The same charges as a question to a store. `shadows` must be [those of this list](Charges::shadows).
    #[inline]
    pub(super) fn question<'q>(&'q self, shadows: &'q [&'q [Charge<'q>]]) -> Question<'q> {
        Question { counting: self.counting(), shadows }
    }

    /// All charges, to be peeked at. Rules in shadow mode wait for the store as long as counting ones.
    pub(super) fn to_peek(&self) -> ChargeList<'a> {
        let mut all = self.all.clone();
        if self.counting > 0 {
            all[self.counting..].iter_mut().for_each(|charge| charge.deadline = None);
        }
        all
    }
}

/// Adds the charges of a request's rules, for the store to decide at once. A refused request is charged nothing under
/// enforced rules. `each` may change single charges.
#[inline]
pub(super) fn add_charges<'m>(
    charges: &mut Charges<'m>,
    matched: &'m Matched<'_, '_>,
    is_refused: bool,
    each: impl Fn(Charge<'m>) -> Charge<'m>,
) {
    // One by one: extending such a list takes as long as deciding a charge.
    for rule in enforced(matched).filter(|_| !is_refused) {
        rule.charges_and_aliases().for_each(|charge| charges.count(each(charge)));
    }
    for rule in shadows(matched) {
        charges.shadow(rule.charges_and_aliases().map(&each));
    }
}

pub(super) fn enforced<'m>(matched: &'m Matched<'_, '_>) -> impl Iterator<Item = &'m MatchedRule<'m, 'm>> {
    matched.rules.iter().filter(|matched| matched.mode == Mode::Enforce)
}

pub(super) fn shadows<'m>(matched: &'m Matched<'_, '_>) -> impl Iterator<Item = &'m MatchedRule<'m, 'm>> {
    matched.rules.iter().filter(|matched| matched.mode == Mode::Shadow)
}

/// The rules whose charges are sent to the store, in the order of the charges.
pub(super) fn charging<'m>(
    matched: &'m Matched<'_, '_>,
    is_refused: bool,
) -> impl Iterator<Item = &'m MatchedRule<'m, 'm>> {
    enforced(matched).filter(move |_| !is_refused).chain(shadows(matched))
}
