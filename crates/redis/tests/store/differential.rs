//! The same random requests, at the same instants, to the store in memory and to stores in Redis, on a real server and on
//! the server in this process: every number is equal.

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::sample::Index;
use tidegate_core::lease::{LeaseRequest, Renewal, Terms};
use tidegate_core::store::Adjustment;
use tidegate_core::{
    Charge, Key, Limit, ManualClock, MemoryStore, Micros, Question, Receipt, RuleId, Settlement, Store, Timestamp,
};

use crate::store::lease_acts::{Lease, RenewalAct, leasable, renewals};
use crate::store::remote::Remote;
use tidegate_test_support::limits::{Bucket, any_limit, any_spending_limit, buckets, with_capacity};
use tidegate_test_support::traces::{ClockMove, Cost, TraceClock, costs, moves, starts};

/// A rule, and its limits over time.
#[derive(Clone, Debug)]
struct Rule {
    limits: Vec<Limit>,
    /// Whether the limits share the shape of their states. If not, a settlement above its estimate is capped at a capacity
    /// that the two stores get from different sources.
    same_shape: bool,
}

fn rules() -> impl Strategy<Value = Rule> {
    let of_one_shape = (any_limit(), 0_u64..20)
        .prop_map(|(limit, capacity)| Rule { limits: vec![limit, with_capacity(&limit, capacity)], same_shape: true });
    let of_many = prop::collection::vec(any_spending_limit(), 2..4);
    prop_oneof![2 => of_one_shape, 1 => of_many.prop_map(|limits| Rule { limits, same_shape: false })]
}

/// Rules for which the script has a fast path.
fn bucket_rules() -> impl Strategy<Value = Rule> {
    let turn = |kind| match kind {
        0 => Bucket::token_bucket,
        1 => Bucket::gcra,
        2 => Bucket::meter,
        _ => Bucket::shaper,
    };
    (buckets(), 0..4, 0_u64..20).prop_map(move |(bucket, kind, capacity)| {
        let limit = turn(kind)(bucket);
        Rule { limits: vec![limit, with_capacity(&limit, capacity)], same_shape: true }
    })
}

fn rule_sets() -> impl Strategy<Value = Vec<Rule>> {
    prop_oneof![2 => prop::collection::vec(rules(), 1..4), 1 => prop::collection::vec(bucket_rules(), 2..5)]
}

/// Rules with at least one limit that can be leased.
fn leasable_rules() -> impl Strategy<Value = Rule> {
    let of_one_shape = (leasable(), 0_u64..2_000)
        .prop_map(|(limit, capacity)| Rule { limits: vec![limit, with_capacity(&limit, capacity)], same_shape: true });
    let of_many = (leasable(), leasable(), any_limit())
        .prop_map(|(one, other, third)| Rule { limits: vec![one, other, third], same_shape: false });
    prop_oneof![2 => of_one_shape, 1 => of_many]
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    rule: Index,
    key: Index,
    limit: Index,
    cost: Cost,
    reserve: Option<u64>,
    /// The group of the question.
    group: u8,
}

#[derive(Clone, Debug)]
enum Act {
    Decide(Vec<Asked>),
    Peek(Vec<Asked>),
    Adjust(Asked, bool),
    Settle { which: Index, actual: Vec<Cost> },
    Renew { which: Index },
    Reset { rule: Index, key: Index },
    Lease(Vec<RenewalAct>),
}

impl Act {
    const fn name(&self) -> &'static str {
        match self {
            Act::Decide(_) => "decide",
            Act::Peek(_) => "peek",
            Act::Adjust(_, true) => "penalty",
            Act::Adjust(_, false) => "credit",
            Act::Settle { .. } => "settle",
            Act::Renew { .. } => "renew",
            Act::Reset { .. } => "reset",
            Act::Lease(_) => "lease",
        }
    }
}

fn asked() -> impl Strategy<Value = Asked> {
    let reserve =
        prop::option::weighted(0.3, prop_oneof![0_u64..3, 1_000_u64..100_000_000, Just(3_600_000_000), Just(u64::MAX)]);
    (any::<Index>(), any::<Index>(), any::<Index>(), costs(), reserve)
        .prop_map(|(rule, key, limit, cost, reserve)| Asked { rule, key, limit, cost, reserve, group: 0 })
}

/// The counting charges, if any, and up to three rules in shadow mode.
fn with_shadows() -> impl Strategy<Value = Vec<Asked>> {
    prop::collection::vec((asked(), 0_u8..4), 1..7).prop_map(|mut all| {
        all.sort_by_key(|(_, group)| *group);
        all.into_iter().map(|(asked, group)| Asked { group, ..asked }).collect()
    })
}

fn acts() -> impl Strategy<Value = Act> {
    let several = prop_oneof![
        4 => prop::collection::vec(asked(), 1),
        3 => prop::collection::vec(asked(), 2..5),
        2 => with_shadows(),
    ];
    prop_oneof![
        12 => several.prop_map(Act::Decide),
        1 => prop::collection::vec(asked(), 0..4).prop_map(Act::Peek),
        2 => (asked(), any::<bool>()).prop_map(|(asked, up)| Act::Adjust(asked, up)),
        4 => (any::<Index>(), prop::collection::vec(costs(), 0..3)).prop_map(|(which, actual)| Act::Settle { which, actual }),
        1 => any::<Index>().prop_map(|which| Act::Renew { which }),
        1 => (any::<Index>(), any::<Index>()).prop_map(|(rule, key)| Act::Reset { rule, key }),
    ]
}

fn acts_with_leases() -> impl Strategy<Value = Act> {
    prop_oneof![1 => acts(), 1 => prop::collection::vec(renewals(), 1..4).prop_map(Act::Lease)]
}

/// A charge: rule, key, limit, cost, time of the reservation, and group.
type Resolved = (usize, usize, Limit, u64, Option<Micros>, u8);

/// The same admission, with the receipt of each store.
struct Admission {
    in_memory: Receipt,
    in_redis: Receipt,
    /// The expiry of its first reservation, if it has any, and the length of its reservations.
    expires: Option<(Timestamp, Micros)>,
    may_cost_more: bool,
}

struct Both {
    memory: MemoryStore<ManualClock>,
    redis: Remote,
    clock: ManualClock,
    rules: Vec<(RuleId, Rule)>,
    keys: Vec<Key<'static>>,
    admissions: Vec<Admission>,
    leases: Vec<Lease>,
    /// The limit under which each rule and key was last leased.
    leased: HashMap<(usize, usize), Limit>,
    /// The last limit of each rule and key.
    last: HashMap<(usize, usize), usize>,
    /// The requests so far, as text.
    told: Vec<String>,
}

impl Both {
    fn new(rules: Vec<Rule>, clock: ManualClock, redis: Remote) -> Both {
        let named = |(index, rule)| (RuleId::new(&format!("rule {index}")), rule);
        Both {
            memory: MemoryStore::with_clock_and_cap(clock.clone(), 100_000),
            redis,
            clock,
            rules: rules.into_iter().enumerate().map(named).collect(),
            keys: vec![Key::of(["acme", "alice"]), Key::from("bob").owned()],
            admissions: Vec::new(),
            leases: Vec::new(),
            leased: HashMap::new(),
            last: HashMap::new(),
            told: Vec::new(),
        }
    }

    /// Removes a recovered key from both stores, because a store may or may not have forgotten it. The difference would be
    /// observable after the clock steps back, or under a limit that counts what the old one did not.
    fn forget_if_recovered(&self, rule: usize, key: usize) {
        let (id, Rule { limits, .. }) = &self.rules[rule];
        let is_full = |limit: &Limit| {
            self.memory.peek(&[Charge::new(id, &self.keys[key], limit).cost(0)])[0].remaining == limit.capacity()
        };
        if limits.iter().any(is_full) {
            self.memory.reset(id, &self.keys[key]);
            self.redis.ask(self.redis.store().reset(id, &self.keys[key]));
        }
    }

    fn go(&mut self, hands: &mut TraceClock, by: ClockMove, limit: &Limit) {
        let before = hands.now();
        let now = hands.go(by, limit);
        if now < before {
            self.bring_leases_to_the_present();
            for rule in 0..self.rules.len() {
                for key in 0..self.keys.len() {
                    self.forget_if_recovered(rule, key);
                }
            }
            // The same applies to reservations that have expired.
            self.admissions.retain(|admission| admission.expires.is_none_or(|(expires, _)| expires > before));
        }
        self.clock.set(now);
        if now < before {
            self.bring_leases_to_the_present();
        }
    }

    /// A denial need not store that leases have ended, which would be observable when the clock steps back. Renewals that
    /// ask for nothing store it.
    fn bring_leases_to_the_present(&self) {
        for (&(rule, key), limit) in &self.leased {
            let rule = &self.rules[rule].0;
            let request = LeaseRequest { rule, key: &self.keys[key], limit, renewal: Renewal::default() };
            assert_eq!(self.memory.lease(&[request]), self.redis.ask(self.redis.store().lease(&[request])));
        }
    }

    fn resolve(&mut self, asked: &[Asked]) -> Vec<Resolved> {
        let mut resolved = Vec::new();
        for asked in asked {
            let (rule, key) = (asked.rule.index(self.rules.len()), asked.key.index(self.keys.len()));
            let limit = asked.limit.index(self.rules[rule].1.limits.len());
            if self.last.insert((rule, key), limit) != Some(limit) {
                self.forget_if_recovered(rule, key);
            }
            let limit = self.rules[rule].1.limits[limit];
            let (cost, reserve) = (asked.cost.of(&limit), asked.reserve.map(Micros::new));
            let reserved = reserve.map_or(String::new(), |ttl| format!(", reserved for {}", ttl.get()));
            let group = asked.group;
            self.told.push(format!("    {cost} of rule {rule}, key {key}, {limit}{reserved}, group {group}"));
            resolved.push((rule, key, limit, cost, reserve, group));
        }
        resolved
    }

    fn act(&mut self, act: &Act, hands: &mut TraceClock) -> Result<(), TestCaseError> {
        self.told.push(format!("{} {}", hands.now().as_micros(), act.name()));
        match act {
            Act::Decide(asked) => {
                let resolved = self.resolve(asked);
                let charges = self.charges(&resolved);
                let counting = resolved.iter().take_while(|(.., group)| *group == 0).count();
                let (counting, in_shadow) = charges.split_at(counting);
                let groups = resolved[counting.len()..].chunk_by(|(.., one), (.., other)| one == other);
                let mut rest = in_shadow;
                let shadow = |group: &[Resolved]| rest.split_off(..group.len()).unwrap_or_default();
                let shadows: Vec<&[Charge<'_>]> = groups.map(shadow).collect();
                let question = Question { counting, shadows: &shadows };
                let in_memory = self.memory.decide(question).unwrap();
                let in_redis = self.redis.ask(self.redis.store().decide(question));
                prop_assert_eq!(in_memory.shadows.len(), in_redis.shadows.len());
                let in_shadow = in_memory.shadows.iter().zip(&in_redis.shadows);
                let mut admissions = Vec::new();
                for (charges, (in_memory, in_redis)) in
                    std::iter::once((counting, (&in_memory, &in_redis))).chain(shadows.iter().copied().zip(in_shadow))
                {
                    prop_assert_eq!(&in_memory.decisions, &in_redis.decisions, "{:?}", charges);
                    in_memory.decisions.iter().for_each(|decision| hands.remember_wait(decision));
                    match (&in_memory.receipt, &in_redis.receipt) {
                        (Some(in_memory), Some(in_redis)) => {
                            prop_assert_eq!(&in_memory.held, &in_redis.held);
                            let reserved = charges.iter().filter(|charge| charge.is_reserved());
                            let ttl = reserved.filter_map(|charge| charge.reserve).min();
                            let may_cost_more = resolved.iter().all(|(rule, ..)| self.rules[*rule].1.same_shape);
                            let expires = ttl.map(|ttl| (hands.now() + ttl, ttl));
                            let (in_memory, in_redis) = (in_memory.clone(), in_redis.clone());
                            admissions.push(Admission { in_memory, in_redis, expires, may_cost_more });
                        }
                        (None, None) => {}
                        (one, other) => return Err(TestCaseError::fail(format!("{one:?} but {other:?}"))),
                    }
                }
                self.admissions.extend(admissions);
            }
            Act::Peek(asked) => {
                let resolved = self.resolve(asked);
                let charges = self.charges(&resolved);
                prop_assert_eq!(self.memory.peek(&charges), self.redis.ask(self.redis.store().peek(&charges)));
            }
            Act::Adjust(asked, up) => {
                let resolved = self.resolve(&[*asked]);
                let charge = self.charges(&resolved)[0];
                let adjustment = if *up { Adjustment::Penalty } else { Adjustment::Credit };
                let in_memory = self.memory.adjust(&charge, adjustment);
                prop_assert_eq!(
                    in_memory,
                    self.redis.ask(self.redis.store().adjust(&charge, adjustment)),
                    "{:?} {:?}",
                    adjustment,
                    charge
                );
                hands.remember_wait(&in_memory);
                self.forget_if_recovered(resolved[0].0, resolved[0].1);
            }
            Act::Settle { which, actual } => {
                if self.admissions.is_empty() {
                    return Ok(());
                }
                let index = which.index(self.admissions.len());
                let Admission { in_memory, in_redis, may_cost_more, .. } = &self.admissions[index];
                let actual: Vec<u64> = in_memory
                    .held
                    .iter()
                    .zip(actual)
                    .map(|(held, cost)| {
                        let actual = cost.of(&held.limit);
                        if *may_cost_more { actual } else { actual.min(held.taken) }
                    })
                    .collect();
                self.told.push(format!("    {actual:?} for {:?}", in_memory.held));
                for _ in 0..2 {
                    let settled = self.memory.settle(in_memory, &actual);
                    prop_assert_eq!(
                        settled,
                        self.redis.ask(self.redis.store().settle(in_redis, &actual)),
                        "{:?} at {:?}",
                        in_memory,
                        actual
                    );
                    if let Settlement::Settled { given_back, .. } = settled {
                        prop_assert!(given_back <= in_memory.held.iter().map(|held| held.taken).sum::<u64>());
                    }
                }
                for held in in_memory.held.clone() {
                    let rule = self.rules.iter().position(|(id, _)| *id == held.rule).unwrap();
                    let key = self.keys.iter().position(|key| *key == held.key).unwrap();
                    self.forget_if_recovered(rule, key);
                }
                if which.index(3) > 0 {
                    self.admissions.swap_remove(index);
                }
            }
            Act::Renew { which } => {
                if self.admissions.is_empty() {
                    return Ok(());
                }
                let index = which.index(self.admissions.len());
                let Admission { in_memory, in_redis, .. } = &self.admissions[index];
                let renewed = self.memory.renew(in_memory);
                prop_assert_eq!(renewed, self.redis.ask(self.redis.store().renew(in_redis)));
                let now = hands.now();
                if let Some((expires, ttl)) = &mut self.admissions[index].expires
                    && renewed
                {
                    *expires = now + *ttl;
                }
            }
            Act::Reset { rule, key } => {
                let (rule, key) = (&self.rules[rule.index(self.rules.len())].0, &self.keys[key.index(self.keys.len())]);
                self.memory.reset(rule, key);
                self.redis.ask(self.redis.store().reset(rule, key));
            }
            Act::Lease(renewals) => self.lease(renewals)?,
        }
        Ok(())
    }

    fn lease(&mut self, acts: &[RenewalAct]) -> Result<(), TestCaseError> {
        let mut resolved = Vec::new();
        for act in acts {
            let (rule, key) = (act.rule.index(self.rules.len()), act.key.index(self.keys.len()));
            let limit = act.limit.index(self.rules[rule].1.limits.len());
            self.last.insert((rule, key), limit);
            self.forget_if_recovered(rule, key);
            let limit = self.rules[rule].1.limits[limit];
            if Terms::of(&limit).is_some() {
                self.leased.insert((rule, key), limit);
            }
            let renewal = act.renewal(&limit, (rule, key), &mut self.leases);
            self.told.push(format!("    rule {rule}, key {key}, {limit}: {renewal:?}"));
            resolved.push((rule, key, limit, renewal));
        }
        let requests: Vec<LeaseRequest<'_>> = resolved
            .iter()
            .map(|(rule, key, limit, renewal)| LeaseRequest {
                rule: &self.rules[*rule].0,
                key: &self.keys[*key],
                limit,
                renewal: *renewal,
            })
            .collect();
        let in_memory = self.memory.lease(&requests);
        prop_assert_eq!(&in_memory, &self.redis.ask(self.redis.store().lease(&requests)));
        for ((rule, key, _, renewal), grant) in resolved.iter().zip(in_memory) {
            let tokens = renewal.kept + grant.tokens;
            if tokens > 0 {
                self.leases.push(Lease { rule: *rule, key: *key, generation: grant.generation, tokens });
            }
        }
        Ok(())
    }

    fn charges<'a>(&'a self, resolved: &'a [Resolved]) -> Vec<Charge<'a>> {
        let charge = |(rule, key, limit, cost, reserve, _): &'a Resolved| Charge {
            reserve: *reserve,
            alias: false,
            ..Charge::new(&self.rules[*rule].0, &self.keys[*key], limit).cost(*cost)
        };
        resolved.iter().map(charge).collect()
    }
}

/// The number of cases, multiplied by the environment variable `TIMES`.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { max_shrink_iters: 4_000, ..ProptestConfig::with_cases(tidegate_test_support::times(cases)) }
}

/// Runs a trace on the store in memory and on one in Redis.
fn agree(
    rules: &[Rule],
    start: u64,
    steps: &[(ClockMove, Act)],
    remote: impl Fn(ManualClock) -> Remote,
) -> Result<(), TestCaseError> {
    let mut hands = TraceClock::at(start);
    let clock = ManualClock::at(hands.now());
    let mut both = Both::new(rules.to_vec(), clock.clone(), remote(clock));
    let pace = both.rules[0].1.limits[0];
    for (by, act) in steps {
        both.go(&mut hands, *by, &pace);
        let outcome = both.act(act, &mut hands);
        prop_assert!(outcome.is_ok(), "{}\n{}", outcome.unwrap_err(), both.told.join("\n"));
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn every_number_is_what_the_store_in_memory_says(
        rules in rule_sets(),
        start in starts(),
        steps in prop::collection::vec((moves(), acts()), 1..60),
    ) {
        agree(&rules, start, &steps, Remote::on_a_server)?;
        agree(&rules, start, &steps, Remote::in_this_process)?;
    }

    #[test]
    fn every_lease_is_what_the_store_in_memory_grants(
        rules in prop::collection::vec(leasable_rules(), 1..3),
        start in starts(),
        steps in prop::collection::vec((moves(), acts_with_leases()), 1..60),
    ) {
        agree(&rules, start, &steps, Remote::on_a_server)?;
        agree(&rules, start, &steps, Remote::in_this_process)?;
    }
}
