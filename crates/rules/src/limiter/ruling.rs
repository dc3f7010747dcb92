//! Rulings: the answers of a limiter.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Generation;
use super::aliases::{self, FoldedAliases};
use crate::{KeyFault, Matched, Mode, RefusingRule};
use tidegate_core::disclosure::{Disclosure, QuotaUnit};
use tidegate_core::limit::Recovery;
use tidegate_core::store::{Answer, Decisions};
use tidegate_core::{Charge, Decision, Micros, Receipt, RuleId, Verdict};

/// The decision on one request.
///
/// It may borrow the names of its limits from the rules, which spares reference counts. [`Ruling::into_owned`] makes one that
/// can be kept.
#[derive(Clone, Debug)]
pub struct Ruling<'r> {
    /// The generation of the rules that decided it.
    pub generation: u64,
    /// Whether it may go ahead, as far as the rules that are enforced say.
    pub verdict: Verdict,
    /// The rule that refused it because it could not make its key of it, whatever the limits say.
    pub refused: Option<KeyRefusal>,
    /// The decisions of all limits: first those that are enforced, in the order that
    /// [`Verdict::binding`] counts in, then those in shadow mode.
    pub ruled: SmallVec<[Ruled<'r>; 4]>,
    /// The receipts to settle when the request is over, with [`Limiter::settle`](super::Limiter::settle).
    pub receipts: SmallVec<[Receipt; 1]>,
    /// `None` unless keys can have two names, while the [secret](crate::Secret::with_previous) that names them is
    /// rotated. Each limit is told of once all the same.
    pub key_aliases: Option<Box<KeyAliases>>,
    /// The ids of rules that charged the key which requests without one share (`on_missing_key: share`); `None` for most
    /// requests.
    pub unkeyed: Option<Box<[Arc<str>]>>,
}

/// Data of keys that have two names.
#[derive(Clone, Debug, Default)]
pub struct KeyAliases {
    /// For each of [`Ruling::ruled`], when the first of the names has nothing to get back any more.
    soonest_reset: SmallVec<[Micros; 4]>,
}

/// The rule that refused a request, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRefusal {
    /// The rule's id.
    pub rule: Arc<str>,
    /// The fault of the key that the rule would charge.
    pub fault: KeyFault,
}

impl From<RefusingRule<'_>> for KeyRefusal {
    fn from(RefusingRule { rule, fault }: RefusingRule<'_>) -> KeyRefusal {
        KeyRefusal { rule: rule.id().into(), fault }
    }
}

/// The decision of one limit of a rule.
#[derive(Clone, Debug)]
pub struct Ruled<'r> {
    /// The limit, by the id that its state belongs to.
    pub id: Cow<'r, RuleId>,
    /// Whether the limit is enforced.
    pub mode: Mode,
    /// The decision.
    pub decision: Decision,
    /// The way in which the limit recovers.
    pub recovery: Recovery,
    /// The properties of the limit that clients may see.
    pub disclosure: Disclosure,
    /// The maker of the decision, which says how exact its numbers are.
    pub by: DecidedBy,
    /// The cost that the request asked for; 0 if it only looked, or gave something back.
    pub cost: u64,
}

impl<'r> Ruled<'r> {
    /// The decision on a charge.
    #[inline]
    fn new(id: Cow<'r, RuleId>, mode: Mode, charge: &Charge<'_>, (decision, by): (Decision, DecidedBy)) -> Ruled<'r> {
        let (recovery, disclosure, cost) = (charge.limit.recovery(), charge.disclosure, charge.cost);
        Ruled { id, mode, decision, recovery, disclosure, by, cost }
    }
}

impl Ruled<'_> {
    /// The time until more than what remains can be admitted, where that is known ([`Recovery::more_after`]).
    #[must_use]
    pub fn more_after(&self) -> Option<Micros> {
        match self.by {
            DecidedBy::Store | DecidedBy::Local => self.recovery.more_after(&self.decision),
            // Nothing was counted, so the wait is all that is known.
            DecidedBy::Limit | DecidedBy::Allow | DecidedBy::AllowEnded | DecidedBy::Deny => {
                self.decision.retry_after()
            }
        }
    }

    /// The unit that it counts.
    #[must_use]
    pub const fn unit(&self) -> QuotaUnit {
        match self.recovery {
            Recovery::OnRelease => QuotaUnit::ConcurrentRequests,
            Recovery::Steady(_) | Recovery::AtOnce(_) | Recovery::Rolling(_) => self.disclosure.unit,
        }
    }
}

/// The maker of a limit's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecidedBy {
    /// The store. The numbers are those that everyone shares.
    Store,
    /// The limit alone, while the store could not: it can never hold as much as the request costs.
    Limit,
    /// The rule's `on_store_failure: allow`. Nothing is counted, so all seems to be left.
    Allow,
    /// The same, but the time for which the rule lets requests pass was over: denied.
    AllowEnded,
    /// The rule's `on_store_failure: deny`. Nothing is left, and the wait is a guess at when to ask again.
    Deny,
    /// The rule's `on_store_failure: local`. The numbers are those of this process and its share of the limit.
    Local,
}

impl DecidedBy {
    /// Its name, the same at every listener.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DecidedBy::Store => "store",
            DecidedBy::Limit => "limit",
            DecidedBy::Allow => "allow",
            DecidedBy::AllowEnded => "allow_ended",
            DecidedBy::Deny => "deny",
            DecidedBy::Local => "local",
        }
    }
}

impl<'r> Ruling<'r> {
    /// Whether the request may go ahead.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.refused.is_none() && self.verdict.is_allowed()
    }

    /// Whether a limit that counts was decided without the store.
    #[must_use]
    pub fn is_by_policy(&self) -> bool {
        self.ruled.iter().any(|ruled| ruled.mode == Mode::Enforce && ruled.by != DecidedBy::Store)
    }

    /// The enforced limits that say no.
    pub fn deniers(&self) -> impl Iterator<Item = &Ruled<'r>> {
        self.ruled.iter().filter(|ruled| ruled.mode == Mode::Enforce && !ruled.decision.is_allowed())
    }

    /// The same, borrowing nothing.
    #[must_use]
    pub fn into_owned(self) -> Ruling<'static> {
        let Ruling { generation, verdict, refused, ruled, receipts, key_aliases, unkeyed } = self;
        let ruled = ruled.into_iter().map(|ruled| Ruled { id: Cow::Owned(ruled.id.into_owned()), ..ruled }).collect();
        Ruling { generation, verdict, refused, ruled, receipts, key_aliases, unkeyed }
    }

    /// Takes the ruling out, borrowing nothing, and leaves one of no limits behind.
    #[must_use]
    pub fn take(&mut self) -> Ruling<'static> {
        let taken = Ruling {
            generation: self.generation,
            verdict: std::mem::replace(&mut self.verdict, Verdict::NONE),
            refused: self.refused.take(),
            ruled: std::mem::take(&mut self.ruled),
            receipts: std::mem::take(&mut self.receipts),
            key_aliases: self.key_aliases.take(),
            unkeyed: self.unkeyed.take(),
        };
        taken.into_owned()
    }

    /// The instant from which on nothing that a limit took can be refunded, whichever name of the key it was taken from.
    /// `ruled` is at `place` among all.
    pub(super) fn soonest_reset(&self, place: usize, ruled: &Ruled<'_>) -> Micros {
        match &self.key_aliases {
            None => ruled.decision.reset_after,
            Some(names) => names.soonest_reset.get(place).copied().unwrap_or_default(),
        }
    }

    /// A ruling that no rule governs.
    #[inline]
    pub(super) fn of_nothing(generation: &Generation) -> Self {
        Ruling::blank(generation, None)
    }

    #[inline]
    pub(super) fn begin(generation: &Generation, matched: &Matched<'_, '_>) -> Self {
        let mut ruling = Ruling::blank(generation, matched.refused.map(KeyRefusal::from));
        if matched.is_any_unkeyed {
            ruling.note_unkeyed(matched);
        }
        ruling
    }

    #[cold]
    #[inline(never)]
    fn note_unkeyed(&mut self, matched: &Matched<'_, '_>) {
        let unkeyed = matched.rules.iter().filter(|rule| rule.is_unkeyed);
        self.unkeyed = Some(unkeyed.map(|rule| Arc::clone(rule.rule.shared_id())).collect());
    }

    #[inline]
    fn blank(generation: &Generation, refused: Option<KeyRefusal>) -> Self {
        Ruling {
            generation: generation.number,
            verdict: Verdict::NONE,
            refused,
            ruled: SmallVec::new(),
            receipts: SmallVec::new(),
            key_aliases: generation.rules.secret().has_previous().then(Box::default),
            unkeyed: None,
        }
    }

    /// Adds decisions on charges. `by` is empty if the store made all of them.
    pub(super) fn add(
        &mut self,
        mode: Mode,
        charges: &[Charge<'r>],
        (decisions, by): (&[Decision], &[DecidedBy]),
        receipts: impl IntoIterator<Item = Receipt>,
    ) {
        if mode == Mode::Enforce && self.key_aliases.is_none() {
            self.verdict = Verdict::of(decisions);
        }
        self.add_ruled(mode, charges, (decisions, by), Cow::Borrowed);
        if mode == Mode::Enforce && self.key_aliases.is_some() {
            self.conclude();
        }
        receipts.into_iter().for_each(|receipt| self.receipts.push(receipt));
    }

    /// Adds decisions on charges, under the ids that `id` makes, and leaves the verdict to [`Ruling::conclude`].
    pub(super) fn add_ruled<'c>(
        &mut self,
        mode: Mode,
        charges: &[Charge<'c>],
        (decisions, by): (&[Decision], &[DecidedBy]),
        id: impl Fn(&'c RuleId) -> Cow<'r, RuleId>,
    ) {
        if self.key_aliases.is_some() {
            return self.add_folded(mode, &aliases::fold(charges, decisions, by), id);
        }
        let decided = charges.iter().zip(decisions).enumerate();
        self.ruled.extend(decided.map(|(index, (charge, &decision))| {
            let by = by.get(index).copied().unwrap_or(DecidedBy::Store);
            Ruled::new(id(charge.rule), mode, charge, (decision, by))
        }));
    }

    #[cold]
    fn add_folded<'c>(&mut self, mode: Mode, folded: &FoldedAliases<'c>, id: impl Fn(&'c RuleId) -> Cow<'r, RuleId>) {
        let decided = folded.charges.iter().zip(&folded.decisions).enumerate();
        self.ruled.extend(decided.map(|(index, (charge, &decision))| {
            let by = folded.by.get(index).copied().unwrap_or(DecidedBy::Store);
            Ruled::new(id(charge.rule), mode, charge, (decision, by))
        }));
        if let Some(names) = &mut self.key_aliases {
            names.soonest_reset.extend(folded.soonest_reset.iter().copied());
        }
    }

    /// Computes the verdict, once all decisions are added.
    pub(super) fn conclude(&mut self) {
        let enforced = self.ruled.iter().filter(|ruled| ruled.mode == Mode::Enforce);
        self.verdict = Verdict::of(&enforced.map(|ruled| ruled.decision).collect::<Decisions>());
    }
}

/// Decisions on charges, with what made each.
#[derive(Debug, Default)]
pub(super) struct Decided {
    pub(super) decisions: Decisions,
    /// For each decision; empty if the store made all of them.
    pub(super) by: SmallVec<[DecidedBy; 4]>,
    pub(super) receipts: SmallVec<[Receipt; 1]>,
}

impl Decided {
    pub(super) fn is_allowed(&self) -> bool {
        self.decisions.iter().all(Decision::is_allowed)
    }

    pub(super) fn push(&mut self, decision: Decision, by: DecidedBy) {
        self.decisions.push(decision);
        self.by.push(by);
    }
}

impl From<Answer> for Decided {
    fn from(Answer { decisions, receipt, .. }: Answer) -> Decided {
        Decided { decisions, by: SmallVec::new(), receipts: receipt.into_iter().collect() }
    }
}

impl From<Decisions> for Decided {
    fn from(decisions: Decisions) -> Decided {
        Decided { decisions, ..Decided::default() }
    }
}
