//! What several rules ask of one request, decided together or one by one.

use std::borrow::Cow;
use std::ops::Range;

use smallvec::SmallVec;

use super::fallback::{Taking, Terms};
use super::ruling::{Decided, DecidedBy, Ruling};
use super::{Charges, Limiter, group_numbers};
use crate::{MatchedRule, Mode, OnStoreFailure};
use tidegate_core::charge::groups;
use tidegate_core::limit::Limit;
use tidegate_core::store::{Adjustment, Answer};
use tidegate_core::{Charge, Clock, Decision, Micros, Outcome, Store, StoreError};

/// What one rule asks of a request.
pub(super) struct Claim<'a> {
    pub(super) charges: Charges<'a>,
    /// Whether it can deny the request.
    pub(super) mode: Mode,
    pub(super) aim: Aim,
    pub(super) without_store: WithoutStore<'a>,
}

/// What is to become of a claim's charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    /// They are made.
    Take,
    /// They are only asked about: whether they could be made.
    Check,
    /// Their costs are given back.
    GiveBack,
}

/// Who says what becomes of a claim while the store is away.
#[derive(Clone, Copy)]
pub(super) enum WithoutStore<'a> {
    Rule(&'a MatchedRule<'a, 'a>),
    Policy(OnStoreFailure),
}

/// What becomes of a request that is denied, and of its other charges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Charging {
    /// All charges are made, or none. What is denied spends nothing.
    #[default]
    Together,
    /// Every charge is made by itself, whatever becomes of the others, and also if it is denied: its key then owes
    /// something, at most one capacity.
    Always,
}

/// Where each claim's answers are among all that were given.
pub(super) type Places = SmallVec<[Range<usize>; 2]>;

/// Some of a request's claims, each with its number.
type Picked<'c, 'a> = SmallVec<[(usize, &'c Claim<'a>); 2]>;

/// What was decided on claims, each by itself.
type Apart = SmallVec<[Decided; 2]>;

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Decides the claims, and adds the answers to `ruling`: those of claims that can deny first. The store is asked once for
    /// all that is taken and once for all that is only asked about; what is given back, and what is charged although it is
    /// denied, are questions of their own.
    pub(super) async fn decide_claims(
        &self,
        claims: &[Claim<'_>],
        charging: Charging,
        refused: bool,
        ruling: &mut Ruling<'_>,
    ) -> Places {
        let mut places: Places = SmallVec::from_elem(0..0, claims.len());
        match charging {
            Charging::Together => self.decide_together(claims, refused, ruling, &mut places).await,
            Charging::Always => self.decide_always(claims, ruling, &mut places).await,
        }
        ruling.conclude();
        places
    }

    async fn decide_together(
        &self,
        claims: &[Claim<'_>],
        mut refused: bool,
        ruling: &mut Ruling<'_>,
        places: &mut Places,
    ) {
        let mut later: SmallVec<[(usize, &Claim<'_>, Decided); 2]> = SmallVec::new();
        // What takes nothing is asked first: nobody can be charged after it has said no.
        for aim in [Aim::Check, Aim::Take] {
            if !claims.iter().any(|claim| claim.aim == aim) {
                continue;
            }
            let deniers = pick(claims, |claim| claim.mode == Mode::Enforce && claim.aim == aim);
            let others = pick(claims, |claim| claim.mode != Mode::Enforce && claim.aim == aim);
            let taking = match aim {
                Aim::Take if !refused => Takings { counting: Taking::All, others: Taking::All },
                Aim::Take => Takings { counting: Taking::NothingAsRefused, others: Taking::Nothing },
                Aim::Check | Aim::GiveBack => Takings::LOOK,
            };
            let (decided, apart) = self.ask(&deniers, &others, taking).await;
            refused |= !decided.is_allowed();
            if !decided.by.is_empty() {
                self.count(&charges(&deniers, &[]), &decided);
            }
            note(ruling, places, &deniers, decided);
            later.extend(others.into_iter().zip(apart).map(|((index, claim), decided)| (index, claim, decided)));
        }
        for (index, claim) in in_turn(claims).filter(|(_, claim)| claim.aim == Aim::GiveBack) {
            let decided = self.give_back(claim, !refused).await;
            match claim.mode {
                Mode::Enforce => note(ruling, places, &[(index, claim)], decided),
                Mode::Shadow | Mode::Off => later.push((index, claim, decided)),
            }
        }
        later.sort_unstable_by_key(|(index, ..)| *index);
        for (index, claim, decided) in later {
            note(ruling, places, &[(index, claim)], decided);
        }
    }

    async fn decide_always(&self, claims: &[Claim<'_>], ruling: &mut Ruling<'_>, places: &mut Places) {
        let mut all: SmallVec<[Option<Decided>; 2]> = claims.iter().map(|_| None).collect();
        for (aim, taking) in
            [(Aim::Take, Takings { counting: Taking::All, others: Taking::All }), (Aim::Check, Takings::LOOK)]
        {
            let picked = pick(claims, |claim| claim.aim == aim);
            // None of them hangs on another, so nothing is what they hang on.
            let (_, apart) = self.ask(&[], &picked, taking).await;
            for ((index, claim), mut decided) in picked.into_iter().zip(apart) {
                if claim.mode == Mode::Enforce {
                    self.count(&claim.charges, &decided);
                }
                if aim == Aim::Take && !decided.is_allowed() && decided.by.is_empty() {
                    self.charge_denied(claim, &mut decided).await;
                }
                if let Some(place) = all.get_mut(index) {
                    *place = Some(decided);
                }
            }
        }
        for (index, claim) in in_turn(claims) {
            let decided = match (all.get_mut(index).and_then(Option::take), claim.aim) {
                (Some(decided), _) => decided,
                (None, Aim::GiveBack) => self.give_back(claim, true).await,
                // It asks for nothing.
                (None, Aim::Take | Aim::Check) => Decided::default(),
            };
            note(ruling, places, &[(index, claim)], decided);
        }
    }

    /// Charges what was denied all the same, and has the decisions tell how the keys stand then.
    async fn charge_denied(&self, claim: &Claim<'_>, decided: &mut Decided) {
        for (charge, decision) in claim.charges.iter().zip(&mut decided.decisions) {
            // A charge that fails is one that the request got for nothing; it was denied anyway.
            if let Ok(after) = self.noted(self.store.adjust(charge, Adjustment::Penalty).await) {
                *decision = charge.limit.recovery().charged_though_denied(decision, &after);
            }
        }
    }

    /// Asks the store one question: about the charges of `counting` together, and about those of each of the `others` by
    /// itself. What it cannot decide is decided as their rules say.
    async fn ask<'a>(
        &self,
        counting: &[(usize, &Claim<'a>)],
        others: &[(usize, &Claim<'a>)],
        taking: Takings,
    ) -> (Decided, Apart) {
        let charges = charges(counting, others);
        if charges.is_empty() {
            return (Decided::default(), Apart::new());
        }
        let number = counting.iter().map(|(_, claim)| claim.charges.len()).sum();
        let answer = match taking.counting {
            Taking::All => self.store.decide(&charges).await,
            Taking::Nothing | Taking::NothingAsRefused => {
                let tell_left = if taking.others == Taking::Nothing { number } else { charges.len() };
                self.look(&charges, tell_left).await
            }
        };
        match answer {
            Ok(mut answer) => {
                self.watch.answered(|| self.now());
                let apart = std::mem::take(&mut answer.shadows).into_iter().map(Decided::from).collect();
                (Decided::from(answer), apart)
            }
            Err(error) => Box::pin(self.ask_after(&error, counting, others, (&charges, number), taking)).await,
        }
    }

    /// What charges would be answered, with what the first of them leave unspent.
    async fn look(&self, charges: &[Charge<'_>], tell_left: usize) -> Result<Answer, StoreError> {
        let mut looked = self.left_in_store(charges, tell_left).await?.into_iter();
        let (counting, others) = groups(charges);
        let counting = Answer::new(looked.by_ref().take(counting.len()).collect(), None);
        let others = others.map(|other| Answer::new(looked.by_ref().take(other.len()).collect(), None));
        Ok(Answer { shadows: others.collect(), ..counting })
    }

    /// What becomes of a question that the store could not answer as a whole.
    async fn ask_after(
        &self,
        error: &StoreError,
        counting: &[(usize, &Claim<'_>)],
        others: &[(usize, &Claim<'_>)],
        (charges, number): (&[Charge<'_>], usize),
        taking: Takings,
    ) -> (Decided, Apart) {
        let mut decided = Decided::default();
        if number > 0 {
            let shares: Shares = counting.iter().flat_map(|(_, claim)| claim.shares()).collect();
            let terms = terms(counting, &shares);
            let charges = charges.get(..number).unwrap_or_default();
            decided = self.decide_group(error.among(0..number), charges, &terms, taking.counting).await;
        }
        // What does not go ahead takes nothing elsewhere either.
        let taking = if decided.is_allowed() || taking.others != Taking::All { taking.others } else { Taking::Nothing };
        let (mut apart, mut first) = (Apart::new(), number);
        for other in others {
            let claim = other.1;
            let shares = claim.shares();
            let terms = terms(std::slice::from_ref(other), &shares);
            let error = error.among(first..first + claim.charges.len());
            apart.push(self.decide_group(error, &claim.charges, &terms, taking).await);
            first += claim.charges.len();
        }
        (decided, apart)
    }

    /// Gives back what the claim says, or if `really` is not so only looks. Nobody is denied because of it.
    async fn give_back(&self, claim: &Claim<'_>, really: bool) -> Decided {
        let mut decided = Decided::default();
        for charge in &claim.charges {
            let answer = if really {
                self.noted(self.store.adjust(charge, Adjustment::Credit).await)
            } else {
                let peeked = self.noted(self.store.peek(&[charge.cost(0)]).await);
                peeked.map(|decisions| decisions.first().copied().unwrap_or(Decision::NONE))
            };
            let max = charge.limit.capacity();
            let outcome = Outcome::Allow { delay: Micros::ZERO };
            match answer {
                Ok(decision) => decided.push(Decision { outcome, ..decision }, DecidedBy::Store),
                Err(_) => {
                    let unknown = Decision { outcome, limit: max, remaining: max, reset_after: Micros::ZERO };
                    decided.push(unknown, DecidedBy::Allow);
                }
            }
        }
        decided
    }
}

/// What is to be taken of the charges that count, and of the others if those go ahead.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Takings {
    counting: Taking,
    others: Taking,
}

impl Takings {
    /// Nothing.
    const LOOK: Takings = Takings { counting: Taking::NothingAsRefused, others: Taking::NothingAsRefused };
}

/// The claims that ask for something and are like this.
fn pick<'c, 'a>(claims: &'c [Claim<'a>], is_so: impl Fn(&Claim<'a>) -> bool) -> Picked<'c, 'a> {
    claims.iter().enumerate().filter(|(_, claim)| !claim.charges.is_empty() && is_so(claim)).collect()
}

/// The charges that count, and then those of each of the others as a group of its own.
fn charges<'a>(counting: &[(usize, &Claim<'a>)], others: &[(usize, &Claim<'a>)]) -> Charges<'a> {
    let counting = counting.iter().flat_map(|(_, claim)| claim.charges.iter().copied());
    let others = others.iter().zip(group_numbers());
    let others = others.flat_map(|((_, claim), group)| claim.charges.iter().map(move |charge| charge.group(group)));
    counting.chain(others).collect()
}

/// The claims that can deny, then the others.
fn in_turn<'c, 'a>(claims: &'c [Claim<'a>]) -> impl Iterator<Item = (usize, &'c Claim<'a>)> {
    let of =
        |can_deny: bool| claims.iter().enumerate().filter(move |(_, claim)| (claim.mode == Mode::Enforce) == can_deny);
    of(true).chain(of(false))
}

fn note(ruling: &mut Ruling<'_>, places: &mut Places, claims: &[(usize, &Claim<'_>)], decided: Decided) {
    let mut begun = 0;
    for (index, claim) in claims {
        let (from, range) = (ruling.ruled.len(), begun..begun + claim.charges.len());
        begun = range.end;
        let decisions = decided.decisions.get(range.clone()).unwrap_or_default();
        let by = decided.by.get(range).unwrap_or_default();
        ruling.add_ruled(claim.mode, &claim.charges, (decisions, by), |id| Cow::Owned(id.clone()));
        if claim.aim != Aim::Take {
            ruling.ruled.iter_mut().skip(from).for_each(|ruled| ruled.cost = 0);
        }
        if let Some(place) = places.get_mut(*index) {
            *place = from..ruling.ruled.len();
        }
    }
    ruling.receipts.extend(decided.receipts);
}

type Shares = SmallVec<[Option<Limit>; 4]>;

impl Claim<'_> {
    /// What each limit becomes while this process decides alone.
    fn shares(&self) -> Shares {
        match self.without_store {
            WithoutStore::Rule(rule) => rule.shares().map(Option::<&Limit>::copied).collect(),
            WithoutStore::Policy(OnStoreFailure::Local { percent }) => {
                self.charges.iter().map(|charge| charge.limit.share(percent).ok()).collect()
            }
            WithoutStore::Policy(OnStoreFailure::Allow { .. } | OnStoreFailure::Deny) => {
                SmallVec::from_elem(None, self.charges.len())
            }
        }
    }
}

/// What each claim's rule says of a store that is away, charge by charge.
fn terms<'m, 'a: 'm>(claims: &[(usize, &'m Claim<'a>)], shares: &'m [Option<Limit>]) -> SmallVec<[Terms<'m>; 4]> {
    let charges = claims.iter().flat_map(|&(_, claim)| claim.charges.iter().map(move |charge| (claim, charge)));
    let terms = charges.zip(shares).map(|((claim, charge), share)| {
        let (rule, policy) = match claim.without_store {
            WithoutStore::Rule(rule) => (rule.rule.id(), rule.rule.on_store_failure()),
            WithoutStore::Policy(policy) => (charge.rule.as_str(), policy),
        };
        Terms { rule, policy, share: share.as_ref() }
    });
    terms.collect()
}
