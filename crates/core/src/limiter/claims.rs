//! What several rules ask of one request, decided together or one by one.

use std::ops::Range;

use smallvec::SmallVec;

use super::fallback::{Taking, Terms};
use super::ruling::{Decided, DecidedBy, Ruling};
use super::{Charges, Limiter};
use crate::clock::Clock;
use crate::decision::{Decision, Outcome};
use crate::limit::Limit;
use crate::rules::{MatchedRule, Mode, OnStoreFailure};
use crate::store::{Adjustment, Store};
use crate::time::Micros;

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

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Decides the claims, and adds the answers to `ruling`: those of claims that can deny first.
    pub(super) async fn decide_claims(
        &self,
        claims: &[Claim<'_>],
        charging: Charging,
        refused: bool,
        ruling: &mut Ruling,
    ) -> Places {
        let mut places: Places = SmallVec::from_elem(0..0, claims.len());
        match charging {
            Charging::Together => self.decide_together(claims, refused, ruling, &mut places).await,
            Charging::Always => {
                for (index, claim) in in_turn(claims) {
                    let decided = self.decide_always(claim).await;
                    note(ruling, &mut places, &[(index, claim)], decided);
                }
            }
        }
        ruling.conclude();
        places
    }

    async fn decide_together(&self, claims: &[Claim<'_>], mut refused: bool, ruling: &mut Ruling, places: &mut Places) {
        let deniers = |aim| -> SmallVec<[(usize, &Claim<'_>); 2]> {
            let of_aim = |claim: &Claim<'_>| claim.mode == Mode::Enforce && claim.aim == aim;
            claims.iter().enumerate().filter(|(_, claim)| of_aim(claim)).collect()
        };
        // What takes nothing is asked first: nobody can be charged after it has said no.
        for (aim, taking) in [(Aim::Check, Taking::NothingAsRefused), (Aim::Take, Taking::All)] {
            let asked = deniers(aim);
            if asked.is_empty() {
                continue;
            }
            let decided = self.ask(&asked, if refused { Taking::NothingAsRefused } else { taking }).await;
            refused |= !decided.is_allowed();
            self.count(&decided);
            note(ruling, places, &asked, decided);
        }
        for (index, claim) in deniers(Aim::GiveBack) {
            let decided = self.give_back_claim(claim, !refused).await;
            note(ruling, places, &[(index, claim)], decided);
        }
        for (index, claim) in claims.iter().enumerate().filter(|(_, claim)| claim.mode != Mode::Enforce) {
            let decided = match (claim.aim, refused) {
                (Aim::Take, false) => self.ask(&[(index, claim)], Taking::All).await,
                (Aim::Take, true) => self.ask(&[(index, claim)], Taking::Nothing).await,
                (Aim::Check, _) => self.ask(&[(index, claim)], Taking::NothingAsRefused).await,
                (Aim::GiveBack, refused) => self.give_back_claim(claim, !refused).await,
            };
            note(ruling, places, &[(index, claim)], decided);
        }
    }

    async fn decide_always(&self, claim: &Claim<'_>) -> Decided {
        let decided = match claim.aim {
            Aim::Take => self.ask(&[(0, claim)], Taking::All).await,
            Aim::Check => self.ask(&[(0, claim)], Taking::NothingAsRefused).await,
            Aim::GiveBack => return self.give_back_claim(claim, true).await,
        };
        if claim.mode == Mode::Enforce {
            self.count(&decided);
        }
        if claim.aim == Aim::Take && !decided.is_allowed() && decided.by.is_empty() {
            for charge in &claim.charges {
                // A charge that fails is one that the request got for nothing; it was denied anyway.
                let _ = self.noted(self.store.adjust(charge, Adjustment::Penalty).await);
            }
        }
        decided
    }

    /// Asks the store about the charges of all these claims. What it cannot decide is decided as their rules say.
    async fn ask(&self, claims: &[(usize, &Claim<'_>)], taking: Taking) -> Decided {
        let charges: Charges<'_> = claims.iter().flat_map(|(_, claim)| claim.charges.iter().copied()).collect();
        if charges.is_empty() {
            return Decided::default();
        }
        let answer = match taking {
            Taking::All => self.store.decide(&charges).await.map(Decided::from),
            Taking::Nothing => self.store.peek(&charges).await.map(Decided::from),
            Taking::NothingAsRefused => self.left_in_store(&charges).await.map(Decided::from),
        };
        match answer {
            Ok(decided) => {
                self.watch.answered(|| self.now());
                decided
            }
            Err(error) => {
                let shares: Shares = claims.iter().flat_map(|(_, claim)| claim.shares()).collect();
                let terms = terms(claims, &shares);
                Box::pin(self.decide_after(error, &charges, &terms, taking)).await
            }
        }
    }

    /// Gives back what the claim says, or if `really` is not so only looks. Nobody is denied because of it.
    async fn give_back_claim(&self, claim: &Claim<'_>, really: bool) -> Decided {
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

/// The claims that can deny, then the others.
fn in_turn<'c, 'a>(claims: &'c [Claim<'a>]) -> impl Iterator<Item = (usize, &'c Claim<'a>)> {
    let of =
        |can_deny: bool| claims.iter().enumerate().filter(move |(_, claim)| (claim.mode == Mode::Enforce) == can_deny);
    of(true).chain(of(false))
}

fn note(ruling: &mut Ruling, places: &mut Places, claims: &[(usize, &Claim<'_>)], decided: Decided) {
    let mut begun = 0;
    for (index, claim) in claims {
        let (from, range) = (ruling.ruled.len(), begun..begun + claim.charges.len());
        begun = range.end;
        let decisions = decided.decisions.get(range.clone()).unwrap_or_default();
        let by = decided.by.get(range).unwrap_or_default();
        ruling.add_ruled(claim.mode, &claim.charges, (decisions, by));
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
