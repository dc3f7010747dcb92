//! Leases of a single node, one rule at a time.

use tidegate_core::contract::Subject;
use tidegate_core::contract::faulty::{Fault, Faulty};
use tidegate_core::lease::Leasing;
use tidegate_core::store::{Adjustment, Answer, Readiness};
use tidegate_core::{Charge, Key, Limit, ManualClock, MemoryStore, Micros, Question, RuleId, Store, StoreError};
use tidegate_redis::tier::{LeaseSettings, Settings, Tier};

use crate::tier::nodes::{Fleet, drive};
use crate::tier::support::{Behind, finish, start};

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

pub(crate) struct Named {
    pub(crate) rule: RuleId,
    pub(crate) key: Key<'static>,
    pub(crate) limit: Limit,
}

impl Named {
    pub(crate) fn new(rule: &str, text: &str) -> Named {
        Named { rule: RuleId::new(rule), key: Key::of(["alice"]), limit: limit(text) }
    }

    pub(crate) fn charge(&self) -> Charge<'_> {
        Charge::new(&self.rule, &self.key, &self.limit)
    }
}

#[test]
fn a_busy_key_is_decided_without_the_store() {
    for (text, most) in [
        ("10000/s burst 10000", 40),
        ("gcra 10000/s burst 10000", 40),
        ("fixed 10000/s", 60),
        // A part is a fifth of a second, and a lease ends with its part.
        ("sliding 10000/s parts 5", 120),
    ] {
        let (fleet, api) = (Fleet::new(1), Named::new("api", text));
        fleet.load(0, api.charge(), 2, 1_000);
        let (before, leased) = (fleet.calls(0), fleet.leases(0).admitted);
        assert_eq!(fleet.load(0, api.charge(), 2, 2_000), 4_000, "{text}");
        let calls = fleet.calls(0) - before;
        assert!(calls <= most, "{text}: {calls} calls");
        assert!(fleet.leases(0).admitted - leased >= 3_900, "{text}: {:?}", fleet.leases(0));
    }
}

#[test]
fn a_leased_request_is_answered_now() {
    let (fleet, api) = (Fleet::new(1), Named::new("api", "10000/s burst 10000"));
    assert_eq!(fleet.nodes[0].readiness(), Readiness::Rarely);
    fleet.load(0, api.charge(), 2, 500);
    assert_eq!(fleet.nodes[0].readiness(), Readiness::Often);
    let mut answer = Answer::default();
    let charges = [api.charge()];
    assert_eq!(fleet.nodes[0].decide_into((&charges).into(), &mut answer).now(), Some(Ok(())));
    assert!(answer.is_allowed() && answer.decisions.len() == 1);
}

#[test]
fn a_quiet_key_is_decided_by_the_store() {
    let (fleet, api) = (Fleet::new(1), Named::new("api", "10000/s burst 10000"));
    for _ in 0..100 {
        assert!(fleet.is_allowed(0, api.charge()));
        fleet.wait(40);
    }
    assert_eq!((fleet.calls(0), fleet.leases(0).calls), (100, 0));
}

#[test]
fn some_things_are_never_leased() {
    let slots = Named::new("slots", "concurrent 100000 ttl 500ms");
    let log = Named::new("log", "log 100000/min");
    let shaper = Named::new("shaper", "shaper 10000/s queue 100000");
    let short = Named::new("short", "1000/s burst 10");
    let small = Named::new("small", "100/min burst 1000");
    let api = Named::new("api", "10000/s burst 10000");
    let off = Charge { leasing: Leasing::OFF, ..api.charge() };
    let reserved = api.charge().reserve(Micros::from_secs(60));
    let others = [slots.charge(), log.charge(), shaper.charge(), short.charge(), small.charge()];
    for charge in others.into_iter().chain([off, reserved, api.charge().cost(0)]) {
        let fleet = Fleet::new(1);
        fleet.load(0, charge, 2, 600);
        assert_eq!(fleet.leases(0).renewals, 0, "{charge:?}");
    }
}

#[test]
fn a_cost_above_a_quarter_of_the_lease_is_decided_by_the_store() {
    let (fleet, api) = (Fleet::new(1), Named::new("api", "10000/s burst 10000"));
    fleet.load(0, api.charge(), 1, 1_000);
    let held = fleet.leases(0).outstanding;
    assert!(held > 8, "{held}");
    let (before, held) = (fleet.calls(0), fleet.leases(0).outstanding);
    assert!(fleet.is_allowed(0, api.charge().cost(90)));
    assert_eq!((fleet.calls(0) - before, fleet.leases(0).outstanding), (1, held));
}

#[test]
fn terms_of_a_rule_bound_what_a_node_holds() {
    let api = Named::new("api", "10000/s burst 10000");
    let held = |leasing| {
        let fleet = Fleet::new(1);
        let charge = Charge { leasing, ..api.charge() };
        let mut most = 0;
        for _ in 0..1_000 {
            fleet.load(0, charge, 3, 1);
            most = most.max(fleet.leases(0).outstanding);
        }
        (most, fleet.leases(0).renewals)
    };
    let (auto, renewals) = held(Leasing::AUTO);
    let (bounded, _) = held(Leasing::within(2, 200).unwrap());
    let (often, more_renewals) = held(Leasing::within(50, 40).unwrap());
    assert!(auto > 400 && bounded <= 200 && often < 200, "{auto} {bounded} {often}");
    assert!(more_renewals > 2 * renewals, "{renewals} {more_renewals}");
}

#[test]
fn a_request_over_several_limits_takes_from_all_or_none() {
    let fleet = Fleet::new(1);
    let (busy, strict) = (Named::new("busy", "1/h burst 10000"), Named::new("strict", "log 100/h"));
    let both = [busy.charge(), strict.charge()];
    let mut admitted = 0;
    for _ in 0..500 {
        fleet.wait(1);
        admitted += u64::from(fleet.decide(0, &both).unwrap().is_allowed());
        // The first limit is leased because of its other requests.
        admitted += fleet.load(0, busy.charge(), 2, 1);
    }
    fleet.wait(400);
    assert_eq!(fleet.leases(0).outstanding, 0);
    let left = finish(fleet.store.peek(&[busy.charge().cost(0)])).unwrap()[0].remaining;
    // Tokens that could not be put back would be missing here.
    assert_eq!((left, admitted), (10_000 - admitted, 1_100));
}

#[test]
fn a_leased_limit_does_not_hide_the_denial_of_another() {
    let fleet = Fleet::new(1);
    let (busy, strict) = (Named::new("busy", "10000/s burst 10000"), Named::new("strict", "fixed 3/h"));
    fleet.load(0, busy.charge(), 2, 500);
    let both = [busy.charge(), strict.charge()];
    let admitted = (0..50).filter(|_| fleet.decide(0, &both).unwrap().is_allowed()).count();
    assert_eq!(admitted, 3);
    let held = fleet.leases(0).outstanding;
    let denied = fleet.decide(0, &both).unwrap();
    assert_eq!(fleet.leases(0).outstanding, held, "a denied request spends nothing");
    assert!(denied.decisions[0].is_allowed() && denied.decisions[0].remaining > 0);
}

#[test]
fn shadows_are_decided_by_leases_or_by_the_store() {
    let fleet = Fleet::new(1);
    let (busy, shadow) = (Named::new("busy", "10000/s burst 10000"), Named::new("shadow", "log 5/h"));
    let (shadows, leased) = ([shadow.charge()], [Named::new("leased", "20000/s burst 20000")]);
    let leased = [leased[0].charge()];
    let counting = [busy.charge()];
    let question = Question { counting: &counting, shadows: &[&shadows, &leased] };
    let mut over = 0;
    for _ in 0..500 {
        fleet.wait(1);
        let answer = fleet.decide(0, question).unwrap();
        assert!(answer.is_allowed());
        assert_eq!(answer.shadows.len(), 2);
        over += u64::from(!answer.shadows[0].is_allowed());
        assert!(answer.shadows[1].is_allowed());
    }
    assert_eq!(over, 495);
    // All charges of this question are leased.
    let question = Question { counting: &counting, shadows: &[&leased] };
    let before = fleet.leases(0);
    let answered = (0..50).filter(|_| {
        let mut answer = Answer::default();
        fleet.nodes[0].decide_into(question, &mut answer).now().is_some() && answer.shadows[0].is_allowed()
    });
    assert_eq!((answered.count(), fleet.leases(0).admitted - before.admitted), (50, 50));
}

#[test]
fn a_peek_counts_what_this_node_holds() {
    let (fleet, api) = (Fleet::new(2), Named::new("api", "1/h burst 2000"));
    let admitted = fleet.load(0, api.charge(), 1, 500);
    let held = fleet.leases(0).outstanding;
    assert!(held > 0);
    let left = 2_000 - admitted;
    let peek = |node: usize| finish(fleet.nodes[node].peek(&[api.charge().cost(0)])).unwrap()[0].remaining;
    assert_eq!((peek(0), peek(1)), (left, left - held));
    // Another node takes the whole rest, so that only this node still admits.
    assert!(fleet.is_allowed(1, api.charge().cost(left - held)));
    let peek = |node: usize| finish(fleet.nodes[node].peek(&[api.charge()])).unwrap()[0];
    assert!(peek(0).is_allowed() && !peek(1).is_allowed());
    assert!(fleet.is_allowed(0, api.charge()));
}

#[test]
fn penalties_and_resets_take_effect_at_once() {
    let (fleet, api) = (Fleet::new(1), Named::new("api", "1/h burst 2000"));
    fleet.load(0, api.charge(), 1, 500);
    assert!(fleet.leases(0).outstanding > 0);
    finish(fleet.nodes[0].adjust(&api.charge().cost(2_000), Adjustment::Penalty)).unwrap();
    assert!(!fleet.is_allowed(0, api.charge()));
    assert!(finish(fleet.nodes[0].reset(&api.rule, &api.key)).unwrap());
    assert!(fleet.is_allowed(0, api.charge().cost(2_000)));
}

#[test]
fn while_the_store_is_away_a_node_spends_what_it_holds() {
    let (fleet, api) = (Fleet::new(1), Named::new("api", "1/h burst 10000"));
    fleet.load(0, api.charge(), 2, 500);
    let held = fleet.leases(0).outstanding;
    for fault in [Fault::Unreachable, Fault::AnswerLost] {
        let held = if fault == Fault::AnswerLost { fleet.leases(0).outstanding } else { held };
        fleet.nodes[0].behind().fail(fault.clone());
        let mut admitted = 0;
        let error = loop {
            match fleet.decide(0, &[api.charge()]) {
                Ok(answer) => {
                    assert!(answer.is_allowed());
                    admitted += 1;
                }
                Err(error) => break error,
            }
        };
        assert_eq!(admitted, held, "{fault:?}");
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
        fleet.nodes[0].behind().fail(None);
        fleet.load(0, api.charge(), 2, 500);
        assert!(fleet.leases(0).outstanding > 0, "{fault:?}");
    }
}

#[test]
fn leases_end_while_the_store_is_unavailable() {
    let (fleet, api) = (Fleet::new(1), Named::new("api", "10000/s burst 10000"));
    fleet.load(0, api.charge(), 2, 500);
    fleet.nodes[0].behind().fail(Fault::Unreachable);
    assert!(fleet.is_allowed(0, api.charge()));
    // The node is suspended, and nothing is renewed.
    fleet.clock.advance(Micros::from_secs(4));
    assert!(fleet.decide(0, &[api.charge()]).is_err());
}

#[test]
fn a_store_that_grants_no_leases_decides_every_request() {
    let clock = start();
    let behind: Behind = Faulty::new(MemoryStore::with_clock(clock.clone()));
    let tier = Tier::with_clock(NoLeases(behind), Settings::default(), clock.clone())
        .with_leases_by_hand(LeaseSettings::default());
    let api = Named::new("api", "10000/s burst 10000");
    let mut admitted = 0;
    for _ in 0..5_000 {
        clock.advance(Micros::from_millis(1));
        let charges = [api.charge()];
        admitted += u64::from(drive(&tier, tier.decide(&charges)).unwrap().is_allowed());
    }
    let leases = tier.stats().leases.unwrap();
    assert_eq!((admitted, leases.granted), (5_000, 0));
    // After one, two and four seconds.
    assert!((1..=4).contains(&leases.calls), "{leases:?}");
}

/// A store of an older version, without leases.
struct NoLeases(Behind);

impl Store for NoLeases {
    fn decide_into(
        &self,
        question: Question<'_>,
        answer: &mut Answer,
    ) -> tidegate_core::store::NowOrLater<Result<(), StoreError>, impl Future<Output = Result<(), StoreError>> + Send>
    {
        self.0.decide_into(question, answer)
    }

    async fn settle(
        &self,
        receipt: &tidegate_core::Receipt,
        actual: &[u64],
    ) -> Result<tidegate_core::Settlement, StoreError> {
        self.0.settle(receipt, actual).await
    }

    async fn renew(&self, receipt: &tidegate_core::Receipt) -> Result<bool, StoreError> {
        self.0.renew(receipt).await
    }

    async fn peek(&self, charges: &[Charge<'_>]) -> Result<tidegate_core::store::Decisions, StoreError> {
        self.0.peek(charges).await
    }

    async fn adjust(&self, charge: &Charge<'_>, adjustment: Adjustment) -> Result<tidegate_core::Decision, StoreError> {
        self.0.adjust(charge, adjustment).await
    }

    async fn reset(&self, rule: &RuleId, key: &Key<'_>) -> Result<bool, StoreError> {
        self.0.reset(rule, key).await
    }
}

#[test]
fn a_key_with_foreign_data_does_not_stop_the_leases_of_others() {
    let fleet = Fleet::new(1);
    let (broken, api) = (Named::new("broken", "10000/s burst 10000"), Named::new("api", "10000/s burst 10000"));
    fleet.nodes[0].behind().fail(Fault::Unusable(broken.rule.clone()));
    for _ in 0..1_000 {
        fleet.wait(1);
        let error = fleet.decide(0, &[api.charge(), broken.charge()]).unwrap_err();
        assert!(matches!(&error, StoreError::UnusableKey { charges, .. } if charges[..] == [1]), "{error:?}");
        assert!(fleet.is_allowed(0, api.charge()));
    }
    assert!(fleet.leases(0).admitted > 500, "{:?}", fleet.leases(0));
}

#[test]
fn a_blocked_client_still_costs_the_store_a_call_a_second() {
    for text in ["1/h burst 4000", "fixed 4000/h", "sliding 4000/h"] {
        let (fleet, api) = (Fleet::new(1), Named::new("api", text));
        fleet.load(0, api.charge(), 5, 1_000);
        assert!(!fleet.is_allowed(0, api.charge()));
        let before = fleet.calls(0);
        let admitted = fleet.load(0, api.charge(), 5, 5_000);
        let calls = fleet.calls(0) - before;
        assert!(calls <= 8 + 2 * admitted, "{text}: {calls} calls, {admitted} admitted");
    }
}

#[test]
fn there_are_no_leases_without_a_runtime() {
    let tier = Tier::new(Faulty::new(MemoryStore::new()));
    assert_eq!(tier.stats().leases, None);
    let api = Named::new("api", "10000/s burst 10000");
    assert!((0..1_000).all(|_| finish(tier.decide(&[api.charge()])).unwrap().is_allowed()));
    assert_eq!(tier.stats().asked, 1_000);
}

#[test]
fn the_table_is_bounded() {
    let clock = start();
    let behind: Behind = Faulty::new(MemoryStore::with_clock(clock.clone()));
    let tier = Tier::with_clock(behind, Settings::default(), clock.clone())
        .with_leases_by_hand(LeaseSettings { most_keys: 16 });
    let api = Named::new("api", "10000/s burst 10000");
    let keys: Vec<Key<'static>> = (0..200).map(|number| Key::of([format!("key {number}")])).collect();
    for _ in 0..300 {
        clock.advance(Micros::from_millis(1));
        for key in &keys {
            let charges = [Charge::new(&api.rule, key, &api.limit)];
            assert!(drive(&tier, tier.decide(&charges)).unwrap().is_allowed());
        }
    }
    let leases = tier.stats().leases.unwrap();
    assert!(leases.keys <= 16 && leases.leased > 0, "{leases:?}");
    // Unused keys are removed.
    clock.advance(Micros::from_secs(1));
    finish(tier.renew_leases());
    clock.advance(Micros::from_secs(10));
    finish(tier.renew_leases());
    assert_eq!(tier.stats().leases.unwrap().keys, 0);
}

/// A tier with leases fulfils the contract of a store.
struct Leased {
    tier: Tier<Behind, ManualClock>,
    clock: ManualClock,
}

impl Leased {
    fn new() -> Leased {
        let clock = start();
        let behind = Faulty::new(MemoryStore::with_clock(clock.clone()));
        let tier = Tier::with_clock(behind, Settings::default(), clock.clone());
        Leased { tier: tier.with_leases_by_hand(LeaseSettings::default()), clock }
    }
}

impl Subject for Leased {
    type Store = Tier<Behind, ManualClock>;

    fn store(&self) -> &Self::Store {
        &self.tier
    }

    fn clock(&self) -> &ManualClock {
        &self.clock
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        drive(&self.tier, future)
    }
}

mod contract {
    use super::Leased;

    tidegate_core::store_contract!(Leased::new(), but traces);
}
