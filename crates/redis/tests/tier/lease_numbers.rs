//! The numbers in decisions of a node with leases: remaining quota, wait, and time until full recovery.

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::Config;
use tidegate_core::{Clock, Decision, Micros, Store, Timestamp};

use crate::tier::leases::Named;
use crate::tier::nodes::Fleet;
use crate::tier::support::finish;

const LIMITS: [&str; 4] = ["100/s burst 1000", "gcra 100/s burst 1000", "fixed 500/s", "sliding 500/s"];
/// The longest interval between two renewals.
const INTERVAL: Micros = Micros::from_millis(200);
/// The longest time for which a node denies without asking the store.
const REMEMBERED: Micros = Micros::from_secs(1);
/// Windows that outlast that time.
const LONG_WINDOWS: [&str; 2] = ["fixed 1500/5s", "sliding 1500/5s"];

fn decide(fleet: &Fleet, node: usize, api: &Named, cost: u64) -> Decision {
    fleet.decide(node, &[api.charge().cost(cost)]).unwrap().decisions[0]
}

#[test]
fn a_denial_has_nothing_remaining_for_its_cost() {
    for text in LIMITS {
        let (fleet, api) = (Fleet::new(1), Named::new("api", text));
        let mut denials = 0;
        for _ in 0..2_000 {
            fleet.wait(1);
            let decision = decide(&fleet, 0, &api, 1);
            assert!(decision.is_allowed() || decision.remaining == 0, "{text}: {decision:?}");
            assert!(decision.is_allowed() || decision.reset_after > Micros::ZERO, "{text}: {decision:?}");
            assert!(decision.remaining <= api.limit.capacity());
            denials += u64::from(!decision.is_allowed());
        }
        assert!(denials > 100, "{text}: {denials}");
    }
}

/// Whatever decides: the lease, the store because the cost is too large for it, or a remembered denial.
#[test]
fn the_reset_stands_still_between_two_calls_of_the_store() {
    for (text, large) in LIMITS.into_iter().flat_map(|text| [(text, 1), (text, 60), (text, 300)]) {
        let (fleet, api) = (Fleet::new(1), Named::new("api", text));
        let (mut last, mut compared) = (None, 0);
        for number in 0..2_000 {
            fleet.wait(1);
            let decision = decide(&fleet, 0, &api, if number % 50 == 0 { large } else { 1 });
            let (calls, resets_at) = (fleet.calls(0), fleet.clock.now() + decision.reset_after);
            if let Some((before, reset)) = last
                && before == calls
                && decision.reset_after > Micros::ZERO
            {
                assert_eq!(resets_at, reset, "{text}, cost {large}: {decision:?}");
                compared += 1;
            }
            last = Some((calls, resets_at));
        }
        assert!(compared > 1_000, "{text}, cost {large}: {compared}");
    }
}

#[test]
fn a_wait_is_at_most_one_interval_longer_than_that_of_the_store() {
    for text in LIMITS {
        let (fleet, api) = (Fleet::new(2), Named::new("api", text));
        let mut denials = 0;
        for number in 0..3_000_u64 {
            fleet.wait(1);
            for node in 0..2 {
                let cost = if number.is_multiple_of(10) { 1 + number / 10 % 20 } else { 1 };
                let Some(wait) = decide(&fleet, node, &api, cost).retry_after() else { continue };
                let of_store = finish(fleet.store.peek(&[api.charge().cost(cost)])).unwrap()[0];
                let shortest = of_store.retry_after().unwrap_or(Micros::ZERO);
                assert!(wait.get() <= shortest.get() + INTERVAL.get(), "{text}, cost {cost}: {wait}, store {shortest}");
                denials += 1;
            }
        }
        assert!(denials > 500, "{text}: {denials}");
    }
}

#[test]
fn a_client_that_waits_as_long_as_it_is_told_is_admitted() {
    for text in LIMITS {
        let (fleet, api) = (Fleet::new(1), Named::new("api", text));
        for _ in 0..40 {
            fleet.load(0, api.charge(), 5, 100);
            let mut decision = decide(&fleet, 0, &api, 1);
            while decision.is_allowed() {
                decision = decide(&fleet, 0, &api, 1);
            }
            let wait = decision.retry_after().unwrap();
            fleet.clock.advance(wait);
            assert!(fleet.is_allowed(0, api.charge()), "{text}: after {wait}");
        }
    }
}

/// A node does not know what other nodes have spent since its last renewal. Buckets recover meanwhile. A window that others
/// have used up does not; the next denial states when it ends.
#[test]
fn a_client_that_waits_is_admitted_while_another_node_holds_tokens() {
    for (number, cost) in (0..LIMITS.len()).flat_map(|number| [(number, 1), (number, 7)]) {
        let (text, most_waits) = (LIMITS[number], if number < 2 { 1 } else { 2 });
        let (fleet, api) = (Fleet::new(2), Named::new("api", text));
        for _ in 0..30 {
            fleet.load(1, api.charge(), 2, 60);
            fleet.load(0, api.charge(), 5, 100);
            let mut decision = decide(&fleet, 0, &api, cost);
            while decision.is_allowed() {
                decision = decide(&fleet, 0, &api, cost);
            }
            let mut waits = Vec::new();
            while let Some(wait) = decision.retry_after() {
                waits.push(wait);
                assert!(waits.len() <= most_waits, "{text}, cost {cost}: denied after {waits:?}");
                fleet.clock.advance(wait);
                decision = decide(&fleet, 0, &api, cost);
            }
        }
    }
}

#[test]
fn a_request_right_after_nothing_remains_is_denied() {
    for text in &LIMITS[..2] {
        let (fleet, api) = (Fleet::new(1), Named::new("api", text));
        let mut compared = 0;
        for _ in 0..3_000 {
            fleet.wait(1);
            let decision = decide(&fleet, 0, &api, 1);
            if decision.is_allowed() && decision.remaining == 0 {
                assert!(!fleet.is_allowed(0, api.charge()), "{text}: {decision:?}");
                compared += 1;
            }
        }
        assert!(compared > 5, "{text}: {compared}");
    }
}

/// Requests at one node: this many per millisecond, for this many milliseconds, at this cost.
#[derive(Clone, Debug)]
struct Load {
    node: usize,
    a_milli: u64,
    millis: u64,
    cost: u64,
}

fn loads() -> impl Strategy<Value = Vec<Load>> {
    let load = (0_usize..2, 1_u64..6, 1_u64..150, select(vec![1_u64, 1, 1, 2, 7, 40]));
    let load = load.prop_map(|(node, a_milli, millis, cost)| Load { node, a_milli, millis, cost });
    prop::collection::vec(load, 1..12)
}

fn cases(cases: u32) -> Config {
    Config { max_shrink_iters: 400, ..Config::with_cases(tidegate_test_support::times(cases)) }
}

/// Sends requests, and calls `check` after each of them.
fn run(
    fleet: &Fleet,
    api: &Named,
    loads: &[Load],
    mut check: impl FnMut(&Load, Decision) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    for load in loads {
        for _ in 0..load.millis {
            fleet.wait(1);
            for _ in 0..load.a_milli {
                check(load, decide(fleet, load.node, api, load.cost))?;
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(20))]

    /// A node that says that nothing remains holds nothing: the next request at the same instant is denied, unless the store
    /// has got something back since the node last heard of it.
    #[test]
    fn something_remains_while_a_node_would_admit(text in select(&LIMITS[..]), loads in loads()) {
        let (fleet, api) = (Fleet::new(2), Named::new("api", text));
        run(&fleet, &api, &loads, |load, decision| {
            if decision.remaining > 0 {
                return Ok(());
            }
            let calls = fleet.calls(load.node);
            let next = decide(&fleet, load.node, &api, 1);
            prop_assert!(!next.is_allowed() || fleet.calls(load.node) > calls, "{:?}, then {:?}", decision, next);
            Ok(())
        })?;
    }

    /// Whatever has happened before, and however large the cost: a client that waits as long as this node says is admitted by
    /// it, if nobody spends meanwhile. If another node has spent since this one last heard of the store, the next denial says
    /// how long. No wait is more than one interval longer than that of the store, unless another node has returned tokens within
    /// the last second: this node learns of them within one.
    #[test]
    fn a_wait_is_sufficient_and_hardly_longer_than_that_of_the_store(
        text in select([LIMITS.as_slice(), &LONG_WINDOWS].concat()),
        loads in loads(),
        node in 0_usize..2,
        cost in select(vec![1_u64, 1, 3, 40, 300]),
    ) {
        let (fleet, api) = (Fleet::new(2), Named::new("api", text));
        let returned = || fleet.leases(1 - node).returned;
        let (mut last_returned, mut returned_at) = (0, Timestamp::EPOCH);
        run(&fleet, &api, &loads, |_, _| {
            if returned() > last_returned {
                (last_returned, returned_at) = (returned(), fleet.clock.now());
            }
            Ok(())
        })?;
        let mut decision = decide(&fleet, node, &api, cost);
        while decision.is_allowed() {
            decision = decide(&fleet, node, &api, cost);
        }
        let mut waits = Vec::new();
        while let Some(wait) = decision.retry_after() {
            let of_store = finish(fleet.store.peek(&[api.charge().cost(cost)])).unwrap()[0];
            let shortest = of_store.retry_after().unwrap_or(Micros::ZERO);
            if wait.get() > shortest.get() + INTERVAL.get() {
                let since_returned = fleet.clock.now().since(returned_at);
                prop_assert!(since_returned <= REMEMBERED, "{}, but {} by the store", wait, shortest);
                fleet.clock.advance(REMEMBERED.max(shortest));
                decision = decide(&fleet, node, &api, cost);
                prop_assert!(decision.is_allowed(), "{}, but {} by the store a second ago: {:?}", wait, shortest, decision);
                return Ok(());
            }
            waits.push(wait);
            prop_assert!(waits.len() <= 2, "denied after {:?}", waits);
            fleet.clock.advance(wait);
            decision = decide(&fleet, node, &api, cost);
        }
    }
}

/// The exemption in the property above is needed, and it ends: a node asks the store again within a second, however long it was
/// told to wait.
#[test]
fn returned_tokens_are_noticed_within_a_second() {
    let (fleet, api) = (Fleet::new(2), Named::new("api", "fixed 1500/5s"));
    fleet.load(1, api.charge(), 3, 100);
    fleet.load(0, api.charge(), 20, 100);
    let mut denied = None;
    for _ in 0..1_000 {
        if fleet.leases(1).returned > 0 {
            break;
        }
        fleet.wait(1);
        denied = decide(&fleet, 0, &api, 1).retry_after().or(denied);
    }
    assert!(fleet.leases(1).returned > 0, "{:?}", fleet.leases(1));
    assert!(denied.is_some_and(|wait| wait > Micros::from_secs(3)), "{denied:?}");
    let admitted_after = (0..=1_000).find(|_| {
        let is_allowed = fleet.is_allowed(0, api.charge());
        fleet.wait(1);
        is_allowed
    });
    assert!(admitted_after.is_some(), "not within a second");
}
