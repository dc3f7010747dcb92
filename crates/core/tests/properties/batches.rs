//! Batches of charges: all are made or none, as in a plain map of states.

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::sample::Index;
use tidegate_core::limit::{ChargeMark, State};
use tidegate_core::receipt::ReceiptId;
use tidegate_core::store::Adjustment;
use tidegate_core::{
    Charge, Clock, Decision, Key, Limit, ManualClock, MemoryStore, Micros, Receipt, RuleId, Settlement, Timestamp,
};

use tidegate_test_support::limits::{any_limit, with_capacity};
use tidegate_test_support::traces::{ClockMove, Cost, TraceClock, costs, moves, moves_ahead, starts};

const TTL: Micros = Micros::from_secs(10);

/// A charge, by the indexes of its rule and key.
#[derive(Clone, Copy, Debug)]
struct ChargeSpec {
    rule: usize,
    key: usize,
    cost: Cost,
    reserve: bool,
}

#[derive(Clone, Debug)]
enum StoreAction {
    Decide(Vec<ChargeSpec>),
    Peek(Vec<ChargeSpec>),
    Adjust(ChargeSpec, bool),
    Settle(Index, u64),
    Reset(ChargeSpec),
}

fn asks() -> impl Strategy<Value = ChargeSpec> {
    (0_usize..4, 0_usize..2, costs(), prop::bool::weighted(0.3)).prop_map(|(rule, key, cost, reserve)| ChargeSpec {
        rule,
        key,
        cost,
        reserve,
    })
}

fn acts() -> impl Strategy<Value = Vec<(ClockMove, StoreAction)>> {
    let act = prop_oneof![
        12 => prop::collection::vec(asks(), 0..5).prop_map(StoreAction::Decide),
        2 => prop::collection::vec(asks(), 0..5).prop_map(StoreAction::Peek),
        2 => (asks(), any::<bool>()).prop_map(|(ask, is_penalty)| StoreAction::Adjust(ask, is_penalty)),
        4 => (any::<Index>(), 0_u64..100).prop_map(|(which, actual)| StoreAction::Settle(which, actual)),
        1 => asks().prop_map(StoreAction::Reset),
    ];
    prop::collection::vec((moves_ahead(), act), 1..60)
}

/// A hold of the model.
#[derive(Clone, Copy)]
struct ModelHold {
    at: (usize, usize),
    mark: ChargeMark,
    taken: u64,
    expires: Timestamp,
}

/// A model of a store, as a plain map.
struct MapStore {
    limits: Vec<Limit>,
    states: HashMap<(usize, usize), State>,
    receipts: u128,
}

impl MapStore {
    fn limit(&self, rule: usize) -> Limit {
        self.limits[rule % self.limits.len()]
    }

    fn state(&mut self, at: (usize, usize)) -> &mut State {
        let fresh = self.limit(at.0).fresh();
        self.states.entry(at).or_insert(fresh)
    }

    fn decide(&mut self, asks: &[ChargeSpec], now: Timestamp) -> (Vec<Decision>, ReceiptId, Vec<ModelHold>) {
        let mut decisions = Vec::new();
        for (index, ask) in asks.iter().enumerate() {
            let (limit, at) = (self.limit(ask.rule), (ask.rule, ask.key));
            let same = asks[..=index].iter().filter(|other| (other.rule, other.key) == at);
            let cost = same.fold(0_u64, |sum, other| sum.saturating_add(other.cost.of(&limit)));
            limit.resync(self.state(at), now);
            decisions.push(limit.evaluate(self.state(at), cost, now));
        }
        self.receipts += 1;
        let (id, mut held) = (ReceiptId::new(self.receipts), Vec::new());
        if decisions.iter().all(Decision::is_allowed) {
            for ask in asks {
                let (limit, at) = (self.limit(ask.rule), (ask.rule, ask.key));
                let taken = ask.cost.of(&limit);
                if taken > 0 {
                    let mark = limit.charge(self.state(at), taken, now, id);
                    if ask.reserve || limit.holds_slots() {
                        held.push(ModelHold { at, mark, taken, expires: now + TTL });
                    }
                }
            }
        } else {
            for (ask, decision) in asks.iter().zip(&mut decisions).filter(|(_, decision)| decision.is_allowed()) {
                *decision = self.limit(ask.rule).evaluate(self.state((ask.rule, ask.key)), 0, now);
            }
        }
        (decisions, id, held)
    }

    fn peek(&mut self, ask: &ChargeSpec, now: Timestamp) -> Decision {
        let limit = self.limit(ask.rule);
        let mut state = self.state((ask.rule, ask.key)).clone();
        limit.resync(&mut state, now);
        limit.evaluate(&state, ask.cost.of(&limit), now)
    }

    fn adjust(&mut self, ask: &ChargeSpec, adjustment: Adjustment, now: Timestamp) -> Decision {
        let limit = self.limit(ask.rule);
        let state = self.state((ask.rule, ask.key));
        let (mut changed, cost) = (state.clone(), ask.cost.of(&limit));
        limit.resync(&mut changed, now);
        let is_change = match adjustment {
            Adjustment::Penalty => {
                limit.charge(&mut changed, cost, now, ReceiptId::ANONYMOUS);
                true
            }
            Adjustment::Credit => limit.credit(&mut changed, cost, now) > 0,
        };
        let stands = limit.evaluate(&changed, 0, now);
        if is_change {
            *state = changed;
        }
        stands
    }

    /// The refunded tokens, and the additionally charged ones up to the bound on debt; `None` if the hold is gone.
    fn settle(&mut self, id: ReceiptId, held: &ModelHold, actual: u64, now: Timestamp) -> Option<(u64, u64)> {
        let limit = self.limit(held.at.0);
        let state = self.state(held.at);
        if limit.holds_slots() {
            let freed = limit.refund(state, held.taken, held.mark, now, id);
            return (freed > 0).then_some((freed, 0));
        }
        if held.expires <= now {
            return None;
        }
        let (back, more) = (held.taken.saturating_sub(actual), actual.saturating_sub(held.taken));
        let mut changed = state.clone();
        let given = if back > 0 { limit.refund(&mut changed, back, held.mark, now, id) } else { 0 };
        let charged = more.min(limit.chargeable(&changed, now));
        if more > 0 {
            limit.charge(&mut changed, more, now, id);
        }
        if given > 0 || more > 0 {
            *state = changed;
        }
        Some((given, charged))
    }
}

proptest! {
    #![proptest_config(crate::properties::cases(800))]

    #[test]
    fn a_store_decides_all_or_nothing_as_a_plain_map_would(
        limits in prop::collection::vec(any_limit(), 1..3),
        start in starts(),
        acts in acts(),
        max_keys in prop_oneof![Just(10_000), Just(100_000)],
    ) {
        // A store might confuse rules whose limits differ only in capacity.
        let limits: Vec<_> =
            limits.iter().flat_map(|limit| [*limit, with_capacity(limit, limit.capacity() / 3 + 1)]).collect();
        let clock = ManualClock::at(Timestamp::from_micros(start));
        let store = MemoryStore::with_clock_and_cap(clock.clone(), max_keys);
        let rules = ["a", "b", "c", "d"].map(RuleId::new);
        let keys = [Key::from("x"), Key::of(["x", "y"])];
        let mut plain = MapStore { limits, states: HashMap::new(), receipts: 0 };
        let mut hands = TraceClock::at(start);
        let mut receipts: Vec<(Receipt, ReceiptId, Vec<ModelHold>)> = Vec::new();
        for (by, act) in acts {
            let now = hands.go(by, &plain.limits[0]);
            clock.set(now);
            let limits = plain.limits.clone();
            let charge = |ask: &ChargeSpec| {
                let limit = &limits[ask.rule % limits.len()];
                let charge = Charge::new(&rules[ask.rule], &keys[ask.key], limit).cost(ask.cost.of(limit));
                if ask.reserve { charge.reserve(TTL) } else { charge }
            };
            match act {
                StoreAction::Decide(asks) => {
                    let charges: Vec<_> = asks.iter().map(charge).collect();
                    let answer = store.decide(&charges).unwrap();
                    let (decisions, id, held) = plain.decide(&asks, now);
                    prop_assert_eq!(&answer.decisions[..], &decisions[..]);
                    prop_assert_eq!(answer.receipt.as_ref().map_or(0, |receipt| receipt.held.len()), held.len());
                    if let Some(receipt) = answer.receipt {
                        receipts.push((receipt, id, held));
                    }
                    if let Some(denial) = decisions.iter().find(|decision| !decision.is_allowed()) {
                        hands.remember_wait(denial);
                    }
                }
                StoreAction::Peek(asks) => {
                    let charges: Vec<_> = asks.iter().map(charge).collect();
                    let expected: Vec<_> = asks.iter().map(|ask| plain.peek(ask, now)).collect();
                    prop_assert_eq!(&store.peek(&charges)[..], &expected[..]);
                }
                StoreAction::Adjust(ask, is_penalty) => {
                    let adjustment = if is_penalty { Adjustment::Penalty } else { Adjustment::Credit };
                    prop_assert_eq!(store.adjust(&charge(&ask), adjustment), plain.adjust(&ask, adjustment, now));
                }
                StoreAction::Settle(which, share) if !receipts.is_empty() => {
                    let (receipt, id, held) = receipts.swap_remove(which.index(receipts.len()));
                    let actual: Vec<_> = held.iter().map(|held| held.taken / 64 * share).collect();
                    let mut expected = Settlement::Gone;
                    for (held, actual) in held.iter().zip(&actual) {
                        if let Some((given, more)) = plain.settle(id, held, *actual, now) {
                            let (given_back, charged) = match expected {
                                Settlement::Settled { given_back, charged } => (given_back + given, charged + more),
                                Settlement::Gone => (given, more),
                            };
                            expected = Settlement::Settled { given_back, charged };
                        }
                    }
                    prop_assert_eq!(store.settle(&receipt, &actual), expected);
                }
                StoreAction::Reset(ask) => {
                    let owes = !plain.limit(ask.rule).is_recovered(plain.state((ask.rule, ask.key)), now);
                    plain.states.remove(&(ask.rule, ask.key));
                    let forgot = store.reset(&rules[ask.rule], &keys[ask.key]);
                    // A key that has recovered may have been forgotten already.
                    prop_assert!(forgot || !owes);
                }
                StoreAction::Settle(..) => {}
            }
        }
    }

    #[test]
    fn a_store_follows_a_clock_that_steps_back_as_the_limit_does(
        limit in any_limit(), start in starts(), steps in prop::collection::vec((moves(), costs()), 1..60),
    ) {
        let clock = ManualClock::at(Timestamp::from_micros(start));
        let store = MemoryStore::with_clock_and_cap(clock.clone(), 10_000);
        let (rule, key) = (RuleId::new("rule"), Key::from("key"));
        let (mut state, mut hands) = (limit.fresh(), TraceClock::at(start));
        for (by, cost) in steps {
            clock.set(hands.go(by, &limit));
            // A store may forget a key once it has recovered. Whether it has done so is observable when the clock steps
            // back.
            if limit.is_recovered(&state, clock.now()) {
                store.reset(&rule, &key);
                state = limit.fresh();
            }
            let charge = Charge::new(&rule, &key, &limit).cost(cost.of(&limit));
            let peeked = store.peek(&[charge])[0];
            let decision = limit.decide(&mut state, charge.cost, clock.now());
            hands.remember_wait(&decision);
            prop_assert_eq!(store.decide(&[charge]).unwrap().decisions[0], decision);
            prop_assert_eq!(peeked, decision);
        }
    }
}
