//! Rules and a store, put together.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use arc_swap::ArcSwap;
use smallvec::SmallVec;

use crate::charge::Charge;
use crate::clock::Clock;
use crate::decision::{Decision, Outcome};
use crate::facts::Facts;
use crate::key::RuleId;
use crate::memory::MemoryStore;
use crate::receipt::Receipt;
use crate::rules::{Matched, MatchedRule, Mode, RuleSet};
use crate::store::{Answer, Store, StoreError};
use crate::verdict::Verdict;

/// Decides requests by rules that may be replaced while it runs.
///
/// Each request is decided by the rules of one generation from beginning to end. What was counted belongs to the rules'
/// ids, so a rule that is still there after a change keeps it.
pub struct Limiter<S> {
    rules: ArcSwap<Generation>,
    generations: AtomicU64,
    store: S,
}

/// Rules, and the how-manieth they are.
#[derive(Debug)]
pub struct Generation {
    /// Counted from 1.
    pub number: u64,
    /// The rules.
    pub rules: RuleSet,
}

/// What was decided on one request.
#[derive(Clone, Debug)]
pub struct Ruling {
    /// The generation of the rules that decided it.
    pub generation: u64,
    /// Whether it may go ahead, as far as the rules that are enforced say.
    pub verdict: Verdict,
    /// The rule that refused it because it lacks a part of its key, whatever the limits say.
    pub refused: Option<Arc<str>>,
    /// What the limits of the rules that govern it say: first those that are enforced, in the order that
    /// [`Verdict::telling`] counts in, then those in the shadow.
    pub ruled: SmallVec<[Ruled; 4]>,
    /// What is to be given back when the request is over.
    pub receipts: SmallVec<[Receipt; 1]>,
}

/// What one limit of a rule says.
#[derive(Clone, Debug)]
pub struct Ruled {
    /// The limit, by the id that its state belongs to.
    pub id: RuleId,
    /// Whether it counts.
    pub mode: Mode,
    /// What it says.
    pub decision: Decision,
}

impl Ruling {
    /// Whether the request may go ahead.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.refused.is_none() && self.verdict.is_allowed()
    }
}

impl<S> Limiter<S> {
    /// Decides by `rules`, with state in `store`.
    pub fn new(rules: RuleSet, store: S) -> Limiter<S> {
        let first = Generation { number: 1, rules };
        Limiter { rules: ArcSwap::from_pointee(first), generations: AtomicU64::new(1), store }
    }

    /// The store that keeps the state.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// The present rules.
    pub fn rules(&self) -> Arc<Generation> {
        self.rules.load_full()
    }

    /// Decides by other rules from now on. Says their generation.
    pub fn replace(&self, rules: RuleSet) -> u64 {
        let number = self.generations.fetch_add(1, Ordering::Relaxed) + 1;
        self.rules.store(Arc::new(Generation { number, rules }));
        number
    }
}

type Charges<'a> = SmallVec<[Charge<'a>; 4]>;

impl<S: Store> Limiter<S> {
    /// Decides a request, and charges it if it may go ahead.
    ///
    /// # Errors
    /// If the store cannot decide.
    pub async fn check(&self, facts: &(impl Facts + Sync + ?Sized)) -> Result<Ruling, StoreError> {
        let generation = self.rules.load();
        let matched = generation.rules.matching(facts);
        let enforced: Charges<'_> = matched.charges().collect();
        let mut ruling = Ruling::begin(&generation, &matched);
        if ruling.refused.is_none() {
            ruling.enforce(&enforced, self.store.decide(&enforced).await?);
        }
        for rule in shadows(&matched) {
            let charges: Charges<'_> = rule.charges().collect();
            // A request that does not go ahead would not have been charged to this rule either.
            let answer = if ruling.is_allowed() {
                self.store.decide(&charges).await?
            } else {
                Answer { decisions: self.store.peek(&charges).await?, receipt: None }
            };
            ruling.shadow(&charges, answer);
        }
        Ok(ruling)
    }
}

impl<C: Clock> Limiter<MemoryStore<C>> {
    /// As [`Limiter::check`], for callers that do not await: a store in memory never makes them wait.
    ///
    /// # Errors
    /// If the store cannot decide.
    pub fn check_now(&self, facts: &(impl Facts + Sync + ?Sized)) -> Result<Ruling, StoreError> {
        match pin!(self.check(facts)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(ruling) => ruling,
            Poll::Pending => unreachable!("the futures of a store in memory are ready at once"),
        }
    }
}

fn shadows<'m, 'r, 'f>(matched: &'m Matched<'r, 'f>) -> impl Iterator<Item = &'m MatchedRule<'r, 'f>> {
    matched.rules.iter().filter(|matched| matched.rule.mode() == Mode::Shadow)
}

impl Ruling {
    fn begin(generation: &Generation, matched: &Matched<'_, '_>) -> Ruling {
        Ruling {
            generation: generation.number,
            verdict: Verdict::of(&[]),
            refused: matched.refused.map(|rule| rule.id().into()),
            ruled: SmallVec::new(),
            receipts: SmallVec::new(),
        }
    }

    fn enforce(&mut self, charges: &[Charge<'_>], answer: Answer) {
        self.verdict = Verdict::of(&answer.decisions);
        self.add(charges, answer, Mode::Enforce);
    }

    fn shadow(&mut self, charges: &[Charge<'_>], answer: Answer) {
        self.add(charges, answer, Mode::Shadow);
    }

    fn add(&mut self, charges: &[Charge<'_>], answer: Answer, mode: Mode) {
        let ruled = |(charge, decision): (&Charge<'_>, Decision)| Ruled { id: charge.rule.clone(), mode, decision };
        self.ruled.extend(charges.iter().zip(answer.decisions).map(ruled));
        self.receipts.extend(answer.receipt);
    }

    /// The enforced limits that say no.
    pub fn deniers(&self) -> impl Iterator<Item = &Ruled> {
        let denies =
            |ruled: &&Ruled| ruled.mode == Mode::Enforce && !matches!(ruled.decision.outcome, Outcome::Allow { .. });
        self.ruled.iter().filter(denies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::facts::Request;
    use crate::time::{Micros, Timestamp};

    fn rules(text: &str) -> RuleSet {
        RuleSet::parse("test", text).unwrap_or_else(|findings| panic!("{findings}")).rules
    }

    fn limiter(text: &str) -> (Limiter<MemoryStore<ManualClock>>, ManualClock) {
        let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
        (Limiter::new(rules(text), MemoryStore::with_clock(clock.clone())), clock)
    }

    #[test]
    fn all_rules_must_admit_and_a_denial_charges_none() {
        let (limiter, _) = limiter(
            "rules:\n- { id: each, key: user, limit: 5/h }\n- { id: all, limit: 7/h }\n- { id: posts, match: { method: POST }, key: user, limit: 1/h }",
        );
        let get = Request::new("GET", "/").user("alice");
        let post = Request::new("POST", "/").user("alice");
        assert!(limiter.check_now(&post).unwrap().is_allowed());
        let denied = limiter.check_now(&post).unwrap();
        assert_eq!(denied.deniers().map(|ruled| ruled.id.as_str()).collect::<Vec<_>>(), ["posts"]);
        for left in (0..4).rev() {
            assert_eq!(limiter.check_now(&get).unwrap().ruled[0].decision.remaining, left);
        }
        assert!(!limiter.check_now(&get).unwrap().is_allowed());
        assert!(limiter.check_now(&Request::new("GET", "/").user("bob")).unwrap().is_allowed());
    }

    #[test]
    fn a_shadow_counts_and_reports_and_never_denies() {
        let (limiter, _) = limiter("rules:\n- { id: real, limit: 3/h }\n- { id: dark, limit: 1/h, mode: shadow }");
        let request = Request::new("GET", "/");
        let says: Vec<_> = (0..4)
            .map(|_| {
                let ruling = limiter.check_now(&request).unwrap();
                let dark = ruling.ruled.iter().find(|ruled| ruled.mode == Mode::Shadow).unwrap();
                (ruling.is_allowed(), dark.decision.is_allowed())
            })
            .collect();
        assert_eq!(says, [(true, true), (true, false), (true, false), (false, false)]);
    }

    #[test]
    fn a_replaced_rule_keeps_what_was_spent() {
        let (limiter, clock) = limiter("rules:\n- { id: api, limit: 10/h }");
        let request = Request::new("GET", "/");
        for _ in 0..8 {
            assert!(limiter.check_now(&request).unwrap().is_allowed());
        }
        assert_eq!(
            limiter.replace(rules("rules:\n- { id: api, limit: sliding 12/h }\n- { id: new, limit: 100/h }")),
            2
        );
        let ruling = limiter.check_now(&request).unwrap();
        assert_eq!((ruling.generation, ruling.ruled[0].decision.remaining), (2, 3));
        clock.advance(Micros::from_secs(10));
        assert_eq!(limiter.check_now(&request).unwrap().ruled[0].decision.remaining, 2);
    }

    #[test]
    fn a_rule_may_refuse_what_lacks_its_key() {
        let (limiter, _) = limiter("rules:\n- { id: keyed, key: api_key, limit: 10/h, on_missing_key: refuse }");
        let ruling = limiter.check_now(&Request::new("GET", "/")).unwrap();
        assert_eq!((ruling.is_allowed(), ruling.refused.as_deref()), (false, Some("keyed")));
        assert!(limiter.check_now(&Request::new("GET", "/").api_key("k")).unwrap().is_allowed());
    }
}
