//! Rulings: the answers of a limiter.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Generation;
use super::aliases::{self, FoldedAliases};
use super::decided_by::DecidedBy;
use crate::{KeyFault, Matched, Mode, RefusingRule};
use tidegate_core::disclosure::{Disclosure, QuotaUnit};
use tidegate_core::limit::Recovery;
use tidegate_core::store::{Answer, Decisions};
use tidegate_core::{Charge, Decision, Micros, Receipt, RuleId, Verdict};

/// The decision on one request.
///
/// May borrow the names of limits from the rules, which avoids changing reference counts. [`Ruling::into_owned`] returns a
/// ruling that borrows nothing.
#[derive(Clone, Debug)]
pub struct Ruling<'r> {
    /// The generation of the rules that made the decision.
    pub generation: u64,
    /// Whether the request may go ahead, according to enforced rules.
    pub verdict: Verdict,
    /// The rule that refused the request because its key could not be determined, regardless of limits.
    pub refused: Option<KeyRefusal>,
    /// The decisions of all limits: first those that are enforced, in the order of [`Verdict::binding`], then those in
    /// shadow mode.
    pub ruled: SmallVec<[Ruled<'r>; 4]>,
    /// The receipts, to be settled with [`Limiter::settle`](super::Limiter::settle) when the request is over.
    pub receipts: SmallVec<[Receipt; 1]>,
    /// `None` unless keys can have two names, because the [secret](crate::Secret::with_previous) that names them is being
    /// rotated. Even then, `ruled` contains each limit once.
    pub key_aliases: Option<Box<KeyAliases>>,
    /// The ids of rules that charged the key shared by requests without a key (`on_missing_key: share`); `None` for most
    /// requests.
    pub unkeyed: Option<Box<[Arc<str>]>>,
}

/// Data of keys with two names.
#[derive(Clone, Debug, Default)]
pub struct KeyAliases {
    /// For each of [`Ruling::ruled`], the earlier of the reset times of both names.
    soonest_reset: SmallVec<[Micros; 4]>,
}

/// The rule that refused a request, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRefusal {
    /// The rule's id.
    pub rule: Arc<str>,
    /// The fault of the key.
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
    /// The limit, by the id to which its state belongs.
    pub id: Cow<'r, RuleId>,
    /// Whether the limit is enforced.
    pub mode: Mode,
    /// The decision.
    pub decision: Decision,
    /// The way in which the limit recovers.
    pub recovery: Recovery,
    /// The properties of the limit that clients may see.
    pub disclosure: Disclosure,
    /// The source of the decision, which determines how exact its numbers are.
    pub by: DecidedBy,
    /// The cost that the request asked for; 0 for a check or a refund.
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
    /// The time until more than what remains can be admitted, if it is known ([`Recovery::more_after`]).
    #[must_use]
    pub fn more_after(&self) -> Option<Micros> {
        match self.by {
            DecidedBy::Store | DecidedBy::Local => self.recovery.more_after(&self.decision),
            // Nothing was counted, so only the wait is known.
            DecidedBy::Limit | DecidedBy::Allow | DecidedBy::AllowEnded | DecidedBy::Deny => {
                self.decision.retry_after()
            }
        }
    }

    /// The unit of the limit.
    #[must_use]
    pub const fn unit(&self) -> QuotaUnit {
        match self.recovery {
            Recovery::OnRelease => QuotaUnit::ConcurrentRequests,
            Recovery::Steady(_) | Recovery::AtOnce(_) | Recovery::Rolling(_) => self.disclosure.unit,
        }
    }
}

impl<'r> Ruling<'r> {
    /// Returns `true` if the request may go ahead.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.refused.is_none() && self.verdict.is_allowed()
    }

    /// Returns `true` if an enforced limit was decided without the store.
    #[must_use]
    pub fn is_by_policy(&self) -> bool {
        self.ruled.iter().any(|ruled| ruled.mode == Mode::Enforce && ruled.by != DecidedBy::Store)
    }

    /// The enforced limits that deny the request.
    pub fn deniers(&self) -> impl Iterator<Item = &Ruled<'r>> {
        self.ruled.iter().filter(|ruled| ruled.mode == Mode::Enforce && !ruled.decision.is_allowed())
    }

    /// The same ruling, borrowing nothing.
    #[must_use]
    pub fn into_owned(self) -> Ruling<'static> {
        let Ruling { generation, verdict, refused, ruled, receipts, key_aliases, unkeyed } = self;
        let ruled = ruled.into_iter().map(|ruled| Ruled { id: Cow::Owned(ruled.id.into_owned()), ..ruled }).collect();
        Ruling { generation, verdict, refused, ruled, receipts, key_aliases, unkeyed }
    }

    /// Returns the ruling, borrowing nothing, and replaces it by one without limits.
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

    /// When nothing that a limit took can be refunded any longer, for either name of the key. `ruled` has the index
    /// `place`.
    pub(super) fn soonest_reset(&self, place: usize, ruled: &Ruled<'_>) -> Micros {
        match &self.key_aliases {
            None => ruled.decision.reset_after,
            Some(names) => names.soonest_reset.get(place).copied().unwrap_or_default(),
        }
    }

    /// The ruling for a request without rules.
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

    /// Adds decisions on charges, under the ids that `id` makes. The verdict is computed by [`Ruling::conclude`].
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

/// Decisions on charges, and what made each of them.
#[derive(Debug, Default)]
pub(super) struct Decided {
    pub(super) decisions: Decisions,
    /// The source of each decision; empty if the store made all of them.
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
