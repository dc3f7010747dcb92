//! Questions: everything that a store is asked to decide for one request.

use crate::charge::Charge;

/// The charges of one request: counting charges, and those of rules in shadow mode.
///
/// ```
/// use tidegate_core::{Charge, Key, Limit, MemoryStore, Question, RuleId};
///
/// let (enforced, tried_out) = (RuleId::new("enforced"), RuleId::new("tried out"));
/// let (wide, narrow): (Limit, Limit) = ("fixed 10/day".parse()?, "fixed 1/day".parse()?);
/// let key = Key::from("alice");
/// let shadow = [Charge::new(&tried_out, &key, &narrow)];
/// let question = Question { counting: &[Charge::new(&enforced, &key, &wide)], shadows: &[&shadow] };
///
/// let store = MemoryStore::new();
/// store.decide(question)?;
/// let answer = store.decide(question)?;
/// assert!(answer.is_allowed() && !answer.shadows[0].is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Question<'q> {
    /// The counting charges. All are made, or none.
    pub counting: &'q [Charge<'q>],
    /// The charges of each rule in shadow mode, which do not affect the outcome. If the request is allowed, each rule is
    /// decided separately: all of its charges or none. If the request is denied, they are only peeked at.
    pub shadows: &'q [&'q [Charge<'q>]],
}

impl<'q> Question<'q> {
    /// The counting charges, followed by those of each rule in shadow mode.
    pub fn groups(self) -> impl Iterator<Item = &'q [Charge<'q>]> + Clone {
        std::iter::once(self.counting).chain(self.shadows.iter().copied())
    }

    /// All charges, in the order of their groups. [`StoreError::UnusableKey`](crate::StoreError::UnusableKey) contains
    /// indexes into it.
    pub fn charges(self) -> impl Iterator<Item = &'q Charge<'q>> + Clone {
        self.groups().flatten()
    }

    /// Returns `true` if there are no charges.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.charges().next().is_none()
    }
}

/// A request without rules in shadow mode.
impl<'q> From<&'q [Charge<'q>]> for Question<'q> {
    fn from(counting: &'q [Charge<'q>]) -> Question<'q> {
        Question { counting, shadows: &[] }
    }
}

/// A request without rules in shadow mode.
impl<'q, const N: usize> From<&'q [Charge<'q>; N]> for Question<'q> {
    fn from(counting: &'q [Charge<'q>; N]) -> Question<'q> {
        Question { counting, shadows: &[] }
    }
}

/// A request without rules in shadow mode.
impl<'q> From<&'q Vec<Charge<'q>>> for Question<'q> {
    fn from(counting: &'q Vec<Charge<'q>>) -> Question<'q> {
        Question { counting, shadows: &[] }
    }
}
