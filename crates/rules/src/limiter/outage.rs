//! Outages of the store: decisions by the failure policies, and reports to the store afterwards.

use smallvec::SmallVec;

use super::batch::{ChargeModes, claims_of, pick};
use super::charges::{ChargeList, Charges, charging};
use super::decided_by::DecidedBy;
use super::fallback::{ChargeMode, Outage, OutageTerms};
use super::ruling::Decided;
use super::{Limiter, Ruling};
use crate::{Matched, Mode};
use tidegate_core::store::{Adjustment, Answer, Decisions};
use tidegate_core::{Charge, Clock, Store, StoreError};

/// Maximum number of keys that one call reports to the store.
const MOST_REPORTED: usize = 128;

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Decides a request that the store could not decide at once. Each rule in shadow mode is decided separately.
    pub(super) async fn check_after<'m>(
        &self,
        error: &StoreError,
        matched: &Matched<'_, '_>,
        charges: &Charges<'m>,
        ruling: &mut Ruling<'m>,
    ) {
        let is_refused = ruling.refused.is_some();
        let claims = claims_of(charging(matched, is_refused), charges.all());
        let counting = pick(&claims, |claim| claim.mode == Mode::Enforce);
        let others = pick(&claims, |claim| claim.mode != Mode::Enforce);
        let (decided, apart) = self.ask_after(error, &counting, &others, charges, ChargeModes::of(is_refused)).await;
        let deciding = charges.counting();
        if !deciding.is_empty() {
            self.count(deciding, &decided);
            ruling.add(Mode::Enforce, deciding, (&decided.decisions, &decided.by), decided.receipts);
        }
        for (shadow, decided) in charges.shadows().into_iter().zip(apart) {
            ruling.add(Mode::Shadow, shadow, (&decided.decisions, &decided.by), decided.receipts);
        }
    }

    /// Decides the charges of a group by the terms of their rules, or by the store if it failed only for other charges.
    pub(super) async fn decide_group(
        &self,
        error: Option<StoreError>,
        charges: &[Charge<'_>],
        terms: &[OutageTerms<'_>],
        taking: ChargeMode,
    ) -> Decided {
        if let Some(error) = error {
            return self.decide_after(error, charges, terms, taking).await;
        }
        let decided = match taking {
            ChargeMode::Commit => self.decide_by_store(charges).await.map(Decided::from),
            ChargeMode::Peek => self.store.peek(charges).await.map(Decided::from),
            ChargeMode::PeekRemaining => self.left_in_store(charges, charges.len()).await.map(Decided::from),
        };
        match decided {
            Ok(decided) => {
                self.watch.answered(|| self.now());
                decided
            }
            Err(error) => self.decide_after(error, charges, terms, taking).await,
        }
    }

    /// Decides charges that the store could not decide.
    pub(super) async fn decide_after(
        &self,
        error: StoreError,
        charges: &[Charge<'_>],
        terms: &[OutageTerms<'_>],
        taking: ChargeMode,
    ) -> Decided {
        let Some(split) = OutageSplit::by(&error, charges, terms) else {
            return self.decide_by_policy(&error, charges, terms, taking);
        };
        let decided = self.decide_around(&split, charges, terms, self.outage(&error), taking).await;
        self.note_closed(&error, terms, &decided);
        decided
    }

    /// Decides charges by the failure policies alone, without the store.
    pub(super) fn decide_by_policy(
        &self,
        error: &StoreError,
        charges: &[Charge<'_>],
        terms: &[OutageTerms<'_>],
        taking: ChargeMode,
    ) -> Decided {
        let decided = self.fallback.decide(charges, terms, self.outage(error), taking);
        self.note_closed(error, terms, &decided);
        decided
    }

    fn note_closed(&self, error: &StoreError, terms: &[OutageTerms<'_>], decided: &Decided) {
        for (terms, _) in terms.iter().zip(&decided.by).filter(|(_, by)| **by == DecidedBy::AllowEnded) {
            self.watch.closed(terms.rule, error);
        }
    }

    fn outage(&self, error: &StoreError) -> Outage {
        Outage { duration: self.watch.failed(error, self.now()), may_have_charged: error.may_have_charged() }
    }

    /// Decides charges by the store, except those whose keys it cannot use, which are decided by policy.
    ///
    /// The store is asked first, if the policies would allow their charges. If a concurrent request then uses up what a
    /// policy would have allowed, the charges in the store stay: this denies too much rather than too little.
    async fn decide_around(
        &self,
        split: &OutageSplit<'_>,
        charges: &[Charge<'_>],
        terms: &[OutageTerms<'_>],
        outage: Outage,
        taking: ChargeMode,
    ) -> Decided {
        let preview = self.fallback.decide(&split.unusable, &split.unusable_terms, outage, ChargeMode::Peek);
        let answer = match taking {
            ChargeMode::Commit if preview.is_allowed() => self.decide_by_store(&split.others).await,
            ChargeMode::Commit | ChargeMode::PeekRemaining => {
                self.left_in_store(&split.others, split.others.len()).await.map(spending_nothing)
            }
            ChargeMode::Peek => self.store.peek(&split.others).await.map(spending_nothing),
        };
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                // The store now fails for all keys.
                let now = self.outage(&error);
                return self.fallback.decide(
                    charges,
                    terms,
                    Outage { duration: now.duration.max(outage.duration), ..now },
                    taking,
                );
            }
        };
        self.watch.answered(|| self.now());
        let by_policy = match taking {
            ChargeMode::Commit if preview.is_allowed() && answer.is_allowed() => {
                self.fallback.decide(&split.unusable, &split.unusable_terms, outage, ChargeMode::Commit)
            }
            ChargeMode::Commit if preview.is_allowed() => {
                self.fallback.decide(&split.unusable, &split.unusable_terms, outage, ChargeMode::PeekRemaining)
            }
            ChargeMode::Commit | ChargeMode::Peek | ChargeMode::PeekRemaining => preview,
        };
        if !by_policy.is_allowed()
            && let Some(receipt) = answer.receipt.take()
        {
            // If this fails, the reserved cost stays spent once the receipt expires, and slots are released.
            let _ = self.store.settle(&receipt, &vec![0; receipt.held.len()]).await;
        }
        split.join(answer, by_policy)
    }

    /// Peeks at charges, each separately. For those of the first `tell_left` that would be allowed, the decisions contain
    /// the remaining quota without the charge.
    pub(super) async fn left_in_store(
        &self,
        charges: &[Charge<'_>],
        tell_left: usize,
    ) -> Result<Decisions, StoreError> {
        let free = charges.iter().take(tell_left).map(|charge| charge.cost(0));
        let asked: ChargeList<'_> = charges.iter().copied().chain(free).collect();
        let peeked = self.store.peek(&asked).await?;
        let (decisions, left) = peeked.split_at(charges.len().min(peeked.len()));
        let left = left.iter().map(Some).chain(std::iter::repeat(None));
        let peeked = decisions.iter().zip(left).map(|(decision, left)| match left {
            Some(left) if decision.is_allowed() => *left,
            _ => *decision,
        });
        Ok(peeked.collect())
    }

    /// Reports to the store what this process admitted alone while the store was unavailable: key by key, as penalties, as
    /// far as it still counts. Returns the number of keys that are still to be reported.
    ///
    /// One call reports at most 128 keys, one after the other, and stops at the first failure. A key whose report may have
    /// arrived is not reported again. The limiter does not call this itself: a server calls it periodically.
    pub async fn report_local(&self) -> usize {
        for _ in 0..MOST_REPORTED {
            let Some(owed) = self.fallback.ledger.next() else { break };
            let cost = owed.cost(self.now());
            if cost == 0 {
                continue;
            }
            let charge = Charge::new(&owed.rule, &owed.key, owed.limit()).cost(cost);
            let adjusted = self.noted(self.store.adjust(&charge, Adjustment::Penalty).await);
            match adjusted {
                Ok(_) => self.watch.reported(cost),
                Err(StoreError::AnswerLost { .. }) => break,
                Err(StoreError::UnusableKey { .. }) => self.watch.unreported(),
                Err(_) => {
                    self.fallback.ledger.put_back(owed);
                    break;
                }
            }
        }
        self.fallback.ledger.waiting()
    }
}

fn spending_nothing(decisions: Decisions) -> Answer {
    Answer::new(decisions, None)
}

/// A request's charges, split into those whose keys the store cannot use and the others.
struct OutageSplit<'a> {
    is_unusable: SmallVec<[bool; 8]>,
    unusable: ChargeList<'a>,
    unusable_terms: SmallVec<[OutageTerms<'a>; 4]>,
    others: ChargeList<'a>,
}

impl<'a> OutageSplit<'a> {
    /// `None` if the store failed for all of the charges.
    fn by(error: &StoreError, charges: &[Charge<'a>], terms: &[OutageTerms<'a>]) -> Option<OutageSplit<'a>> {
        let StoreError::UnusableKey { charges: unusable, .. } = error else { return None };
        let is_unusable: SmallVec<[bool; 8]> = (0..charges.len()).map(|index| unusable.contains(&index)).collect();
        let (mut unusable, mut unusable_terms, mut others) = (ChargeList::new(), SmallVec::new(), ChargeList::new());
        for ((charge, terms), is_unusable) in charges.iter().zip(terms).zip(&is_unusable) {
            if *is_unusable {
                unusable.push(*charge);
                unusable_terms.push(*terms);
            } else {
                others.push(*charge);
            }
        }
        let some_of_each = !unusable.is_empty() && !others.is_empty();
        some_of_each.then_some(OutageSplit { is_unusable, unusable, unusable_terms, others })
    }

    /// Joins the decisions on both kinds, in the order of the request.
    fn join(&self, answer: Answer, by_policy: Decided) -> Decided {
        let receipts = by_policy.receipts.into_iter().chain(answer.receipt).collect();
        let mut joined = Decided { receipts, ..Decided::default() };
        let mut of_store = answer.decisions.into_iter();
        let mut of_policy = by_policy.decisions.into_iter().zip(by_policy.by);
        for &is_unusable in &self.is_unusable {
            let next = match is_unusable {
                true => of_policy.next(),
                false => of_store.next().map(|decision| (decision, DecidedBy::Store)),
            };
            if let Some((decision, by)) = next {
                joined.push(decision, by);
            }
        }
        joined
    }
}
