//! Shaper: requests leave one by one, and at most the capacity waits.

use proptest::prelude::*;
use tidegate_core::receipt::ReceiptId;
use tidegate_core::{Limit, Timestamp};

use tidegate_test_support::limits::buckets;
use tidegate_test_support::traces::{TraceClock, costs, moves, requests_ahead, starts};

/// A request in the queue.
struct Queued {
    leaves: u64,
    cost: u64,
}

proptest! {
    #![proptest_config(crate::properties::cases(800))]

    #[test]
    fn departures_are_as_far_apart_as_their_cost_takes(
        bucket in buckets(), start in starts(), requests in prop::collection::vec((moves(), costs()), 1..80),
    ) {
        let limit = bucket.shaper();
        let (period, tokens) = (u128::from(bucket.rate.period().get()), u128::from(bucket.rate.tokens()));
        let (mut state, mut clock) = (limit.fresh(), TraceClock::at(start));
        let mut queue: Vec<Queued> = Vec::new();
        for (by, cost) in requests {
            let now = clock.go(by, &limit);
            // After a long step back, the end of the queue is moved and earlier departures are invalid.
            if limit.resync(&mut state, now) {
                break;
            }
            let decision = limit.decide(&mut state, cost.of(&limit), now);
            clock.remember_wait(&decision);
            if !decision.is_allowed() || cost.of(&limit) == 0 {
                continue;
            }
            queue.push(Queued { leaves: now.as_micros() + decision.delay().get(), cost: cost.of(&limit) });
            let last = queue.last().unwrap();
            let mut ahead = 0;
            for earlier in queue.iter().rev().skip(1) {
                ahead += u128::from(earlier.cost);
                prop_assert!(earlier.leaves <= last.leaves);
                // Departures are rounded up to whole microseconds. So two departures may be a fraction of a microsecond
                // closer than the cost between them takes, but never a whole microsecond.
                prop_assert!(u128::from(last.leaves - earlier.leaves + 1) * tokens > ahead * period);
            }
        }
    }

    #[test]
    fn the_queue_holds_at_most_its_capacity(
        bucket in buckets(), start in starts(), requests in requests_ahead(),
    ) {
        let limit = bucket.shaper();
        let (mut state, mut clock) = (limit.fresh(), TraceClock::at(start));
        let mut queue: Vec<Queued> = Vec::new();
        for (by, cost) in requests {
            let now = clock.go(by, &limit);
            let decision = limit.decide(&mut state, cost.of(&limit), now);
            clock.remember_wait(&decision);
            if decision.is_allowed() {
                let leaves = now.as_micros() + decision.delay().get();
                prop_assert!(decision.delay().get() <= bucket.recovery());
                queue.push(Queued { leaves, cost: cost.of(&limit) });
            }
            let waiting = queue.iter().filter(|queued| queued.leaves > now.as_micros());
            prop_assert!(waiting.map(|queued| queued.cost).sum::<u64>() <= bucket.capacity);
        }
    }

    #[test]
    fn a_request_that_finds_the_queue_empty_leaves_at_once(bucket in buckets(), start in starts(), cost in costs()) {
        let limit = bucket.shaper();
        let (mut state, now) = (limit.fresh(), TraceClock::at(start).now());
        prop_assume!(cost.of(&limit) <= bucket.capacity);
        let decision = limit.decide(&mut state, cost.of(&limit), now);
        prop_assert!(decision.is_allowed() && decision.delay().is_zero());
    }

    #[test]
    fn a_queue_of_one_never_delays(start in starts(), bucket in buckets(), requests in requests_ahead()) {
        let limit = tidegate_test_support::limits::Bucket { capacity: 1, ..bucket }.shaper();
        let (mut state, mut clock) = (limit.fresh(), TraceClock::at(start));
        for (by, cost) in requests {
            let now = clock.go(by, &limit);
            let decision = limit.decide(&mut state, cost.of(&limit), now);
            clock.remember_wait(&decision);
            prop_assert!(decision.delay().is_zero() || cost.of(&limit) == 0);
        }
    }
}

#[test]
fn a_queue_that_holds_nothing_delays_nobody_after_a_step_back() {
    let limit: Limit = "shaper 1/s queue 0".parse().unwrap();
    let mut state = limit.fresh();
    limit.charge(&mut state, 0, Timestamp::from_secs(10), ReceiptId::ANONYMOUS);
    assert!(limit.decide(&mut state, 0, Timestamp::from_secs(5)).delay().is_zero());
}
