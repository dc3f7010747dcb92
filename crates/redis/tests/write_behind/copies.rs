//! One node in front of a store in memory, in virtual time.

use tidegate_core::contract::faulty::{Fault, Faulty};
use tidegate_core::store::{Adjustment, Answer, now_or_never};
use tidegate_core::write_behind::WriteBehind;
use tidegate_core::{
    Charge, Key, Limit, ManualClock, MemoryStore, Micros, Question, RuleId, Store, StoreError, Timestamp,
};
use tidegate_redis::write_behind::WriteBehindTier;

type Node = WriteBehindTier<Faulty<MemoryStore<ManualClock>>, ManualClock>;

struct Case {
    node: Node,
    clock: ManualClock,
    rule: RuleId,
    key: Key<'static>,
    limit: Limit,
}

impl Case {
    /// A node that may have ten unreported of `100/s burst 1000`: 5 percent of it, divided by 5 nodes.
    fn new() -> Case {
        let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
        let store = Faulty::new(MemoryStore::with_clock(clock.clone()));
        let node = WriteBehindTier::with_clock(store, clock.clone());
        node.set_nodes(5);
        Case {
            node,
            clock,
            rule: RuleId::new("soft"),
            key: Key::from("all"),
            limit: "100/s burst 1000".parse().unwrap(),
        }
    }

    fn charge(&self) -> Charge<'_> {
        let write_behind = WriteBehind::within(5, 100);
        Charge { write_behind, ..Charge::new(&self.rule, &self.key, &self.limit) }
    }

    fn decide<'q>(&self, question: impl Into<Question<'q>>) -> Result<Answer, StoreError> {
        now_or_never(self.node.decide(question)).expect("a store in memory never waits")
    }

    fn is_allowed(&self) -> bool {
        self.decide(&[self.charge()]).unwrap().is_allowed()
    }

    fn send(&self) {
        now_or_never(self.node.send_due()).expect("a store in memory never waits");
    }

    fn wait(&self, millis: u64) {
        self.clock.advance(Micros::from_millis(millis));
        self.send();
    }

    fn calls(&self) -> u64 {
        self.node.behind().questions()
    }

    /// The cost that the store has left.
    fn left(&self) -> u64 {
        self.node.behind().within().peek(&[self.charge().cost(0)])[0].remaining
    }
}

#[test]
fn requests_do_not_ask_the_store_and_their_sum_is_reported() {
    let case = Case::new();
    assert!((0..5).all(|_| case.is_allowed()));
    assert_eq!((case.calls(), case.left()), (0, 1000));
    case.send();
    assert_eq!((case.calls(), case.left()), (1, 995));
    assert!((0..4).all(|_| case.is_allowed()));
    case.wait(50);
    assert_eq!(case.calls(), 1);
    case.wait(60);
    assert_eq!(case.calls(), 2);
    let stats = case.node.stats();
    assert_eq!((stats.admitted, stats.reports, stats.cost_reported, stats.cost_unreported), (9, 2, 9, 0));
}

#[test]
fn a_copy_learns_what_others_have_spent() {
    let case = Case::new();
    case.node.behind().within().decide(&[case.charge().cost(1000)]).unwrap();
    assert!(case.is_allowed(), "the first request knows nothing");
    case.send();
    let denied = case.decide(&[case.charge()]).unwrap();
    assert!(!denied.is_allowed());
    assert!(denied.decisions[0].retry_after().unwrap() >= Micros::from_millis(20));
    assert_eq!((case.calls(), case.node.stats().denied), (1, 1));
    // The copy recovers by itself, and asks for the state of the key while it denies.
    case.wait(150);
    assert_eq!(case.calls(), 2);
    assert!(case.is_allowed());
}

#[test]
fn past_its_allowance_a_node_asks_the_store() {
    let case = Case::new();
    assert!((0..15).all(|_| case.is_allowed()));
    let stats = case.node.stats();
    assert_eq!((stats.admitted, stats.asked, case.left()), (10, 5, 995));
    case.send();
    assert_eq!(case.left(), 985);
}

#[test]
fn in_an_outage_a_node_admits_its_allowance_and_then_fails() {
    let case = Case::new();
    case.node.behind().fail(Fault::Unreachable);
    let mut admitted = 0;
    for _ in 0..100 {
        admitted += (0..20).filter(|_| case.decide(&[case.charge()]).is_ok()).count();
        case.wait(100);
    }
    assert_eq!(admitted, 10);
    assert!(matches!(case.decide(&[case.charge()]), Err(StoreError::Unreachable { .. })));
    // Costs that could not be sent are sent once.
    case.node.behind().fail(None);
    case.wait(200);
    assert_eq!((case.left(), case.node.stats().cost_unreported), (990, 0));
    assert!(case.is_allowed());
}

#[test]
fn requests_in_an_outage_do_not_cause_a_report_each() {
    let case = Case::new();
    assert!((0..10).all(|_| case.is_allowed()));
    case.node.behind().fail(Fault::Unreachable);
    for _ in 0..1000 {
        assert!(case.decide(&[case.charge()]).is_err());
        case.send();
    }
    assert_eq!(case.node.stats().not_sent, 1);
}

#[test]
fn a_report_whose_answer_is_lost_is_not_sent_again_and_counts_until_the_limit_has_recovered() {
    for (fault, charged) in [(Fault::AnswerLost, 4), (Fault::QuestionLost, 0)] {
        let case = Case::new();
        assert!((0..4).all(|_| case.is_allowed()));
        case.node.behind().fail(fault);
        case.send();
        assert_eq!(case.left(), 1000 - charged);
        case.node.behind().fail(None);
        let calls = case.calls();
        for _ in 0..50 {
            case.wait(100);
        }
        assert_eq!(case.calls(), calls);
        assert_eq!((case.node.stats().lost, case.node.stats().cost_lost, case.node.stats().cost_unreported), (1, 4, 4));
        assert!((0..10).all(|_| case.is_allowed()));
        assert_eq!(case.node.stats().asked, 4, "six of ten are left to the copy");
        case.wait(6_000);
        assert!((0..10).all(|_| case.is_allowed()));
        assert_eq!(case.node.stats().asked, 4);
    }
}

#[test]
fn while_the_fleet_is_not_counted_the_store_decides() {
    let case = Case::new();
    case.node.set_nodes(0);
    assert!(case.is_allowed());
    assert_eq!((case.calls(), case.left()), (1, 999));
}

#[test]
fn local_charges_are_reverted_if_the_store_denies() {
    let case = Case::new();
    let (other, closed) = (RuleId::new("other"), "fixed 0/day".parse().unwrap());
    let direct = Charge::new(&other, &case.key, &closed);
    let answer = case.decide(&[case.charge(), direct]).unwrap();
    assert!(!answer.is_allowed() && answer.decisions[0].is_allowed());
    assert_eq!(answer.decisions[0].remaining, 1000);
    assert_eq!((case.node.stats().admitted, case.node.stats().cost_unreported), (0, 0));
    let open: Limit = "fixed 5/day".parse().unwrap();
    let answer = case.decide(&[Charge { limit: &open, ..direct }, case.charge()]).unwrap();
    assert!(answer.is_allowed());
    assert_eq!((answer.decisions[0].remaining, answer.decisions[1].remaining), (4, 999));
    assert_eq!(case.node.stats().cost_unreported, 1);
}

#[test]
fn a_request_that_a_copy_denies_costs_nothing_under_other_limits() {
    let case = Case::new();
    case.node.behind().within().decide(&[case.charge().cost(1000)]).unwrap();
    assert!(case.is_allowed());
    case.send();
    let (other, open) = (RuleId::new("other"), "fixed 5/day".parse().unwrap());
    let direct = Charge::new(&other, &case.key, &open);
    let answer = case.decide(&[direct, case.charge()]).unwrap();
    assert!(answer.decisions[0].is_allowed() && !answer.decisions[1].is_allowed());
    assert_eq!(case.node.behind().within().peek(&[direct.cost(0)])[0].remaining, 5);
}

#[test]
fn rules_in_shadow_mode_are_decided_by_copies_too() {
    let case = Case::new();
    let (tried, limit) = (RuleId::new("tried"), "100/s burst 200".parse().unwrap());
    let shadow = [Charge { rule: &tried, limit: &limit, ..case.charge() }];
    for number in 1..=5 {
        let answer = case.decide(Question { counting: &[case.charge()], shadows: &[&shadow] }).unwrap();
        assert!(answer.is_allowed() && answer.shadows[0].is_allowed());
        assert_eq!(answer.decisions[0].remaining, 1000 - number);
    }
    // The share of a node in the smaller limit is two. Beyond it, a rule in shadow mode is not counted.
    assert_eq!((case.calls(), case.node.stats().cost_unreported), (0, 7));
}

#[test]
fn an_unusable_key_is_named_by_its_place_in_the_request() {
    let case = Case::new();
    let (other, open) = (RuleId::new("other"), "fixed 5/day".parse().unwrap());
    case.node.behind().fail(Fault::Unusable(other.clone()));
    let direct = Charge::new(&other, &case.key, &open);
    let error = case.decide(&[case.charge(), direct]).unwrap_err();
    assert!(matches!(&error, StoreError::UnusableKey { charges, .. } if charges[..] == [1]), "{error:?}");
    assert_eq!(case.node.stats().cost_unreported, 0);
}

#[test]
fn a_reset_takes_effect_at_once_at_the_node_that_makes_it() {
    let case = Case::new();
    case.node.behind().within().decide(&[case.charge().cost(1000)]).unwrap();
    assert!(case.is_allowed());
    case.send();
    assert!(!case.is_allowed());
    now_or_never(case.node.reset(&case.rule, &case.key)).unwrap().unwrap();
    case.send();
    assert!(case.is_allowed());
    now_or_never(case.node.adjust(&case.charge().cost(1500), Adjustment::Penalty)).unwrap().unwrap();
    case.send();
    assert!(!case.is_allowed());
}

#[test]
fn a_changed_limit_is_decided_by_the_store_until_it_has_answered() {
    let case = Case::new();
    assert!((0..5).all(|_| case.is_allowed()));
    let lower: Limit = "100/s burst 500".parse().unwrap();
    let charge = Charge { limit: &lower, ..case.charge() };
    assert!(case.decide(&[charge]).unwrap().is_allowed());
    assert_eq!(case.calls(), 1);
    case.send();
    assert!(case.decide(&[charge]).unwrap().is_allowed());
    assert_eq!((case.calls(), case.node.stats().asked), (2, 1));
}

#[test]
fn a_node_that_ends_reports_all_and_leaves_decisions_to_the_store() {
    let case = Case::new();
    assert!((0..3).all(|_| case.is_allowed()));
    now_or_never(case.node.finish()).unwrap();
    assert_eq!(case.left(), 997);
    assert!(case.is_allowed());
    assert_eq!(case.left(), 996);
}

#[test]
fn keys_that_have_recovered_are_forgotten() {
    let case = Case::new();
    assert!(case.is_allowed());
    case.wait(0);
    assert_eq!(case.node.stats().keys, 1);
    case.wait(2_000);
    assert_eq!(case.node.stats().keys, 0);
}

#[test]
fn charges_without_write_behind_pass_through() {
    let case = Case::new();
    let charge = Charge { write_behind: None, ..case.charge() };
    assert!(case.decide(&[charge]).unwrap().is_allowed());
    assert_eq!((case.calls(), case.left(), case.node.stats().keys), (1, 999, 0));
}
