//! Traces: random traffic, decided by the store and by the limits themselves.

use std::collections::HashMap;

use super::seed::seed;
use super::{Subject, limit};
use crate::charge::Charge;
use crate::decision::Decision;
use crate::key::{Key, RuleId};
use crate::limit::{Limit, State};
use crate::receipt::ReceiptId;
use crate::store::Adjustment;
use crate::time::{Micros, Timestamp};

/// The expected content of the store: the state of each key and the limit that wrote it, in a plain map.
#[derive(Default)]
struct StoreModel {
    states: HashMap<(usize, usize), (Limit, State)>,
}

impl StoreModel {
    fn state(&self, rule: usize, key: usize, limit: &Limit, now: Timestamp) -> State {
        match self.states.get(&(rule, key)) {
            Some((old, state)) => limit.carry(old, state, now),
            None => limit.fresh(),
        }
    }

    fn recovered(&self, now: Timestamp) -> Vec<(usize, usize)> {
        let recovered = self.states.iter().filter(|(_, (limit, state))| limit.is_recovered(state, now));
        recovered.map(|(&key, _)| key).collect()
    }

    fn decide(&mut self, requests: &[(usize, usize, Limit, u64)], now: Timestamp) -> Vec<Decision> {
        let mut decisions = Vec::new();
        for (rule, key, limit, cost) in requests {
            let mut state = self.state(*rule, *key, limit, now);
            if limit.resync(&mut state, now) {
                self.states.insert((*rule, *key), (*limit, state.clone()));
            }
            decisions.push(limit.evaluate(&state, *cost, now));
        }
        let all = decisions.iter().all(Decision::is_allowed);
        for ((rule, key, limit, cost), decision) in requests.iter().zip(&mut decisions) {
            let mut state = self.state(*rule, *key, limit, now);
            if all && *cost > 0 {
                limit.charge(&mut state, *cost, now, ReceiptId::ANONYMOUS);
                self.states.insert((*rule, *key), (*limit, state));
            } else if decision.is_allowed() {
                *decision = limit.evaluate(&state, 0, now);
            }
        }
        decisions
    }
}

/// A linear congruential generator, sufficient to pick test cases.
pub(super) struct TestRandom(pub(super) u64);

impl TestRandom {
    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % sides
    }

    pub(super) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[usize::try_from(self.roll(from.len() as u64)).unwrap_or_default()]
    }
}

/// Tests several rules whose limits change, several keys, clock steps in both directions, penalties, credits and
/// resets. Every number of every decision equals that of the pure limits.
pub fn every_decision_on_a_random_trace_is_what_the_limits_say(subject: &impl Subject) {
    let limits: [&[Limit]; 4] = [
        &["5/s burst 9", "7/s burst 12", "gcra 3/s burst 9", "shaper 11/s queue 4"].map(limit),
        &["fixed 20/min", "fixed 30/10s", "fixed 12/day calendar", "sliding 25/min"].map(limit),
        &["log 9/10s", "log 15/2s", "sliding 9/6s parts 3", "meter 2/s burst 6"].map(limit),
        &["concurrent 4 ttl 2s", "concurrent 6 ttl 3s"].map(limit),
    ];
    let rules = [0, 1, 2, 3].map(|number| RuleId::new(&format!("trace {number}")));
    let keys = [0, 1, 2].map(|number| Key::of([format!("key {number}")]));
    let steps = [0, 0, 0, 1, 1_000, 77_777, 250_000, 1_000_000, 7_000_000, 61_000_000].map(Micros::new);
    let mut dice = TestRandom(seed(42));
    let mut model = StoreModel::default();
    // A store may or may not have forgotten a key that has recovered. That makes a difference after the clock steps
    // back, and under a limit that looks further back.
    let forget_recovered = |model: &mut StoreModel, is_meant: &dyn Fn(usize, usize) -> bool| {
        for (rule, key) in model.recovered(subject.now()) {
            if is_meant(rule, key) {
                subject.reset(&rules[rule], &keys[key]);
                model.states.remove(&(rule, key));
            }
        }
    };
    for _ in 0..6_000 {
        match dice.roll(200) {
            step @ 0..=1 => {
                forget_recovered(&mut model, &|_, _| true);
                let back = if step == 0 { dice.roll(90) } else { 86_400 };
                subject.clock().set(subject.now() - Micros::from_secs(back));
            }
            _ => subject.wait(*dice.pick(&steps)),
        }
        let now = subject.now();
        let rule = usize::try_from(dice.roll(4)).unwrap_or_default();
        let key = usize::try_from(dice.roll(3)).unwrap_or_default();
        let limit = *dice.pick(limits[rule]);
        let cost = dice.roll(4);
        let charge = Charge::new(&rules[rule], &keys[key], &limit).cost(cost);
        forget_recovered(&mut model, &|of_rule, of_key| of_key == key && [rule, (rule + 1) % 4].contains(&of_rule));
        match dice.roll(20) {
            0 => {
                subject.reset(&rules[rule], &keys[key]);
                model.states.remove(&(rule, key));
            }
            1 if cost > 0 && !limit.holds_slots() => {
                let adjustment = *dice.pick(&[Adjustment::Penalty, Adjustment::Credit]);
                let mut state = model.state(rule, key, &limit, now);
                limit.resync(&mut state, now);
                match adjustment {
                    Adjustment::Penalty => {
                        limit.charge(&mut state, cost, now, ReceiptId::ANONYMOUS);
                        model.states.insert((rule, key), (limit, state.clone()));
                    }
                    Adjustment::Credit => {
                        if limit.credit(&mut state, cost, now) > 0 {
                            model.states.insert((rule, key), (limit, state.clone()));
                        }
                    }
                }
                assert_eq!(subject.adjust(charge, adjustment), limit.evaluate(&state, 0, now), "{limit}");
            }
            2..=6 => {
                let second = (rule + 1) % 4;
                let second_limit = *dice.pick(limits[second]);
                let requests = [(rule, key, limit, cost), (second, key, second_limit, 1)];
                let answer = subject.decide(&[charge, Charge::new(&rules[second], &keys[key], &second_limit)]);
                assert_eq!(answer.decisions[..], model.decide(&requests, now), "{limit} and {second_limit} at {now:?}");
            }
            _ => {
                let decision = subject.decide_one(charge);
                assert_eq!(decision, model.decide(&[(rule, key, limit, cost)], now)[0], "{limit} at {now:?}");
            }
        }
    }
}
