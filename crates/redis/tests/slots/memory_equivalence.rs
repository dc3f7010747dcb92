//! The same random requests to the store in memory and to a store in a cluster, over several slots, without other callers
//! or failures: every decision and every number is equal.

use proptest::prelude::*;
use proptest::sample::Index;
use tidegate_core::store::Adjustment;
use tidegate_core::{Charge, Key, Limit, ManualClock, MemoryStore, Micros, Receipt, RuleId, Store, StoreError};
use tidegate_redis::RedisStore;

use crate::slots::shared;
use tidegate_test_support::limits::any_limit;
use tidegate_test_support::traces::{Cost, TraceClock, costs, moves_ahead, starts};

#[derive(Clone, Copy, Debug)]
struct Asked {
    rule: Index,
    key: Index,
    cost: Cost,
    reserve: Option<u64>,
}

#[derive(Clone, Debug)]
enum Act {
    Decide(Vec<Asked>),
    Peek(Vec<Asked>),
    Adjust(Asked, bool),
    Settle { which: Index, actual: Vec<Cost> },
    Renew { which: Index },
    Reset { rule: Index, key: Index },
}

fn asked() -> impl Strategy<Value = Asked> {
    // A reservation shorter than the duration of a request could not be refunded in time if the request is denied
    // elsewhere.
    let reserve = prop::option::weighted(0.3, prop_oneof![1_000_000_u64..100_000_000, Just(u64::MAX)]);
    (any::<Index>(), any::<Index>(), costs(), reserve).prop_map(|(rule, key, cost, reserve)| Asked {
        rule,
        key,
        cost,
        reserve,
    })
}

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        16 => prop::collection::vec(asked(), 1..6).prop_map(Act::Decide),
        2 => prop::collection::vec(asked(), 0..6).prop_map(Act::Peek),
        1 => (asked(), any::<bool>()).prop_map(|(asked, up)| Act::Adjust(asked, up)),
        4 => (any::<Index>(), prop::collection::vec(costs(), 0..4)).prop_map(|(which, actual)| Act::Settle { which, actual }),
        1 => any::<Index>().prop_map(|which| Act::Renew { which }),
        1 => (any::<Index>(), any::<Index>()).prop_map(|(rule, key)| Act::Reset { rule, key }),
    ]
}

type Resolved = (usize, usize, u64, Option<Micros>);

struct Both {
    memory: MemoryStore<ManualClock>,
    redis: RedisStore,
    clock: ManualClock,
    rules: Vec<(RuleId, Limit)>,
    keys: Vec<Key<'static>>,
    /// The same admission, with the receipt of each store.
    receipts: Vec<(Receipt, Receipt)>,
    /// Requests over several slots that were denied.
    denied: u64,
}

impl Both {
    fn new(limits: Vec<Limit>, clock: ManualClock) -> Both {
        let named = |(index, limit)| (RuleId::new(&format!("rule {index}")), limit);
        Both {
            memory: MemoryStore::with_clock_and_cap(clock.clone(), 100_000),
            redis: shared::store(&shared::prefix(), clock.clone()),
            clock,
            rules: limits.into_iter().enumerate().map(named).collect(),
            keys: shared::clients(&[2, 0, 1, 0]),
            receipts: Vec::new(),
            denied: 0,
        }
    }

    fn ask<T>(&self, answer: impl Future<Output = Result<T, StoreError>>) -> T {
        shared::runtime().block_on(answer).unwrap_or_else(|error| panic!("the store failed: {error}"))
    }

    fn resolve(&self, asked: &[Asked]) -> Vec<Resolved> {
        let one = |asked: &Asked| {
            let rule = asked.rule.index(self.rules.len());
            let cost = asked.cost.of(&self.rules[rule].1);
            (rule, asked.key.index(self.keys.len()), cost, asked.reserve.map(Micros::new))
        };
        asked.iter().map(one).collect()
    }

    fn charges<'a>(&'a self, resolved: &[Resolved]) -> Vec<Charge<'a>> {
        let charge = |&(rule, key, cost, reserve): &Resolved| {
            let (id, limit) = &self.rules[rule];
            Charge { reserve, ..Charge::new(id, &self.keys[key], limit).cost(cost) }
        };
        resolved.iter().map(charge).collect()
    }

    fn act(&mut self, act: &Act, hands: &mut TraceClock) -> Result<(), TestCaseError> {
        match act {
            Act::Decide(asked) => {
                let resolved = self.resolve(asked);
                let charges = self.charges(&resolved);
                let in_memory = self.memory.decide(&charges).unwrap();
                let in_redis = self.ask(self.redis.decide(&charges));
                prop_assert_eq!(&in_memory.decisions, &in_redis.decisions, "{:#?}", charges);
                in_memory.decisions.iter().for_each(|decision| hands.remember_wait(decision));
                let apart = charges.iter().any(|charge| charge.key != charges[0].key);
                self.denied += u64::from(apart && !in_memory.is_allowed());
                let admission = match (in_memory.receipt, in_redis.receipt) {
                    (Some(in_memory), Some(in_redis)) => {
                        let taken = |receipt: &Receipt| -> Vec<_> {
                            receipt.held.iter().map(|held| (held.rule.clone(), held.key.clone(), held.taken)).collect()
                        };
                        prop_assert_eq!(taken(&in_memory), taken(&in_redis));
                        Some((in_memory, in_redis))
                    }
                    (None, None) => None,
                    (one, other) => return Err(TestCaseError::fail(format!("{one:?} but {other:?}"))),
                };
                self.receipts.extend(admission);
            }
            Act::Peek(asked) => {
                let resolved = self.resolve(asked);
                let charges = self.charges(&resolved);
                prop_assert_eq!(self.memory.peek(&charges), self.ask(self.redis.peek(&charges)));
            }
            Act::Adjust(asked, up) => {
                let resolved = self.resolve(&[*asked]);
                let charge = self.charges(&resolved)[0];
                let adjustment = if *up { Adjustment::Penalty } else { Adjustment::Credit };
                let in_memory = self.memory.adjust(&charge, adjustment);
                prop_assert_eq!(in_memory, self.ask(self.redis.adjust(&charge, adjustment)));
            }
            Act::Settle { which, actual } if !self.receipts.is_empty() => {
                let index = which.index(self.receipts.len());
                let (in_memory, in_redis) = &self.receipts[index];
                let cost = |(held, cost): (&tidegate_core::receipt::Held, &Cost)| cost.of(&held.limit);
                let actual: Vec<u64> = in_memory.held.iter().zip(actual).map(cost).collect();
                for _ in 0..2 {
                    let settled = self.memory.settle(in_memory, &actual);
                    prop_assert_eq!(settled, self.ask(self.redis.settle(in_redis, &actual)), "{:?}", in_memory);
                }
                self.receipts.swap_remove(index);
            }
            Act::Renew { which } if !self.receipts.is_empty() => {
                let (in_memory, in_redis) = &self.receipts[which.index(self.receipts.len())];
                prop_assert_eq!(self.memory.renew(in_memory), self.ask(self.redis.renew(in_redis)));
            }
            Act::Settle { .. } | Act::Renew { .. } => {}
            Act::Reset { rule, key } => {
                let (rule, key) = (&self.rules[rule.index(self.rules.len())].0, &self.keys[key.index(self.keys.len())]);
                self.memory.reset(rule, key);
                self.ask(self.redis.reset(rule, key));
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 2_000, ..ProptestConfig::with_cases(tidegate_test_support::times(32)) })]

    #[test]
    fn every_number_is_what_the_store_in_memory_says(
        limits in prop::collection::vec(any_limit(), 1..5),
        start in starts(),
        steps in prop::collection::vec((moves_ahead(), acts()), 1..50),
    ) {
        let mut hands = TraceClock::at(start);
        let mut both = Both::new(limits, ManualClock::at(hands.now()));
        let pace = both.rules[0].1;
        for (by, act) in &steps {
            let now = hands.go(*by, &pace);
            both.clock.set(now);
            both.act(act, &mut hands)?;
        }
        shared::runtime().block_on(shared::all_given_back(&both.redis));
        let lost = both.redis.refunds().lost;
        prop_assert_eq!(lost, 0);
    }
}
