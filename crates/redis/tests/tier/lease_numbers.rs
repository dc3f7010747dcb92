//! The numbers in decisions of a node with leases: what remains, how long to wait, when everything has recovered.

use tidegate_core::{Clock, Decision, Micros, Store};

use crate::leases::Named;
use crate::nodes::Fleet;
use crate::support::finish;

const LIMITS: [&str; 4] = ["100/s burst 1000", "gcra 100/s burst 1000", "fixed 500/s", "sliding 500/s"];
/// The longest interval between two renewals.
const INTERVAL: Micros = Micros::from_millis(200);

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

#[test]
fn the_reset_stands_still_between_two_calls_of_the_store() {
    for text in LIMITS {
        let (fleet, api) = (Fleet::new(1), Named::new("api", text));
        let (mut last, mut compared) = (None, 0);
        for _ in 0..2_000 {
            fleet.wait(1);
            let decision = decide(&fleet, 0, &api, 1);
            let (calls, resets_at) = (fleet.calls(0), fleet.clock.now() + decision.reset_after);
            if let Some((before, reset)) = last
                && before == calls
                && decision.reset_after > Micros::ZERO
            {
                assert_eq!(resets_at, reset, "{text}: {decision:?}");
                compared += 1;
            }
            last = Some((calls, resets_at));
        }
        assert!(compared > 1_000, "{text}: {compared}");
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

/// A node does not know what others have spent since its last renewal. Buckets recover meanwhile. A window that others have used up
/// does not, and the next denial says when it ends.
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
