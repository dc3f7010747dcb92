//! Expectations, compared with the simulation.

use std::sync::Arc;

use proptest::prelude::*;
use tidegate_core::{Limit, Micros};
use tidegate_lab::accuracy::{Judge, Promise};
use tidegate_lab::expect::{self, expect};
use tidegate_lab::simulate::Simulation;
use tidegate_lab::traffic::{START, Trace, Traffic};

fn limits() -> impl Strategy<Value = Limit> {
    let count = 1..40_u64;
    let period = prop_oneof![Just("s"), Just("2s"), Just("500ms"), Just("min")];
    (0..8_usize, count.clone(), count, period, 1..5_u32).prop_map(|(kind, count, other, period, parts)| {
        let text = match kind {
            0 => format!("{count}/{period} burst {other}"),
            1 => format!("gcra {count}/{period} burst {other}"),
            2 => format!("meter {count}/{period} burst {other}"),
            3 => format!("shaper {count}/{period} queue {other}"),
            4 => format!("fixed {count}/{period}"),
            5 => format!("sliding {count}/{period} parts {}", [1, 2, 4, 5][parts as usize % 4]),
            6 => format!("log {count}/{period}"),
            _ => format!("concurrent {count} ttl {period}"),
        };
        text.parse().unwrap()
    })
}

fn traffics() -> impl Strategy<Value = Traffic> {
    let part = (0..7_usize, 1..60_u64, 0..20_u64, 1..9_u64).prop_map(|(kind, rate, base, span)| match kind {
        0 => format!("steady {rate}/s"),
        1 => format!("poisson {rate}/s"),
        2 => format!("square {rate}/s {base}/s every {span}s"),
        3 => format!("ramp {base}/s {rate}/s over {span}s"),
        4 => format!("on-off {rate}/s on {span}s off {}s random", base + 1),
        5 => format!("spike {rate} at {base}s within {span}s"),
        _ => format!("boundary {rate} every {span}s"),
    });
    let clients = prop_oneof![Just(""), Just(" clients 3"), Just(" clients 7 zipf 1.2")];
    let whole =
        (part.clone(), part, clients, 1..3_u64, 0..3_u8).prop_map(|(one, other, clients, cost, joined)| match joined {
            0 => format!("{one}{clients} cost {cost}"),
            1 => format!("{one}{clients} + {other} cost {cost}"),
            _ => format!("{one}{clients} for 7s then {other} times 1.5"),
        });
    whole.prop_map(|text| text.parse().unwrap_or_else(|error| panic!("{text}: {error}")))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(tidegate_test_support::times(64)))]

    /// The bounds are strict for any traffic.
    #[test]
    fn no_traffic_passes_the_bounds(limit in limits(), traffic in traffics(), seed: u64, seconds in 1..40_u64) {
        let length = Micros::from_secs(seconds);
        let expected = expect(&traffic, &limit, START, length, None);
        let mut simulation = Simulation::new(&[limit]);
        let promise = expect::worst_window(&limit).map(|worst| Promise { limit: worst.most, window: Micros::new(worst.length) });
        let mut judge = promise.map(|promise| Judge::new(limit, promise));
        for arrival in traffic.arrivals(length, seed) {
            simulation.take(&arrival);
            if let Some(judge) = &mut judge {
                judge.take(&arrival);
            }
        }
        let totals = simulation.totals()[0];
        prop_assert!(totals.admitted_cost <= expected.ceiling.unwrap(), "{limit} {traffic}: {totals:?} {expected:?}");
        if let (Some(judge), Some(promise)) = (judge, promise) {
            prop_assert!(judge.judgement().worst <= promise.limit, "{limit} {traffic}: {:?}", judge.judgement());
        }
        prop_assert!(expected.accepted <= expected.cost + 1e-6);
        prop_assert!(expected.accepted <= expected.ceiling.unwrap() as f64, "{limit} {traffic}: {expected:?}");
        prop_assert!((0.0..=1.0 + 1e-9).contains(&expected.acceptance));
    }

    /// The number of arrivals is as expected: exactly for even traffic, within the statistical error for random traffic.
    #[test]
    fn as_many_arrive_as_expected(traffic in traffics(), seed: u64, seconds in 1..40_u64) {
        let length = Micros::from_secs(seconds);
        let limit: Limit = "1/s".parse().unwrap();
        let expected = expect(&traffic, &limit, START, length, None).arrivals;
        let came = traffic.arrivals(length, seed).count() as f64;
        // Six standard deviations, and one for the edges of each of up to a dozen phases.
        prop_assert!((came - expected).abs() <= 6.0 * expected.sqrt() + 14.0, "{traffic}: {came}, expected {expected}");
    }

    /// An exhausted limit has recovered after its drain time.
    #[test]
    fn all_that_was_spent_has_come_back_when_it_says(limit in limits(), offset in 0..60_000_000_u64) {
        let now = START + Micros::new(offset);
        let mut state = limit.fresh();
        while limit.decide(&mut state, 1, now).is_allowed() {}
        let drain = expect::drain(&limit, None);
        prop_assert!(limit.is_recovered(&state, now + drain), "{limit}: {state:?} after {drain}");
        // For windows the drain time is an upper bound; for other algorithms it is exact.
        let exact = !matches!(limit.to_string().split(' ').next(), Some("fixed" | "sliding"));
        prop_assert!(!exact || !limit.is_recovered(&state, now + drain - Micros::new(1).min(drain)) || drain.is_zero());
    }
}

#[test]
fn the_cost_of_recorded_requests_is_apart_from_their_number() {
    let limit: Limit = "100/s".parse().unwrap();
    let recorded = Traffic::Recorded(Arc::new(Trace::read("0,ann,5\n1,bob,2\n2,ann,2\n").unwrap()));
    let expected = |traffic: &Traffic| {
        let expected = expect(traffic, &limit, START, Micros::from_secs(10), None);
        (expected.arrivals, expected.cost)
    };
    assert_eq!(expected(&recorded), (3.0, 9.0));
    assert_eq!(expected(&Traffic::Costing { of: Box::new(recorded), cost: 4 }), (3.0, 12.0));
}

/// The expected and the simulated share of admitted requests.
fn shares(limit: &str, traffic: &str, seconds: u64) -> (f64, f64) {
    let (limit, traffic): (Limit, Traffic) = (limit.parse().unwrap(), traffic.parse().unwrap());
    let length = Micros::from_secs(seconds);
    let expected = expect(&traffic, &limit, START, length, None);
    let mut simulation = Simulation::new(&[limit]);
    traffic.arrivals(length, 3).for_each(|arrival| {
        simulation.take(&arrival);
    });
    let totals = simulation.totals()[0];
    (expected.acceptance, totals.admitted_cost as f64 / totals.cost as f64)
}

#[test]
fn evenly_spaced_traffic_fares_as_expected() {
    for limit in ["20/s burst 50", "gcra 20/s", "fixed 20/s", "log 20/s", "sliding 20/s parts 10", "fixed 600/min"] {
        for traffic in [
            "steady 10/s",
            "steady 50/s",
            "square 80/s 5/s every 10s",
            "ramp 0/s 100/s over 60s",
            "on-off 100/s on 2s off 8s",
        ] {
            let (expected, admitted) = shares(limit, traffic, 120);
            assert!((expected - admitted).abs() < 0.03, "{limit}, {traffic}: {admitted}, expected {expected}");
        }
    }
}

#[test]
fn traffic_by_chance_fares_as_expected_away_from_the_limit() {
    for limit in ["20/s burst 50", "fixed 20/s", "log 20/s"] {
        for traffic in ["poisson 5/s", "poisson 100/s", "poisson 400/s clients 100 zipf 1", "steady 400/s clients 4"] {
            let (expected, admitted) = shares(limit, traffic, 300);
            assert!((expected - admitted).abs() < 0.03, "{limit}, {traffic}: {admitted}, expected {expected}");
        }
    }
}

#[test]
fn random_traffic_under_a_concurrency_limit_fares_as_erlang_says() {
    for (limit, traffic) in [
        ("concurrent 3 ttl 1min", "poisson 6/min"),
        ("concurrent 10 ttl 2s", "poisson 5/s"),
        ("concurrent 10 ttl 1s", "poisson 30/s clients 4"),
        ("concurrent 8 ttl 1s", "poisson 5/s cost 2"),
        ("concurrent 5 ttl 1s", "square 20/s 1/s every 20s random"),
    ] {
        let (expected, admitted) = shares(limit, traffic, 6_000);
        assert!((expected - admitted).abs() < 0.03, "{limit}, {traffic}: {admitted}, expected {expected}");
    }
}

#[test]
fn an_attack_on_the_boundary_of_windows_is_expected_to_succeed() {
    for count in [50, 100, 150] {
        let (expected, admitted) = shares("fixed 100/min", &format!("boundary {count} every 1min"), 600);
        assert!((expected - admitted).abs() < 0.01, "{count}: {admitted}, expected {expected}");
    }
}

#[test]
fn a_greedy_client_gets_exactly_the_ceiling() {
    for (limit, seconds) in [("20/s burst 50", 10), ("gcra 7/min burst 3", 600), ("fixed 9/s", 5), ("log 9/s", 5)] {
        let parsed: Limit = limit.parse().unwrap();
        let length = Micros::from_secs(seconds);
        let mut simulation = Simulation::new(&[parsed]);
        let greedy: Traffic = "steady 1000/s".parse().unwrap();
        greedy.arrivals(length, 1).for_each(|arrival| {
            simulation.take(&arrival);
        });
        let ceiling = expect::ceiling(&parsed, START, length, None).unwrap();
        assert_eq!(simulation.totals()[0].admitted, ceiling, "{limit}");
    }
}

#[test]
fn a_seed_means_the_same_arrivals_for_ever() {
    let traffic: Traffic =
        "poisson 300/s clients 1000 zipf 1.1 + square 90/s 3/s every 7s random cost 3 for 30s then ramp 0 40/s over 20s".parse().unwrap();
    let mut sum = 0_u64;
    for arrival in traffic.arrivals(Micros::from_secs(60), 42) {
        let word = arrival.at.as_micros() ^ u64::from(arrival.client) << 32 ^ arrival.cost << 56;
        sum = sum.rotate_left(5).wrapping_mul(0x0100_0000_01b3) ^ word;
    }
    assert_eq!(sum, ARRIVALS, "this machine or this version draws other arrivals than those before it");
}

/// A checksum of the arrivals of the test above, which must never change.
const ARRIVALS: u64 = 14_569_071_526_229_599_869;
