//! Leases: every operation on a key respects the tokens that nodes hold.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::seed::seed;
use super::traces::TestRandom;
use super::{Subject, assert_denied, limit, must, rule};
use crate::charge::Charge;
use crate::key::{Key, RuleId};
use crate::lease::{Ask, EPOCH, Grant, Holding, LeaseRequest, Renewal};
use crate::limit::{Limit, State};
use crate::receipt::Settlement;
use crate::store::{Adjustment, Store};
use crate::time::{Micros, Timestamp};

/// A limit of each algorithm that can be leased. Each admits a hundred at one instant.
fn hundred_of_each() -> [Limit; 6] {
    [
        "10/s burst 100",
        "gcra 10/s burst 100",
        "meter 10/s burst 100",
        "fixed 100/day",
        "sliding 100/h",
        "sliding 100/h parts 4",
    ]
    .map(limit)
}

/// A renewal for this many tokens, or none.
fn wanting(tokens: u64) -> Renewal {
    Renewal { wanted: tokens, least: tokens, ..Renewal::default() }
}

/// The tokens that nodes may hold of a window of more than an hour.
const FEW: u64 = 1;

fn lease(subject: &impl Subject, charge: &Charge<'_>, renewal: Renewal) -> Grant {
    let request = LeaseRequest { rule: charge.rule, key: charge.key, limit: charge.limit, renewal };
    must(subject.block_on(subject.store().lease(&[request])))[0]
}

/// Moves the clock to the beginning of an epoch that is not about to end a window.
fn align(subject: &impl Subject) {
    let into = subject.now().as_micros() % EPOCH.get();
    subject.wait(Micros::new(EPOCH.get() - into));
}

/// A lease is charged when it is granted, does not drain before it ends, and counts as spent from then on.
pub fn a_lease_is_charged_at_once_and_until_it_ends(subject: &impl Subject) {
    let key = Key::from("alice");
    align(subject);
    for limit in &hundred_of_each() {
        let rule = rule("leased", limit);
        let charge = Charge::new(&rule, &key, limit);
        let tokens = if limit.to_string().contains("day") { FEW } else { 40 };
        let grant = lease(subject, &charge, wanting(tokens));
        assert_eq!(
            (grant.tokens, grant.outstanding, grant.decision.remaining),
            (tokens, tokens, 100 - tokens),
            "{limit}"
        );
        assert_eq!(grant.ends_after, Micros::new(2 * EPOCH.get()), "{limit}");
        assert_eq!(subject.peek(charge.cost(0)).remaining, 100 - tokens, "{limit}");
    }
    subject.wait(Micros::new(2 * EPOCH.get() - 1));
    let remaining = |limit: &Limit| subject.peek(Charge::new(&rule("leased", limit), &key, limit).cost(0)).remaining;
    for limit in &hundred_of_each()[..3] {
        assert_eq!(remaining(limit), 60, "{limit}");
    }
    subject.wait(Micros::from_secs(1));
    for limit in &hundred_of_each()[..3] {
        assert_eq!(remaining(limit), 69, "{limit}");
    }
    assert_eq!(remaining(&hundred_of_each()[4]), 60);
}

/// Returned tokens can be spent by any node. Tokens reported as used stay spent.
pub fn returned_tokens_are_available_at_once(subject: &impl Subject) {
    let key = Key::from("alice");
    for limit in hundred_of_each().iter().filter(|limit| !limit.to_string().contains("day")) {
        let rule = rule("returned", limit);
        let charge = Charge::new(&rule, &key, limit);
        let holding = Holding::new();
        let now = subject.now();
        let ask = |ask: &Ask| {
            let Some(renewal) = holding.ask(ask, now) else { panic!("a renewal waits for its answer") };
            let grant = lease(subject, &charge, renewal);
            holding.granted(&grant);
            grant
        };
        ask(&Ask { wanted: 40, least: 40, ..Ask::default() });
        assert!(holding.take(15, || now).is_some(), "{limit}");
        assert!(holding.take(26, || now).is_none(), "{limit}: only 25 are left");
        let grant = ask(&Ask { returns: true, ..Ask::default() });
        assert_eq!((grant.outstanding, grant.decision.remaining), (0, 85), "{limit}");
        assert!(subject.decide_one(charge.cost(85)).is_allowed(), "{limit}");
        assert_denied(&subject.decide_one(charge));
    }
}

/// Credits, settlements and resets do not free what nodes may still spend.
pub fn outstanding_tokens_stay_charged(subject: &impl Subject) {
    let key = Key::from("alice");
    for limit in hundred_of_each().iter().filter(|limit| !limit.to_string().contains("day")) {
        let rule = rule("outstanding", limit);
        let charge = Charge::new(&rule, &key, limit);
        let reserved = subject.decide(&[charge.cost(30).reserve(Micros::from_secs(3_600))]);
        let Some(receipt) = reserved.receipt else { panic!("nothing to settle: {reserved:?}") };
        assert_eq!(lease(subject, &charge, wanting(40)).tokens, 40, "{limit}");
        assert_eq!(subject.adjust(charge.cost(1_000), Adjustment::Credit).remaining, 60, "{limit}");
        assert!(matches!(subject.settle(&receipt, &[0]), Settlement::Settled { .. }), "{limit}");
        assert_eq!(subject.peek(charge.cost(0)).remaining, 60, "{limit}");
        assert_eq!(subject.adjust(charge.cost(10), Adjustment::Penalty).remaining, 50, "{limit}");
        assert!(subject.reset(&rule, &key), "{limit}");
        assert_eq!(subject.peek(charge.cost(0)).remaining, 60, "{limit}");
        assert!(subject.decide_one(charge.cost(60)).is_allowed(), "{limit}");
        assert_denied(&subject.decide_one(charge));
    }
}

/// Under a changed limit, nodes may still spend the tokens that they hold.
pub fn a_changed_limit_keeps_what_is_outstanding(subject: &impl Subject) {
    let key = Key::from("alice");
    let old = limit("10/s burst 100");
    for new in ["gcra 7/s burst 120", "1/min burst 120", "fixed 120/day", "sliding 120/day parts 4"].map(limit) {
        let rule = RuleId::new(&format!("changed lease: {new}"));
        assert_eq!(lease(subject, &Charge::new(&rule, &key, &old), wanting(40)).tokens, 40);
        let charge = Charge::new(&rule, &key, &new);
        assert_eq!(subject.peek(charge.cost(0)).remaining, 80, "{new}");
        assert_eq!(subject.adjust(charge.cost(1_000), Adjustment::Credit).remaining, 80, "{new}");
        assert!(subject.decide_one(charge.cost(80)).is_allowed(), "{new}");
        assert_denied(&subject.decide_one(charge));
    }
}

/// Tokens that a node holds under a former limit are returned to the key's present limit, whose numbers stay as
/// they are.
pub fn tokens_are_returned_to_the_limit_that_the_key_has_by_now(subject: &impl Subject) {
    let key = Key::from("alice");
    let old = limit("10/s burst 100");
    for new in ["gcra 1/min burst 5000", "1/min burst 5000", "fixed 5000/day", "sliding 5000/day parts 4"].map(limit) {
        let rule = RuleId::new(&format!("returned to another: {new}"));
        let (before, charge) = (Charge::new(&rule, &key, &old), Charge::new(&rule, &key, &new));
        let grant = lease(subject, &before, wanting(40));
        assert!(subject.decide_one(charge.cost(3_000)).is_allowed(), "{new}");
        let renewal = Renewal { generation: Some(grant.generation), used: 10, returned: 30, ..Renewal::default() };
        let returned = lease(subject, &before, renewal);
        assert_eq!((returned.tokens, returned.outstanding), (0, 0), "{new}");
        // Under the old limit, the debt could be at most 200.
        assert_eq!(subject.peek(charge.cost(0)).remaining, 5_000 - 3_000 - 10, "{new}");
    }
}

/// Limits that depend on the instant of each request grant nothing.
pub fn unleasable_limits_are_not_leased(subject: &impl Subject) {
    let key = Key::from("alice");
    for limit in ["shaper 10/s queue 100", "log 100/min", "concurrent 100", "1000/s burst 10"].map(limit) {
        let rule = rule("not leased", &limit);
        let charge = Charge::new(&rule, &key, &limit);
        let grant = lease(subject, &charge, wanting(1));
        assert_eq!((grant.tokens, grant.outstanding, grant.decision.is_allowed()), (0, 0, true), "{limit}");
        assert!(subject.decide_one(charge.cost(limit.capacity())).is_allowed(), "{limit}");
    }
}

/// Concurrent requests and leases together take no more than the limit.
pub fn parallel_leases_and_requests_take_no_more_than_the_limit(subject: &impl Subject) {
    const THREADS: u64 = 8;
    let key = Key::from("alice");
    for limit in ["1/h burst 1000", "gcra 1/h burst 1000", "sliding 1000/h"].map(limit) {
        let rule = rule("lease race", &limit);
        let charge = Charge::new(&rule, &key, &limit);
        let taken = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let taken = &taken;
                scope.spawn(move || {
                    for number in 0..100 {
                        let got = if (thread + number) % 2 == 0 {
                            lease(subject, &charge, wanting(3)).tokens
                        } else {
                            2 * u64::from(subject.decide_one(charge.cost(2)).is_allowed())
                        };
                        taken.fetch_add(got, Ordering::Relaxed);
                    }
                });
            }
        });
        let remaining = subject.peek(charge.cost(0)).remaining;
        assert_eq!(taken.into_inner() + remaining, 1_000, "{limit}");
    }
}

/// The state of each key in a plain map, changed as a store changes it. A key that a call does not write keeps the
/// state of its old limit.
#[derive(Default)]
struct Model {
    states: HashMap<usize, (Limit, State)>,
}

impl Model {
    fn state(&self, key: usize, limit: &Limit, now: Timestamp) -> State {
        self.states.get(&key).map_or_else(|| limit.fresh(), |(old, state)| limit.carry(old, state, now))
    }

    fn edit<R>(
        &mut self,
        key: usize,
        limit: &Limit,
        now: Timestamp,
        change: impl FnOnce(&mut State) -> (R, bool),
    ) -> R {
        let mut state = self.state(key, limit, now);
        let (answer, is_kept) = change(&mut state);
        let is_in_place = self
            .states
            .get(&key)
            .is_some_and(|(old, state)| old.shape() == limit.shape() && matches!(state, State::Leased(_)));
        if is_kept || is_in_place {
            self.states.insert(key, (*limit, state));
        }
        answer
    }

    fn lease(&mut self, key: usize, limit: &Limit, renewal: &Renewal, now: Timestamp) -> Grant {
        let other = self.states.get(&key).map(|(old, _)| *old).filter(|old| old.shape() != limit.shape());
        let Some(old) = other.filter(|_| renewal.is_return()) else {
            return self.edit(key, limit, now, |state| {
                let grant = limit.lease(state, renewal, now);
                (grant, !limit.is_recovered(state, now))
            });
        };
        // Tokens are returned to the limit that the key has at present.
        if old.outstanding(&self.state(key, &old, now), now) == 0 {
            return limit.lease(&mut self.state(key, limit, now), renewal, now);
        }
        self.edit(key, &old, now, |state| (old.lease(state, renewal, now), true)).under_another(limit)
    }
}

/// On random traffic, every answer equals that of the limit on a state in a plain map.
pub fn every_lease_on_a_random_trace_is_what_the_limits_say(subject: &impl Subject) {
    let limits = ["100/s burst 200", "gcra 50/s burst 300", "fixed 500/3s", "sliding 400/4s", "sliding 400/4s parts 4"];
    let limits = limits.map(limit);
    let (rule, keys) = (RuleId::new("lease trace"), ["alice", "bob", "carol"].map(Key::from));
    let mut dice = TestRandom(seed(0x1ea5e));
    let mut model = Model::default();
    let mut granted: HashMap<(usize, u64), Grant> = HashMap::new();
    for number in 0..4_000 {
        let (key, node) = (*dice.pick(&[0, 1, 2]), dice.roll(3));
        // Limits change from time to time.
        let limit = limits[(key + number / 400) % limits.len()];
        let charge = Charge::new(&rule, &keys[key], &limit);
        let now = subject.now();
        let cost = dice.roll(40);
        match dice.roll(8) {
            0..=2 => {
                let mut renewal = Renewal { demand: dice.roll(200), ..wanting(cost) };
                if let Some(grant) = granted.remove(&(key, node)) {
                    renewal.generation = Some(grant.generation);
                    renewal.used = dice.roll(grant.tokens + 1);
                    renewal.returned = dice.roll(grant.tokens - renewal.used + 1);
                }
                let expected = model.lease(key, &limit, &renewal, now);
                let grant = lease(subject, &charge, renewal);
                assert_eq!(grant, expected, "{number}: {limit}");
                if grant.tokens > 0 {
                    granted.insert((key, node), grant);
                }
            }
            3 | 4 => {
                let expected = model.edit(key, &limit, now, |state| limit.decide_tracking_change(state, cost, now));
                assert_eq!(subject.decide_one(charge.cost(cost)), expected, "{number}: {limit}");
            }
            5 => {
                let expected = model.edit(key, &limit, now, |state| {
                    limit.resync(state, now);
                    let is_changed = limit.credit(state, cost, now) > 0;
                    (limit.evaluate(state, 0, now), is_changed)
                });
                assert_eq!(subject.adjust(charge.cost(cost), Adjustment::Credit), expected, "{number}: {limit}");
            }
            6 => {
                let cost = 9 * cost;
                let expected = limit.evaluate(&model.state(key, &limit, now), cost, now);
                assert_eq!(subject.peek(charge.cost(cost)), expected, "{number}: {limit}");
            }
            _ => subject.wait(Micros::new(dice.roll(1_500_000))),
        }
    }
}
