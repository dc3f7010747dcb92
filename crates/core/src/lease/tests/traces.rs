//! Random traces.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::super::Ask;
use super::step::{ALL, Step, Violation};
use super::world::World;
use super::{Mutant, cases};
use crate::limit::Limit;

/// Allowed drifts: up to one part in 1024.
const DRIFT: std::ops::RangeInclusive<i64> = -64..=64;

#[derive(Clone, Debug)]
struct Trace {
    limit: Limit,
    drifts: Vec<i64>,
    start: u64,
    steps: Vec<Step>,
}

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

fn buckets() -> impl Strategy<Value = Limit> {
    let kinds = prop::sample::select(vec!["", "gcra ", "meter "]);
    let capacity = prop_oneof![2_u64..10, 10_u64..2_000];
    (kinds, prop::sample::select(vec!["1/s", "3/s", "7/min", "100/s", "1000/s"]), capacity)
        .prop_map(|(kind, rate, capacity)| limit(&format!("{kind}{rate} burst {capacity}")))
}

fn windows() -> impl Strategy<Value = Limit> {
    let kinds = vec!["fixed", "sliding"];
    let lengths = vec!["/s", "/3s", "/10s", "/min"];
    (
        prop::sample::select(kinds),
        2_u64..200,
        prop::sample::select(lengths),
        prop::sample::select(vec!["", " parts 2", " parts 4"]),
    )
        .prop_map(|(kind, count, length, parts)| {
            limit(&format!("{kind} {count}{length}{}", if kind == "sliding" { parts } else { "" }))
        })
}

fn waits() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => Just(0_u64),
        2 => 1_u64..5_000,
        4 => 5_000_u64..700_000,
        2 => 1_000_000_u64..6_000_000,
        1 => prop::sample::select(vec![1_999_999_u64, 2_000_000, 2_000_001, 3_996_094, 3_999_999, 4_000_000]),
    ]
}

fn asks() -> impl Strategy<Value = Ask> {
    (prop_oneof![0_u64..10, 0_u64..1_000], 0_u64..4, any::<bool>(), prop::bool::weighted(0.15), 0_u64..500).prop_map(
        |(wanted, least, all, returns, demand)| Ask {
            wanted: if returns { 0 } else { wanted },
            least: if all { wanted } else { least },
            demand,
            returns,
            ..Ask::default()
        },
    )
}

fn steps() -> impl Strategy<Value = Step> {
    let node = 0_usize..5;
    let cost = || prop_oneof![4 => 1_u64..4, 2 => 1_u64..100, 3 => Just(ALL)];
    prop_oneof![
        6 => waits().prop_map(Step::Wait),
        3 => cost().prop_map(Step::Decide),
        1 => (1_u64..100).prop_map(Step::Refund),
        12 => (node.clone(), cost()).prop_map(|(node, cost)| Step::Admit(node, cost)),
        2 => (node.clone(), cost()).prop_map(|(node, cost)| Step::TakeInVain(node, cost)),
        2 => node.clone().prop_map(Step::PutBack),
        8 => (node.clone(), asks()).prop_map(|(node, ask)| Step::Ask(node, ask)),
        8 => node.clone().prop_map(Step::Deliver),
        8 => node.clone().prop_map(Step::Answer),
        2 => node.clone().prop_map(Step::GiveUp),
        1 => node.clone().prop_map(Step::NotSent),
        2 => node.clone().prop_map(Step::DeliverLate),
        1 => node.clone().prop_map(Step::LoseLate),
        1 => node.prop_map(Step::Crash),
    ]
}

fn traces(limits: impl Strategy<Value = Limit>, steps: impl Strategy<Value = Step>) -> impl Strategy<Value = Trace> {
    let start = prop_oneof![Just(1_700_000_000_000_000_u64), 1_700_000_000_000_000_u64..1_700_000_010_000_000];
    (limits, prop::collection::vec(DRIFT, 1..4), start, prop::collection::vec(steps, 1..120))
        .prop_map(|(limit, drifts, start, steps)| Trace { limit, drifts, start, steps })
}

fn run(trace: &Trace, mutant: Option<Mutant>) -> Result<(), (Violation, usize)> {
    let mut world = World::new(trace.limit, &trace.drifts, trace.start, mutant);
    for (number, step) in trace.steps.iter().enumerate() {
        let checked = world.step(step).and_then(|_| match mutant {
            None => world.check(),
            Some(Mutant::RefundBelowFloor) => world.check_floor(),
            Some(_) => Ok(()),
        });
        checked.map_err(|violation| (violation, number))?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(2_000))]

    #[test]
    fn a_fleet_admits_no_more_than_one_bucket(trace in traces(buckets(), steps())) {
        prop_assert_eq!(run(&trace, None), Ok(()));
    }

    #[test]
    fn a_fleet_admits_no_more_than_one_window(trace in traces(windows(), steps())) {
        prop_assert_eq!(run(&trace, None), Ok(()));
    }
}

/// Steps in which servers are replaced by others, which lack recent changes.
fn steps_with_failover() -> impl Strategy<Value = Step> {
    prop_oneof![30 => steps(), 1 => Just(Step::Replicate), 1 => Just(Step::ReplaceServer)]
}

proptest! {
    #![proptest_config(cases(2_000))]

    /// Only spending that the new server does not know is admitted once more.
    #[test]
    fn a_server_that_takes_over_costs_what_was_charged_or_renewed_and_not_replicated(
        trace in traces(prop_oneof![buckets(), windows()], steps_with_failover()),
    ) {
        prop_assert_eq!(run(&trace, None), Ok(()));
    }
}

/// Steps with a store's clock that steps back, by up to a few epochs or windows.
fn steps_with_clock_steps() -> impl Strategy<Value = Step> {
    let back = prop_oneof![1_u64..5_000, 5_000_u64..3_000_000, 3_000_000_u64..70_000_000];
    prop_oneof![20 => steps(), 1 => back.prop_map(Step::ClockBack)]
}

proptest! {
    #![proptest_config(cases(2_000))]

    /// Only the tokens that calls in flight at that instant report are admitted once more.
    #[test]
    fn a_clock_that_steps_back_costs_what_calls_on_the_way_report(trace in traces(buckets(), steps_with_clock_steps())) {
        prop_assert_eq!(run(&trace, None), Ok(()));
    }

    /// Windows count differently after a step, depending on the instants of requests, with leases or without. So this test
    /// compares no admissions.
    #[test]
    fn a_clock_that_steps_back_leaves_a_record_of_all_tokens_of_windows(
        trace in traces(windows(), steps_with_clock_steps()),
    ) {
        let mut world = World::new(trace.limit, &trace.drifts, trace.start, None);
        for step in &trace.steps {
            let _ = world.step(step);
            prop_assert_eq!(world.check(), Ok(()), "{:?}", step);
        }
    }
}

proptest! {
    #![proptest_config(cases(2_000))]

    #[test]
    fn a_limit_that_changes_is_exceeded_by_no_more_than_was_outstanding(
        trace in traces(
            prop_oneof![buckets(), windows()],
            prop_oneof![
                20 => steps(),
                1 => prop_oneof![buckets(), windows()].prop_map(Step::Change),
                1 => Just(Step::Reset),
            ],
        ),
    ) {
        let mut world = World::new(trace.limit, &trace.drifts, trace.start, None);
        for step in &trace.steps {
            prop_assert!(world.step(step).is_ok(), "{:?}", step);
        }
    }
}

/// Searches for a trace that violates the property with a disabled rule.
fn find(mutant: Mutant) -> Option<Violation> {
    let limits = prop_oneof![3 => buckets(), 1 => windows()];
    let mut runner = TestRunner::deterministic();
    (0..20_000).find_map(|_| {
        let trace = traces(&limits, steps()).new_tree(&mut runner).unwrap().current();
        run(&trace, Some(mutant)).err().map(|(violation, _)| violation)
    })
}

/// The remaining rules are detected by the search.
#[test]
fn traces_miss_safety_rules_that_are_switched_off() {
    for mutant in [Mutant::NoFloor, Mutant::EndFromAnswer, Mutant::LostIsAskedAgain] {
        assert_eq!(find(mutant), Some(Violation::OverAdmitted), "{mutant:?}");
    }
    assert_eq!(find(Mutant::RefundBelowFloor), Some(Violation::BelowFloor));
}

/// A lease was granted before the last change that a replica knows, and renewed after it. It ends an epoch earlier on the
/// replica.
#[test]
fn a_renewal_that_was_not_replicated_counts_as_unknown() {
    let lease = |wanted| {
        let ask = Ask { wanted, least: wanted, ..Ask::default() };
        [Step::Ask(0, ask), Step::Deliver(0), Step::Answer(0)]
    };
    let renewed = [Step::Replicate, Step::Wait(2_100_000)].into_iter().chain(lease(0));
    let replaced = [Step::ReplaceServer, Step::Wait(2_000_000), Step::Decide(ALL)];
    let mut world = World::new(limit("1000/s burst 100"), &[0], 1_700_000_000_000_000, None);
    for step in lease(40).into_iter().chain(renewed).chain(replaced) {
        assert_eq!(world.step(&step), Ok(true), "{step:?}");
    }
    let mut strict = world.clone();
    strict.forgotten = 0;
    assert_eq!(strict.step(&Step::Admit(0, 40)), Err(Violation::OverAdmitted));
    assert_eq!(world.step(&Step::Admit(0, 40)), Ok(true));
}

/// A return is late, and its lease ends. The clock steps back into the epoch of that lease, and the return counts for a lease that
/// another node holds by then.
#[test]
fn a_return_that_is_late_in_an_epoch_that_is_present_again_is_admitted_once_more() {
    let ask = Ask { wanted: 40, least: 40, ..Ask::default() };
    let lease = |node| [Step::Ask(node, ask), Step::Deliver(node), Step::Answer(node)];
    let is_late = [Step::Ask(0, Ask { returns: true, ..Ask::default() }), Step::GiveUp(0), Step::Wait(4_100_000)];
    let back = [Step::ClockBack(5_000_000), Step::DeliverLate(0)];
    let mut world = World::new(limit("1000/s burst 100"), &[0, 0], 1_700_000_000_000_000, None);
    for step in lease(0).into_iter().chain(is_late).chain(lease(1)).chain(back) {
        assert_eq!(world.step(&step), Ok(true), "{step:?}");
    }
    // The store moves the debt to the present, which drains from then on.
    assert_eq!(world.step(&Step::Decide(1)), Ok(false));
    for step in [Step::Wait(1_000_000), Step::Decide(ALL)] {
        assert_eq!(world.step(&step), Ok(true), "{step:?}");
    }
    assert_eq!(world.forgotten, 40);
    let mut strict = world.clone();
    strict.forgotten = 0;
    assert_eq!(strict.step(&Step::Admit(1, 40)), Err(Violation::OverAdmitted));
    assert_eq!(world.step(&Step::Admit(1, 40)), Ok(true));
}

/// A node whose clock is as slow as is allowed for, asked a moment after the end of its lease.
#[test]
fn a_slow_clock_does_not_make_a_lease_longer() {
    let ask = Ask { wanted: 50, least: 50, ..Ask::default() };
    let lease = [Step::Ask(0, ask), Step::Deliver(0), Step::Answer(0)];
    let after_end = [Step::Wait(4_003_000), Step::Decide(ALL), Step::Admit(0, 50)];
    let steps = lease.into_iter().chain(after_end).collect();
    let limit = limit("1000/s burst 100");
    let trace = Trace { limit, drifts: vec![-64], start: 1_700_000_000_000_000, steps };
    assert_eq!(run(&trace, None), Ok(()));
    assert_eq!(run(&trace, Some(Mutant::NoDriftMargin)), Err((Violation::OverAdmitted, 5)));
}
