//! The same traffic with and without a tier, to a store in memory and to one in Redis.

use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::Config;
use tidegate_core::contract::faulty::Faulty;
use tidegate_core::limit::Algorithm;
use tidegate_core::store::Adjustment;
use tidegate_core::{
    Charge, Decision, Key, Limit, ManualClock, MemoryStore, Micros, Outcome, Receipt, RuleId, Settlement, Store,
    StoreError,
};
use tidegate_redis::RedisStore;
use tidegate_redis::tier::{Settings, Tier};

use crate::tier::server;
use crate::tier::support::start;

/// Each rule begins with the first of these limits, and is raised from time to time. A rule that is lowered by more than
/// half, or changes its algorithm, changes the debt of its keys when it is next evaluated; `fleet` tests that.
const LIMITS: [[&str; 3]; 8] = [
    ["5/s burst 9", "5/s burst 12", "5/s burst 15"],
    ["gcra 7/s burst 6", "gcra 7/s burst 7", "shaper 7/s queue 9"],
    ["fixed 20/min", "fixed 25/min", "fixed 30/min"],
    ["fixed 9/day calendar", "fixed 12/day calendar", "fixed 40/day calendar"],
    ["sliding 9/6s parts 3", "sliding 10/6s parts 3", "sliding 11/6s parts 3"],
    ["sliding 5/s", "sliding 7/s", "sliding 9/s"],
    ["log 9/10s", "log 11/10s", "log 14/10s"],
    ["concurrent 2 ttl 2s", "concurrent 4 ttl 2s", "concurrent 6 ttl 3s"],
];

#[derive(Clone, Copy, Debug)]
struct Asked {
    rule: usize,
    key: u8,
    cost: u64,
    reserve: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Decide(Vec<Asked>),
    /// The same request repeatedly.
    Insist(Vec<Asked>, u8, u64),
    Adjust(Asked, Adjustment),
    Reset(Asked),
    /// Settles the open receipt with this number, at this share in percent.
    Settle(usize, u64),
    Renew(usize),
    /// Raises the limit of this rule.
    Raise(usize),
    Wait(u64),
}

fn asked() -> impl Strategy<Value = Asked> {
    (0_usize..LIMITS.len(), 0_u8..3, prop_oneof![3 => Just(1_u64), 2 => 0_u64..14], prop::bool::weighted(0.2))
        .prop_map(|(rule, key, cost, reserve)| Asked { rule, key, cost, reserve })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let request = || prop::collection::vec(asked(), 1..4);
    let waits = || select(vec![0, 1, 1_000, 20_000, 77_777, 99_999, 250_000, 1_000_000, 7_000_000]);
    let step = prop_oneof![
        6 => request().prop_map(Step::Decide),
        6 => (request(), 2_u8..20, select(vec![0, 1, 999, 50_000])).prop_map(|(asked, times, wait)| Step::Insist(asked, times, wait)),
        1 => (asked(), select(vec![Adjustment::Penalty, Adjustment::Credit])).prop_map(|(asked, how)| Step::Adjust(asked, how)),
        1 => asked().prop_map(Step::Reset),
        2 => (0_usize..8, 0_u64..200).prop_map(|(number, share)| Step::Settle(number, share)),
        1 => (0_usize..8).prop_map(Step::Renew),
        1 => (0..LIMITS.len()).prop_map(Step::Raise),
        3 => waits().prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..80)
}

/// A store that can be recreated.
trait Fresh: Store {
    fn fresh(clock: &ManualClock) -> Self;
}

impl Fresh for MemoryStore<ManualClock> {
    fn fresh(clock: &ManualClock) -> Self {
        MemoryStore::with_clock(clock.clone())
    }
}

impl Fresh for RedisStore {
    fn fresh(clock: &ManualClock) -> Self {
        server::store(&server::prefix(), clock.clone())
    }
}

struct Twins<S> {
    tier: Tier<Faulty<S>, ManualClock>,
    plain: S,
    clock: ManualClock,
    rules: Vec<RuleId>,
    keys: Vec<Key<'static>>,
    limits: Vec<Vec<Limit>>,
    raised: [usize; LIMITS.len()],
    receipts: Vec<(Receipt, Receipt)>,
    spared: u32,
}

fn wait_for<T>(answer: impl Future<Output = Result<T, StoreError>>) -> T {
    server::runtime().block_on(answer).unwrap()
}

impl<S: Fresh> Twins<S> {
    fn new() -> Twins<S> {
        let clock = start();
        Twins {
            tier: Tier::with_clock(Faulty::new(S::fresh(&clock)), Settings::default(), clock.clone()),
            plain: S::fresh(&clock),
            clock,
            rules: (0..LIMITS.len()).map(|number| RuleId::new(&format!("rule {number}"))).collect(),
            keys: (0..3).map(|number| Key::of([format!("key {number}")])).collect(),
            limits: LIMITS.iter().map(|limits| limits.iter().map(|limit| limit.parse().unwrap()).collect()).collect(),
            raised: [0; LIMITS.len()],
            receipts: Vec::new(),
            spared: 0,
        }
    }

    fn charge(&self, asked: &Asked) -> Charge<'_> {
        let limit = &self.limits[asked.rule][self.raised[asked.rule]];
        let charge = Charge::new(&self.rules[asked.rule], &self.keys[usize::from(asked.key)], limit).cost(asked.cost);
        if asked.reserve { charge.reserve(Micros::from_secs(3)) } else { charge }
    }

    fn decide(&mut self, request: &[Asked]) -> Result<(), TestCaseError> {
        let charges: Vec<Charge<'_>> = request.iter().map(|asked| self.charge(asked)).collect();
        let questions = self.tier.behind().questions();
        let told = wait_for(self.tier.decide(&charges));
        let real = wait_for(self.plain.decide(&charges));
        let from_memory = self.tier.behind().questions() == questions;
        prop_assert_eq!(told.is_allowed(), real.is_allowed());
        if !from_memory {
            prop_assert_eq!(&told.decisions, &real.decisions);
        } else {
            prop_assert!(!told.is_allowed());
            for (index, (told, real)) in told.decisions.iter().zip(&real.decisions).enumerate() {
                let charge = &charges[index];
                let same_key = |other: &&Charge<'_>| other.rule == charge.rule && other.key == charge.key;
                let cost = charges[..=index].iter().filter(same_key).map(|charge| charge.cost).sum();
                agree(charge.limit, cost, told, real)?;
            }
        }
        self.spared += u32::from(from_memory);
        prop_assert_eq!(told.receipt.is_some(), real.receipt.is_some());
        self.receipts.extend(told.receipt.zip(real.receipt));
        Ok(())
    }

    fn settle(&mut self, number: usize, share: u64) -> Result<(), TestCaseError> {
        if number < self.receipts.len() {
            let (told, real) = self.receipts.swap_remove(number);
            let actual: Vec<u64> = told.held.iter().map(|held| held.taken * share / 100).collect();
            let settled: Settlement = wait_for(self.tier.settle(&told, &actual));
            prop_assert_eq!(settled, wait_for(self.plain.settle(&real, &actual)));
        }
        Ok(())
    }
}

/// Checks that an answer from memory is valid for a charge, compared with the store's own.
fn agree(limit: &Limit, cost: u64, told: &Decision, real: &Decision) -> Result<(), TestCaseError> {
    prop_assert_eq!(told.limit, real.limit);
    prop_assert!(told.remaining <= real.remaining, "{:?} {:?}", told, real);
    let rate = match limit.algorithm() {
        Algorithm::TokenBucket(limit) => Some(limit.refill()),
        Algorithm::Gcra(limit) => Some(limit.rate()),
        Algorithm::Shaper(limit) => Some(limit.outflow()),
        _ => None,
    };
    match (told.outcome, real.outcome) {
        // A charge that is not known to be denied: nothing further is guaranteed.
        (Outcome::Allow { .. }, _) => return Ok(()),
        (Outcome::Deny { retry_after: told }, Outcome::Deny { retry_after: real }) => {
            // If a microsecond is worth more than one drop, the wait of a larger cost is rounded up.
            let at_most = u64::from(cost > 1 && rate.is_some_and(|rate| rate.drops_per_micro() > 1));
            prop_assert!(told >= real && told.get() - real.get() <= at_most, "{} for {}", told, real);
        }
        (told, real) => prop_assert_eq!(told, real),
    }
    prop_assert_eq!(told.reset_after, real.reset_after);
    let is_exact = cost <= 1
        || matches!(limit.algorithm(), Algorithm::FixedWindow(_))
        || rate.is_some_and(|rate| rate.drops_per_micro() == 1);
    if is_exact {
        prop_assert_eq!(told, real);
    }
    Ok(())
}

fn run<S: Fresh>(steps: Vec<Step>) -> Result<u32, TestCaseError> {
    let mut twins = Twins::<S>::new();
    for step in steps {
        match step {
            Step::Decide(request) => twins.decide(&request)?,
            Step::Insist(request, times, wait) => {
                for _ in 0..times {
                    twins.decide(&request)?;
                    twins.clock.advance(Micros::new(wait));
                }
            }
            Step::Adjust(asked, adjustment) => {
                let charge = twins.charge(&asked);
                let told = wait_for(twins.tier.adjust(&charge, adjustment));
                prop_assert_eq!(told, wait_for(twins.plain.adjust(&charge, adjustment)));
            }
            Step::Reset(asked) => {
                let charge = twins.charge(&asked);
                // The results may differ, because a store may have forgotten a recovered key.
                wait_for(twins.tier.reset(charge.rule, charge.key));
                wait_for(twins.plain.reset(charge.rule, charge.key));
            }
            Step::Settle(number, share) => twins.settle(number, share)?,
            Step::Renew(number) => {
                if let Some((told, real)) = twins.receipts.get(number) {
                    prop_assert_eq!(wait_for(twins.tier.renew(told)), wait_for(twins.plain.renew(real)));
                }
            }
            Step::Raise(rule) => twins.raised[rule] = (twins.raised[rule] + 1).min(2),
            Step::Wait(micros) => twins.clock.advance(Micros::new(micros)),
        }
    }
    Ok(twins.spared)
}

fn cases(cases: u32) -> Config {
    Config { max_shrink_iters: 20_000, ..Config::with_cases(tidegate_test_support::times(cases)) }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn every_answer_is_what_the_store_would_have_said(steps in steps()) {
        run::<MemoryStore<ManualClock>>(steps)?;
    }
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn every_answer_is_what_redis_would_have_said(steps in steps()) {
        run::<RedisStore>(steps)?;
    }
}

#[test]
fn the_traffic_of_the_test_above_is_answered_from_memory_often() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut spared = 0;
    for _ in 0..50 {
        spared += run::<MemoryStore<ManualClock>>(steps().new_tree(&mut runner).unwrap().current()).unwrap();
    }
    assert!(spared > 500, "only {spared}");
}
