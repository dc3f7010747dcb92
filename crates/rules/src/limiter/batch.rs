//! Batch decisions: the claims of several rules on one request, decided together or separately.

use std::borrow::Cow;
use std::ops::Range;

use smallvec::SmallVec;

use super::Limiter;
use super::charges::{ChargeList, Charges};
use super::decided_by::DecidedBy;
use super::fallback::{ChargeMode, OutageTerms};
use super::ruling::{Decided, Ruling};
use crate::{MatchedRule, Mode, OnStoreFailure};
use tidegate_core::limit::Limit;
use tidegate_core::store::{Adjustment, Answer};
use tidegate_core::{Charge, Clock, Decision, Micros, Outcome, Store, StoreError};

/// The charges of one rule for a request.
pub(super) struct RuleCharges<'a> {
    pub(super) charges: ChargeList<'a>,
    /// Whether the claim can deny the request.
    pub(super) mode: Mode,
    pub(super) action: Action,
    pub(super) failure_policy: PolicySource<'a>,
}

/// The action on the charges of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Makes the charges.
    Take,
    /// Checks whether the charges could be made.
    Check,
    /// Refunds the costs of the charges.
    Refund,
}

/// The source of a claim's policy for an unavailable store.
#[derive(Clone, Copy)]
pub(super) enum PolicySource<'a> {
    Rule(&'a MatchedRule<'a, 'a>),
    Policy(OnStoreFailure),
}

/// Whether the charges of one request depend on each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Charging {
    /// All charges are made, or none. A denied request spends nothing.
    #[default]
    Together,
    /// Every charge is made separately, even if others or the charge itself are denied. The key of a denied charge then has
    /// a debt of at most one capacity.
    Always,
}

/// For each claim, the range of its limits in [`Ruling::ruled`].
pub(super) type Ranges = SmallVec<[Range<usize>; 2]>;

/// Some of a request's claims, with their indexes.
pub(super) type Picked<'c, 'a> = SmallVec<[(usize, &'c RuleCharges<'a>); 2]>;

/// Decisions on claims, each decided separately.
pub(super) type Apart = SmallVec<[Decided; 2]>;

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Decides the claims, and adds the answers to `ruling`: those of claims that can deny first. The store is asked once
    /// for all charges to make, and once for all charges to check. Refunds, and charges that are made although denied, are
    /// separate calls.
    pub(super) async fn decide_claims(
        &self,
        claims: &[RuleCharges<'_>],
        charging: Charging,
        refused: bool,
        ruling: &mut Ruling<'_>,
    ) -> Ranges {
        let mut places: Ranges = SmallVec::from_elem(0..0, claims.len());
        match charging {
            Charging::Together => self.decide_together(claims, refused, ruling, &mut places).await,
            Charging::Always => self.decide_always(claims, ruling, &mut places).await,
        }
        ruling.conclude();
        places
    }

    async fn decide_together(
        &self,
        claims: &[RuleCharges<'_>],
        mut refused: bool,
        ruling: &mut Ruling<'_>,
        places: &mut Ranges,
    ) {
        let mut later: SmallVec<[(usize, &RuleCharges<'_>, Decided); 2]> = SmallVec::new();
        // Checks come first, so that a request that fails one is charged nothing.
        for action in [Action::Check, Action::Take] {
            if !claims.iter().any(|claim| claim.action == action) {
                continue;
            }
            let deniers = pick(claims, |claim| claim.mode == Mode::Enforce && claim.action == action);
            let others = pick(claims, |claim| claim.mode != Mode::Enforce && claim.action == action);
            let taking = match action {
                Action::Take => ChargeModes::of(refused),
                Action::Check | Action::Refund => ChargeModes::PEEK,
            };
            let (decided, apart) = self.ask_claims(&deniers, &others, taking).await;
            refused |= !decided.is_allowed();
            if !decided.by.is_empty() {
                self.count(charges(&deniers, &[]).counting(), &decided);
            }
            note(ruling, places, &deniers, decided);
            later.extend(others.into_iter().zip(apart).map(|((index, claim), decided)| (index, claim, decided)));
        }
        for (index, claim) in in_turn(claims).filter(|(_, claim)| claim.action == Action::Refund) {
            let decided = self.refund_claim(claim, !refused).await;
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

    async fn decide_always(&self, claims: &[RuleCharges<'_>], ruling: &mut Ruling<'_>, places: &mut Ranges) {
        let mut all: SmallVec<[Option<Decided>; 2]> = claims.iter().map(|_| None).collect();
        for (action, taking) in [(Action::Take, ChargeModes::of(false)), (Action::Check, ChargeModes::PEEK)] {
            let picked = pick(claims, |claim| claim.action == action);
            // Each claim is decided alone: there is no group of counting charges.
            let (_, apart) = self.ask_claims(&[], &picked, taking).await;
            for ((index, claim), mut decided) in picked.into_iter().zip(apart) {
                if claim.mode == Mode::Enforce {
                    self.count(&claim.charges, &decided);
                }
                if action == Action::Take && !decided.is_allowed() && decided.by.is_empty() {
                    self.charge_denied(claim, &mut decided).await;
                }
                if let Some(place) = all.get_mut(index) {
                    *place = Some(decided);
                }
            }
        }
        for (index, claim) in in_turn(claims) {
            let decided = match (all.get_mut(index).and_then(Option::take), claim.action) {
                (Some(decided), _) => decided,
                (None, Action::Refund) => self.refund_claim(claim, true).await,
                // The claim has no charges.
                (None, Action::Take | Action::Check) => Decided::default(),
            };
            note(ruling, places, &[(index, claim)], decided);
        }
    }

    /// Makes charges although they were denied, and updates the decisions to the state of the keys afterwards.
    async fn charge_denied(&self, claim: &RuleCharges<'_>, decided: &mut Decided) {
        for (charge, decision) in claim.charges.iter().zip(&mut decided.decisions) {
            // If the store fails here, the key is charged too little, for a request that was denied anyway.
            if let Ok(after) = self.noted(self.store.adjust(charge, Adjustment::Penalty).await) {
                *decision = charge.limit.recovery().charged_though_denied(decision, &after);
            }
        }
    }

    /// Asks the store one question: the charges of `counting` are decided together, and those of each of the `others`
    /// separately. If the store fails, the failure policies decide.
    async fn ask_claims<'a>(
        &self,
        counting: &[(usize, &RuleCharges<'a>)],
        others: &[(usize, &RuleCharges<'a>)],
        taking: ChargeModes,
    ) -> (Decided, Apart) {
        let charges = charges(counting, others);
        if charges.all().is_empty() {
            return (Decided::default(), Apart::new());
        }
        let mut answer = Answer::default();
        match self.ask(&charges, taking, &mut answer).await {
            Ok(()) => {
                self.watch.answered(|| self.now());
                let apart = std::mem::take(&mut answer.shadows).into_iter().map(Decided::from).collect();
                (Decided::from(answer), apart)
            }
            Err(error) => Box::pin(self.ask_after(&error, counting, others, &charges, taking)).await,
        }
    }

    /// Decides claims after the store failed for some or all of them.
    pub(super) async fn ask_after(
        &self,
        error: &StoreError,
        counting: &[(usize, &RuleCharges<'_>)],
        others: &[(usize, &RuleCharges<'_>)],
        charges: &Charges<'_>,
        taking: ChargeModes,
    ) -> (Decided, Apart) {
        let mut decided = Decided::default();
        let number = charges.counting().len();
        if number > 0 {
            let shares: Shares = counting.iter().flat_map(|(_, claim)| claim.shares()).collect();
            let terms = terms(counting, &shares);
            let error = error.among(0..number);
            decided = self.decide_group(error, charges.counting(), &terms, taking.counting).await;
        }
        // A denied request takes nothing under rules in shadow mode either.
        let taking =
            if decided.is_allowed() || taking.others != ChargeMode::Commit { taking.others } else { ChargeMode::Peek };
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

    /// Refunds the costs of a claim if `really`, and otherwise only peeks. A refund never denies a request.
    async fn refund_claim(&self, claim: &RuleCharges<'_>, really: bool) -> Decided {
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

/// The decisions on counting charges, and on the others if those are allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct ChargeModes {
    pub(super) counting: ChargeMode,
    pub(super) others: ChargeMode,
}

impl ChargeModes {
    /// Peeks at all charges.
    const PEEK: ChargeModes = ChargeModes { counting: ChargeMode::PeekRemaining, others: ChargeMode::PeekRemaining };

    /// Makes the charges, or none of them if the request is refused.
    pub(super) const fn of(is_refused: bool) -> ChargeModes {
        match is_refused {
            false => ChargeModes { counting: ChargeMode::Commit, others: ChargeMode::Commit },
            true => ChargeModes { counting: ChargeMode::PeekRemaining, others: ChargeMode::Peek },
        }
    }
}

/// The claims of rules that made these charges, in order.
pub(super) fn claims_of<'a>(
    rules: impl Iterator<Item = &'a MatchedRule<'a, 'a>>,
    charges: &[Charge<'a>],
) -> SmallVec<[RuleCharges<'a>; 4]> {
    let mut rest = charges;
    let claim = |rule: &'a MatchedRule<'a, 'a>| {
        let (own, behind) = rest.split_at(rule.charges_and_aliases().count().min(rest.len()));
        rest = behind;
        let charges = own.iter().copied().collect();
        RuleCharges { charges, mode: rule.mode, action: Action::Take, failure_policy: PolicySource::Rule(rule) }
    };
    rules.map(claim).collect()
}

/// The claims that have charges and satisfy `is_so`, with their indexes.
pub(super) fn pick<'c, 'a>(claims: &'c [RuleCharges<'a>], is_so: impl Fn(&RuleCharges<'a>) -> bool) -> Picked<'c, 'a> {
    claims.iter().enumerate().filter(|(_, claim)| !claim.charges.is_empty() && is_so(claim)).collect()
}

/// Charges of counting claims; each other claim becomes a shadow group.
fn charges<'a>(counting: &[(usize, &RuleCharges<'a>)], others: &[(usize, &RuleCharges<'a>)]) -> Charges<'a> {
    let mut charges = Charges::new();
    counting.iter().flat_map(|(_, claim)| &claim.charges).for_each(|charge| charges.count(*charge));
    others.iter().for_each(|(_, claim)| charges.shadow(claim.charges.iter().copied()));
    charges
}

/// The claims that can deny, followed by the others.
fn in_turn<'c, 'a>(claims: &'c [RuleCharges<'a>]) -> impl Iterator<Item = (usize, &'c RuleCharges<'a>)> {
    let of =
        |can_deny: bool| claims.iter().enumerate().filter(move |(_, claim)| (claim.mode == Mode::Enforce) == can_deny);
    of(true).chain(of(false))
}

fn note(ruling: &mut Ruling<'_>, places: &mut Ranges, claims: &[(usize, &RuleCharges<'_>)], decided: Decided) {
    let mut begun = 0;
    for (index, claim) in claims {
        let (from, range) = (ruling.ruled.len(), begun..begun + claim.charges.len());
        begun = range.end;
        let decisions = decided.decisions.get(range.clone()).unwrap_or_default();
        let by = decided.by.get(range).unwrap_or_default();
        ruling.add_ruled(claim.mode, &claim.charges, (decisions, by), |id| Cow::Owned(id.clone()));
        if claim.action != Action::Take {
            ruling.ruled.iter_mut().skip(from).for_each(|ruled| ruled.cost = 0);
        }
        if let Some(place) = places.get_mut(*index) {
            *place = from..ruling.ruled.len();
        }
    }
    ruling.receipts.extend(decided.receipts);
}

type Shares = SmallVec<[Option<Limit>; 4]>;

impl RuleCharges<'_> {
    /// For each charge, the share of its limit that this process may decide alone.
    fn shares(&self) -> Shares {
        match self.failure_policy {
            PolicySource::Rule(rule) => rule.shares().map(Option::<&Limit>::copied).collect(),
            PolicySource::Policy(OnStoreFailure::Local { percent }) => {
                self.charges.iter().map(|charge| charge.limit.share(percent).ok()).collect()
            }
            PolicySource::Policy(OnStoreFailure::Allow { .. } | OnStoreFailure::Deny) => {
                SmallVec::from_elem(None, self.charges.len())
            }
        }
    }
}

/// The failure policies of claims, one for each charge.
fn terms<'m, 'a: 'm>(
    claims: &[(usize, &'m RuleCharges<'a>)],
    shares: &'m [Option<Limit>],
) -> SmallVec<[OutageTerms<'m>; 4]> {
    let charges = claims.iter().flat_map(|&(_, claim)| claim.charges.iter().map(move |charge| (claim, charge)));
    let terms = charges.zip(shares).map(|((claim, charge), share)| {
        let (rule, policy) = match claim.failure_policy {
            PolicySource::Rule(rule) => (rule.rule.id(), rule.rule.on_store_failure()),
            PolicySource::Policy(policy) => (charge.rule.as_str(), policy),
        };
        OutageTerms { rule, policy, share: share.as_ref() }
    });
    terms.collect()
}
