//! When the store fails: what becomes of the request, and what the store is told afterwards.

use smallvec::SmallVec;

use super::fallback::{self, Lack, Taking, Terms};
use super::ruling::{Decided, DecidedBy};
use super::{Charges, Limiter, Ruling, enforced, shadows};
use crate::{Matched, Mode};
use tidegate_core::charge::groups;
use tidegate_core::store::{Adjustment, Answer, Decisions};
use tidegate_core::{Charge, Clock, Store, StoreError};

/// The most keys that one call tells the store of.
const MOST_REPORTED: usize = 128;

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Decides a request that the store could not decide in one go: rule by rule for those in the shadow.
    pub(super) async fn check_after<'m>(
        &self,
        error: &StoreError,
        matched: &Matched<'_, '_>,
        charges: &[Charge<'m>],
        ruling: &mut Ruling<'m>,
    ) {
        let (counting, in_shadow) = groups(charges);
        if !counting.is_empty() {
            let terms = fallback::terms(enforced(matched));
            let decided = self.decide_group(error.among(0..counting.len()), counting, &terms, Taking::All).await;
            self.count(counting, &decided);
            ruling.add(Mode::Enforce, counting, (&decided.decisions, &decided.by), decided.receipts);
        }
        let mut first = counting.len();
        let rules = shadows(matched).filter(|rule| rule.charges().next().is_some());
        for (shadow, rule) in in_shadow.zip(rules) {
            let terms = fallback::terms(std::iter::once(rule));
            // A request that does not go ahead would not have been charged to this rule either.
            let taking = if ruling.is_allowed() { Taking::All } else { Taking::Nothing };
            let error = error.among(first..first + shadow.len());
            let alone: Charges<'_> = shadow.iter().map(|charge| charge.group(0)).collect();
            let decided = self.decide_group(error, &alone, &terms, taking).await;
            ruling.add(Mode::Shadow, shadow, (&decided.decisions, &decided.by), decided.receipts);
            first += shadow.len();
        }
    }

    /// Decides the charges of a group by the terms of their rules, or by the store if it has failed for others only.
    pub(super) async fn decide_group(
        &self,
        error: Option<StoreError>,
        charges: &[Charge<'_>],
        terms: &[Terms<'_>],
        taking: Taking,
    ) -> Decided {
        if let Some(error) = error {
            return self.decide_after(error, charges, terms, taking).await;
        }
        let decided = match taking {
            Taking::All => self.store.decide(charges).await.map(Decided::from),
            Taking::Nothing => self.store.peek(charges).await.map(Decided::from),
            Taking::NothingAsRefused => self.left_in_store(charges, charges.len()).await.map(Decided::from),
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
        terms: &[Terms<'_>],
        taking: Taking,
    ) -> Decided {
        let lack = self.lack(&error);
        let decided = match Split::by(&error, charges, terms) {
            Some(split) => self.decide_around(&split, charges, terms, lack, taking).await,
            None => self.fallback.decide(charges, terms, lack, taking),
        };
        for (terms, _) in terms.iter().zip(&decided.by).filter(|(_, by)| **by == DecidedBy::AllowEnded) {
            self.watch.closed(terms.rule, &error);
        }
        decided
    }

    fn lack(&self, error: &StoreError) -> Lack {
        Lack { away: self.watch.failed(error, self.now()), unknown: error.may_have_charged() }
    }

    /// Decides some charges by the store, and by policy those whose keys it cannot use.
    ///
    /// The store comes first, once it is known that the policies would allow. If one of them is overtaken in between by
    /// another request, what the store charged stays charged: this denies too much rather than too little.
    async fn decide_around(
        &self,
        split: &Split<'_>,
        charges: &[Charge<'_>],
        terms: &[Terms<'_>],
        lack: Lack,
        taking: Taking,
    ) -> Decided {
        let preview = self.fallback.decide(&split.unusable, &split.unusable_terms, lack, Taking::Nothing);
        let answer = match taking {
            Taking::All if preview.is_allowed() => self.store.decide(&split.others).await,
            Taking::All | Taking::NothingAsRefused => {
                self.left_in_store(&split.others, split.others.len()).await.map(spending_nothing)
            }
            Taking::Nothing => self.store.peek(&split.others).await.map(spending_nothing),
        };
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                // The store fails altogether.
                let now = self.lack(&error);
                return self.fallback.decide(charges, terms, Lack { away: now.away.max(lack.away), ..now }, taking);
            }
        };
        self.watch.answered(|| self.now());
        let by_policy = match taking {
            Taking::All if preview.is_allowed() && answer.is_allowed() => {
                self.fallback.decide(&split.unusable, &split.unusable_terms, lack, Taking::All)
            }
            Taking::All if preview.is_allowed() => {
                self.fallback.decide(&split.unusable, &split.unusable_terms, lack, Taking::NothingAsRefused)
            }
            Taking::All | Taking::Nothing | Taking::NothingAsRefused => preview,
        };
        if !by_policy.is_allowed()
            && let Some(receipt) = answer.receipt.take()
        {
            // What cannot be given back now comes back by itself when it expires.
            let _ = self.store.settle(&receipt, &vec![0; receipt.held.len()]).await;
        }
        split.join(answer, by_policy)
    }

    /// What charges would be answered, each by itself; of the first so many, what they leave unspent where they would be
    /// allowed.
    pub(super) async fn left_in_store(
        &self,
        charges: &[Charge<'_>],
        tell_left: usize,
    ) -> Result<Decisions, StoreError> {
        let free = charges.iter().take(tell_left).map(|charge| charge.cost(0));
        let asked: Charges<'_> = charges.iter().copied().chain(free).collect();
        let peeked = self.store.peek(&asked).await?;
        let (decisions, left) = peeked.split_at(charges.len().min(peeked.len()));
        let left = left.iter().map(Some).chain(std::iter::repeat(None));
        let told = decisions.iter().zip(left).map(|(decision, left)| match left {
            Some(left) if decision.is_allowed() => *left,
            _ => *decision,
        });
        Ok(told.collect())
    }

    /// Tells the store of what this process has admitted by itself while the store was away, as penalties, key by key: as
    /// much of it as still counts. Says how many keys wait to be told; a caller that wants to be done calls again.
    ///
    /// One call tells of at most 128 keys, one after the other, and stops at the first failure. A key whose report may
    /// have arrived is not reported again. Nobody calls this by itself: a server does from time to time, at the pace that
    /// it wants.
    pub async fn report_local(&self) -> usize {
        for _ in 0..MOST_REPORTED {
            let Some(owed) = self.fallback.ledger.next() else { break };
            let cost = owed.cost(self.now());
            if cost == 0 {
                continue;
            }
            let charge = Charge::new(&owed.rule, &owed.key, owed.limit()).cost(cost);
            let told = self.noted(self.store.adjust(&charge, Adjustment::Penalty).await);
            match told {
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

/// A request's charges: those whose keys the store cannot use, and the others.
struct Split<'a> {
    is_unusable: SmallVec<[bool; 8]>,
    unusable: Charges<'a>,
    unusable_terms: SmallVec<[Terms<'a>; 4]>,
    others: Charges<'a>,
}

impl<'a> Split<'a> {
    /// `None` if the store failed for all of them.
    fn by(error: &StoreError, charges: &[Charge<'a>], terms: &[Terms<'a>]) -> Option<Split<'a>> {
        let StoreError::UnusableKey { charges: unusable, .. } = error else { return None };
        let is_unusable: SmallVec<[bool; 8]> = (0..charges.len()).map(|index| unusable.contains(&index)).collect();
        let (mut unusable, mut unusable_terms, mut others) = (Charges::new(), SmallVec::new(), Charges::new());
        for ((charge, terms), is_unusable) in charges.iter().zip(terms).zip(&is_unusable) {
            if *is_unusable {
                unusable.push(*charge);
                unusable_terms.push(*terms);
            } else {
                others.push(*charge);
            }
        }
        let some_of_each = !unusable.is_empty() && !others.is_empty();
        some_of_each.then_some(Split { is_unusable, unusable, unusable_terms, others })
    }

    /// The decisions on both kinds, in the order of the request.
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
