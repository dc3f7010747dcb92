//! Random rules, traffic and faults, decided by the limiter and by a plain model of the guide.

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::Config;
use tidegate_core::contract::faulty::Fault;
use tidegate_core::limit::State;
use tidegate_core::receipt::ReceiptId;
use tidegate_core::{Clock, Decision, Limit, Micros, Outcome, Timestamp};
use tidegate_rules::{DecidedBy, Request};

use crate::failing::support::{OUTAGES, Stage};

const LIMITS: [&str; 8] = [
    "5/s burst 9",
    "gcra 7/s burst 12",
    "meter 2/s burst 6",
    "shaper 11/s queue 4",
    "fixed 20/min",
    "sliding 9/6s parts 3",
    "sliding 25/min",
    "log 9/10s",
];

const POLICIES: [&str; 6] =
    ["allow", "{ allow_for: 2s }", "{ allow_for: 7s }", "deny", "local", "{ local_percent: 30 }"];

#[derive(Clone, Copy, Debug)]
struct Rule {
    limit: &'static str,
    policy: &'static str,
    per_user: bool,
    shadow: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Check { user: u8, cost: u64 },
    Wait(u64),
    Fail(Option<Fault>),
    Report,
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let rule = (select(&LIMITS[..]), select(&POLICIES[..]), any::<bool>(), prop::bool::weighted(0.2));
    let rule = rule.prop_map(|(limit, policy, per_user, shadow)| Rule { limit, policy, per_user, shadow });
    prop::collection::vec(rule, 1..5)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let fault = prop_oneof![2 => Just(None), 3 => select(&OUTAGES[..]).prop_map(Some)];
    let step = prop_oneof![
        12 => (0_u8..3, 0_u64..14).prop_map(|(user, cost)| Step::Check { user, cost }),
        4 => select(vec![0, 1, 1_000, 77_777, 250_000, 999_999, 1_000_000, 2_000_000, 7_000_000]).prop_map(Step::Wait),
        2 => fault.prop_map(Step::Fail),
        1 => Just(Step::Report),
    ];
    prop::collection::vec(step, 1..150)
}

fn text(rules: &[Rule]) -> String {
    let rule = |(number, rule): (usize, &Rule)| {
        let Rule { limit, policy, per_user, shadow } = rule;
        let (key, mode) = (if *per_user { "user" } else { "global" }, if *shadow { "shadow" } else { "enforce" });
        format!(
            "- {{ id: r{number}, key: {key}, limit: {limit}, cost: hits, on_store_failure: {policy}, mode: {mode} }}\n"
        )
    };
    format!("rules:\n{}", rules.iter().enumerate().map(rule).collect::<String>())
}

/// A rule's number, and whose key.
type StateIndex = (usize, Option<u8>);

#[derive(Default)]
struct States(HashMap<StateIndex, State>);

impl States {
    fn of(&mut self, place: StateIndex, limit: &Limit) -> &mut State {
        self.0.entry(place).or_insert_with(|| limit.fresh())
    }

    /// Charges all or none, and says what each answers.
    fn decide(&mut self, asked: &[(StateIndex, Limit)], cost: u64, take: bool, now: Timestamp) -> Vec<Decision> {
        let mut decisions: Vec<Decision> =
            asked.iter().map(|(place, limit)| limit.evaluate(self.of(*place, limit), cost, now)).collect();
        let all = decisions.iter().all(Decision::is_allowed);
        for ((place, limit), decision) in asked.iter().zip(&mut decisions) {
            let state = self.of(*place, limit);
            if take && all {
                limit.charge(state, cost, now, ReceiptId::ANONYMOUS);
            } else if take && decision.is_allowed() {
                *decision = limit.evaluate(state, 0, now);
            }
        }
        decisions
    }
}

/// A direct implementation of the guide.
struct Model {
    rules: Vec<(Rule, Limit)>,
    shared: States,
    local: States,
    unreported: States,
    fault: Option<Fault>,
    /// When the first and the last failure occurred.
    outage: Option<(Timestamp, Timestamp)>,
    unknown: u64,
    /// Whether a store whose answer was lost has denied the request. In that case, it takes nothing for rules in shadow
    /// mode either, whatever is decided without it.
    denied_there: bool,
}

type Said = Vec<(Decision, DecidedBy)>;

impl Model {
    fn new(rules: &[Rule]) -> Model {
        Model {
            rules: rules.iter().map(|rule| (*rule, rule.limit.parse().unwrap())).collect(),
            shared: States::default(),
            local: States::default(),
            unreported: States::default(),
            fault: None,
            outage: None,
            unknown: 0,
            denied_there: false,
        }
    }

    fn check(&mut self, user: u8, cost: u64, now: Timestamp) -> (bool, Said) {
        let numbers = |shadow| {
            let wanted = |&number: &usize| self.rules[number].0.shadow == shadow;
            (0..self.rules.len()).filter(wanted).collect::<Vec<_>>()
        };
        let (enforced, shadows) = (numbers(false), numbers(true));
        self.denied_there = false;
        let mut said = self.decide(&enforced, user, cost, true, now);
        let allowed = said.iter().all(|(decision, _)| decision.is_allowed());
        for number in shadows {
            said.extend(self.decide(&[number], user, cost, allowed, now));
        }
        (allowed, said)
    }

    fn decide(&mut self, numbers: &[usize], user: u8, cost: u64, take: bool, now: Timestamp) -> Said {
        if numbers.is_empty() {
            return Vec::new();
        }
        let asked: Vec<(StateIndex, Limit)> = numbers
            .iter()
            .map(|&number| ((number, Some(user).filter(|_| self.rules[number].0.per_user)), self.rules[number].1))
            .collect();
        match self.fault {
            None => {
                self.answered(now);
                let decisions = self.shared.decide(&asked, cost, take, now);
                return decisions.into_iter().map(|decision| (decision, DecidedBy::Store)).collect();
            }
            Some(Fault::AnswerLost) => {
                let there = self.shared.decide(&asked, cost, !self.denied_there, now);
                let counts = numbers.iter().all(|&number| !self.rules[number].0.shadow);
                self.denied_there |= counts && !there.iter().all(Decision::is_allowed);
            }
            Some(_) => {}
        }
        let unknown = matches!(self.fault, Some(Fault::QuestionLost | Fault::AnswerLost));
        self.unknown += u64::from(unknown);
        let (since, _) = self.outage.unwrap_or((now, now));
        self.outage = Some((since, now));
        self.without_store(&asked, cost, take, unknown, now.since(since), now)
    }

    fn without_store(
        &mut self,
        asked: &[(StateIndex, Limit)],
        cost: u64,
        take: bool,
        unknown: bool,
        away: Micros,
        now: Timestamp,
    ) -> Said {
        let wait = away.clamp(Micros::from_secs(1), Micros::from_secs(30));
        let deny = |limit: &Limit| Decision {
            outcome: Outcome::Deny { retry_after: wait },
            limit: limit.capacity(),
            remaining: 0,
            reset_after: wait,
        };
        let alone = |(place, limit): &(StateIndex, Limit)| {
            let (decision, by) = match self.rules[place.0].0.policy {
                "allow" => (None, DecidedBy::Allow),
                "{ allow_for: 2s }" if away < Micros::from_secs(2) => (None, DecidedBy::Allow),
                "{ allow_for: 7s }" if away < Micros::from_secs(7) => (None, DecidedBy::Allow),
                "{ allow_for: 2s }" | "{ allow_for: 7s }" => (Some(deny(limit)), DecidedBy::AllowEnded),
                "deny" => (Some(deny(limit)), DecidedBy::Deny),
                _ => return None,
            };
            let capacity = limit.capacity();
            let open = Decision {
                outcome: Outcome::Allow { delay: Micros::ZERO },
                limit: capacity,
                remaining: capacity,
                reset_after: Micros::ZERO,
            };
            let decision = decision.unwrap_or(open);
            Some(if cost > capacity {
                (Decision { outcome: Outcome::TooLarge { max: capacity }, ..decision }, DecidedBy::Limit)
            } else {
                (decision, by)
            })
        };
        let alone: Vec<Option<(Decision, DecidedBy)>> = asked.iter().map(alone).collect();
        let refused = alone.iter().flatten().any(|(decision, _)| !decision.is_allowed());
        let share = |(place, limit): &(StateIndex, Limit)| {
            let percent = if self.rules[place.0].0.policy == "local" { 100 } else { 30 };
            (*place, limit.share(percent).unwrap())
        };
        let locally: Vec<(StateIndex, Limit)> =
            asked.iter().zip(&alone).filter(|(_, alone)| alone.is_none()).map(|(asked, _)| share(asked)).collect();
        let decisions = if take && refused {
            let mut peeked = self.local.decide(&locally, cost, false, now);
            let left = self.local.decide(&locally, 0, false, now);
            for (decision, left) in peeked.iter_mut().zip(left).filter(|(decision, _)| decision.is_allowed()) {
                *decision = left;
            }
            peeked
        } else {
            self.local.decide(&locally, cost, take, now)
        };
        if take && !refused && !unknown && decisions.iter().all(Decision::is_allowed) {
            for ((place, limit), _) in asked.iter().zip(&alone).filter(|(_, alone)| alone.is_none()) {
                limit.charge(self.unreported.of(*place, limit), cost, now, ReceiptId::ANONYMOUS);
            }
        }
        let mut decisions = decisions.into_iter();
        let both = asked.iter().zip(alone);
        both.map(|((_, limit), alone)| {
            alone.unwrap_or_else(|| {
                let decision = decisions.next().unwrap();
                let max = limit.capacity();
                match decision.outcome {
                    Outcome::TooLarge { .. } if cost > max => {
                        (Decision { outcome: Outcome::TooLarge { max }, ..decision }, DecidedBy::Limit)
                    }
                    Outcome::TooLarge { .. } => {
                        (Decision { outcome: Outcome::Deny { retry_after: wait }, ..decision }, DecidedBy::Local)
                    }
                    _ => (decision, DecidedBy::Local),
                }
            })
        })
        .collect()
    }

    fn report(&mut self, now: Timestamp) {
        for (place, state) in std::mem::take(&mut self.unreported.0) {
            let limit = self.rules[place.0].1;
            let standing = limit.evaluate(&state, 0, now);
            let shared = self.shared.of(place, &limit);
            let owed = standing.limit - standing.remaining;
            limit.charge(shared, owed, now, ReceiptId::ANONYMOUS);
            if owed > 0 {
                self.answered(now);
            }
        }
    }

    fn answered(&mut self, now: Timestamp) {
        if self.outage.is_some_and(|(_, last)| now.since(last) >= Micros::from_secs(1)) {
            self.outage = None;
        }
    }
}

fn cases(cases: u32) -> Config {
    Config { max_shrink_iters: 20_000, ..Config::with_cases(tidegate_test_support::times(cases)) }
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn the_limiter_does_what_the_model_does(rules in rules(), steps in steps()) {
        let stage = Stage::new(&text(&rules));
        let mut model = Model::new(&rules);
        for step in steps {
            let now = stage.clock.now();
            match step {
                Step::Wait(micros) => stage.clock.advance(Micros::new(micros)),
                Step::Fail(fault) => {
                    stage.fail(fault.clone());
                    model.fault = fault;
                }
                // Reports to a failing store are tested separately.
                Step::Report if model.fault.is_none() => {
                    while stage.report() > 0 {}
                    model.report(now);
                }
                Step::Report => {}
                Step::Check { user, cost } => {
                    let ruling = stage.check(&Request::new("GET", "/").user(&user.to_string()).hits(cost));
                    let (allowed, said) = model.check(user, cost, now);
                    let ruled: Said = ruling.ruled.iter().map(|ruled| (ruled.decision, ruled.by)).collect();
                    prop_assert_eq!(ruled, said);
                    prop_assert_eq!(ruling.is_allowed(), allowed);
                    prop_assert_eq!(stage.health().charged_unknown, model.unknown);
                }
            }
        }
    }
}
