//! Clock steps: nothing is admitted twice, and no key waits for long.

use proptest::prelude::*;
use tidegate_core::limit::{Algorithm, SlidingWindow, State, Windows};
use tidegate_core::{Limit, Micros, Outcome, Timestamp};

use tidegate_test_support::limits::{any_limit, bucket_of, buckets, span_of};
use tidegate_test_support::traces::{ClockMove, Cost, TraceClock, costs, moves, requests_ahead, starts};

/// Requests and penalties.
fn spending() -> impl Strategy<Value = Vec<(ClockMove, Cost, bool)>> {
    prop::collection::vec((moves(), costs(), prop::bool::weighted(0.1)), 1..40)
}

fn spend(limit: &Limit, clock: &mut TraceClock, steps: &[(ClockMove, Cost, bool)]) -> State {
    let mut state = limit.fresh();
    for &(by, cost, is_penalty) in steps {
        let now = clock.go(by, limit);
        let decision = limit.decide(&mut state, cost.of(limit), now);
        clock.remember_wait(&decision);
        if is_penalty {
            limit.charge(&mut state, cost.of(limit), now, tidegate_core::receipt::ReceiptId::new(1));
        }
    }
    state
}

/// The wait of a request that is not too large.
fn wait(limit: &Limit, state: &State, cost: u64, now: Timestamp) -> u64 {
    match limit.decide(&mut state.clone(), cost, now).outcome {
        Outcome::Allow { .. } => 0,
        Outcome::Deny { retry_after } => retry_after.get(),
        Outcome::TooLarge { .. } => unreachable!("no cost here is above the capacity"),
    }
}

/// The longest wait of a key after any clock steps.
fn longest_wait(limit: &Limit) -> u64 {
    match limit.algorithm() {
        // A debt of one capacity, in addition to the capacity.
        Algorithm::TokenBucket(_) | Algorithm::Gcra(_) | Algorithm::Meter(_) | Algorithm::Shaper(_) => {
            2 * bucket_of(limit).unwrap().recovery()
        }
        // At most to the end of the next window.
        Algorithm::FixedWindow(window) => match window.windows() {
            Windows::Every(window) => 2 * window.get(),
            Windows::Calendar(calendar) => 2 * calendar.longest().get(),
        },
        // The state may be a whole window ahead, and the spending in its last part expires over one more window.
        Algorithm::SlidingWindow(window) => {
            (2 * u64::from(window.parts()) + 1) * (window.window().get() / u64::from(window.parts()))
        }
        Algorithm::SlidingLog(log) => 2 * log.window().get(),
        Algorithm::Concurrency(limit) => limit.ttl().get(),
    }
}

proptest! {
    #![proptest_config(crate::properties::cases(1_000))]

    #[test]
    fn a_step_back_frees_nothing(
        limit in any_limit(), start in starts(), steps in spending(), back in 0_u64..400, exactly in 0_u64..2_000_000,
    ) {
        let mut clock = TraceClock::at(start);
        let state = spend(&limit, &mut clock, &steps);
        let remaining = |now| limit.decide(&mut state.clone(), 0, now).remaining;
        let before = remaining(clock.now());
        for by in [ClockMove::BackBy(back), ClockMove::Back(exactly)] {
            let stepped = clock.clone().go(by, &limit);
            prop_assert!(remaining(stepped) <= before, "{} after the step, {before} before", remaining(stepped));
        }
    }

    #[test]
    fn a_step_back_holds_nobody_back_for_longer_than_the_step(
        limit in any_limit(), start in starts(), steps in spending(), back in 0_u64..400, share in 0_u64..=64,
    ) {
        let mut clock = TraceClock::at(start);
        let state = spend(&limit, &mut clock, &steps);
        let cost = Cost::Share(share).of(&limit);
        let now = clock.now();
        let stepped = clock.go(ClockMove::BackBy(back), &limit);
        let longer = wait(&limit, &state, cost, now) + now.since(stepped).get();
        prop_assert!(wait(&limit, &state, cost, stepped) <= longer);
    }

    #[test]
    fn no_clock_freezes_a_key_for_longer_than_it_takes_to_recover(
        limit in any_limit(), start in starts(), steps in spending(), share in 0_u64..=64,
    ) {
        let mut clock = TraceClock::at(start);
        let mut state = spend(&limit, &mut clock, &steps);
        let now = clock.now();
        prop_assert!(wait(&limit, &state, Cost::Share(share).of(&limit), now) <= longest_wait(&limit));
        limit.resync(&mut state, now);
        if let Some(recovered) = Some(now + Micros::new(longest_wait(&limit) + span_of(&limit)))
            && recovered < Timestamp::MAX
        {
            prop_assert!(limit.is_recovered(&state, recovered));
        }
    }

    #[test]
    fn whatever_the_clock_does_a_bucket_admits_no_more_than_the_time_that_passed_allows(
        bucket in buckets(), start in starts(), steps in spending(),
    ) {
        for limit in [bucket.token_bucket(), bucket.gcra(), bucket.meter(), bucket.shaper()] {
            let (mut state, mut clock) = (limit.fresh(), TraceClock::at(start));
            // Moves ahead take at most the time that passed. Steps back take no time.
            let (mut passed, mut got) = (0_u128, 0_u128);
            for &(by, cost, _) in &steps {
                let before = clock.now();
                let now = clock.go(by, &limit);
                passed += u128::from(now.since(before).get());
                let decision = limit.decide(&mut state, cost.of(&limit), now);
                clock.remember_wait(&decision);
                if decision.is_allowed() {
                    got += u128::from(cost.of(&limit));
                }
                let (period, tokens) = (u128::from(bucket.rate.period().get()), u128::from(bucket.rate.tokens()));
                prop_assert!(got * period <= u128::from(bucket.capacity) * period + passed * tokens);
            }
        }
    }

    #[test]
    fn a_step_ahead_brings_what_the_skipped_time_would_have(
        bucket in buckets(), start in starts(), steps in spending(), step in 0_u64..1 << 50,
    ) {
        for limit in [bucket.token_bucket(), bucket.gcra(), bucket.meter(), bucket.shaper()] {
            let mut clock = TraceClock::at(start);
            let state = spend(&limit, &mut clock, &steps);
            let remaining = |now| limit.decide(&mut state.clone(), 0, now).remaining;
            let before = remaining(clock.now());
            let after = remaining(clock.now() + Micros::new(step));
            let (period, tokens) = (u128::from(bucket.rate.period().get()), u128::from(bucket.rate.tokens()));
            let brought = (u128::from(step) * tokens).div_ceil(period);
            prop_assert!(before <= after);
            prop_assert!(u128::from(after - before) <= brought.min(u128::from(bucket.capacity)));
        }
    }

    #[test]
    fn the_state_is_only_moved_where_the_clock_stepped_back_or_debt_is_too_deep(
        limit in any_limit(), start in starts(), steps in requests_ahead(),
    ) {
        let (mut state, mut clock) = (limit.fresh(), TraceClock::at(start));
        for (by, cost) in steps {
            let now = clock.go(by, &limit);
            prop_assert!(!limit.is_ahead(&state, now));
            limit.charge(&mut state, cost.of(&limit), now, tidegate_core::receipt::ReceiptId::new(1));
            prop_assert!(!limit.is_ahead(&state, now));
        }
    }
}

#[test]
fn a_step_back_to_late_in_a_part_does_not_fade_what_was_just_spent() {
    let limit = Limit::from(SlidingWindow::new(10, Micros::from_secs(1)).unwrap());
    let mut state = limit.fresh();
    assert!(limit.decide(&mut state, 10, Timestamp::from_micros(99_900_000)).is_allowed());
    assert!(limit.decide(&mut state, 1, Timestamp::from_micros(100_100_000)).is_allowed());
    assert_eq!(limit.decide(&mut state, 0, Timestamp::from_micros(100_100_000)).remaining, 0);
    assert_eq!(limit.decide(&mut state, 0, Timestamp::from_micros(50_990_000)).remaining, 0);
}

#[test]
fn a_step_back_to_the_epoch_is_like_any_other() {
    let limit = Limit::from(SlidingWindow::new(1, Micros::from_millis(1)).unwrap());
    let mut state = limit.fresh();
    assert!(limit.decide(&mut state, 1, Timestamp::from_secs(1)).is_allowed());
    assert!(limit.decide(&mut state, 1, Timestamp::from_secs(1) + Micros::from_millis(2)).is_allowed());
    // Reading the key a millisecond later makes the spent part the previous one.
    assert_eq!(limit.credit(&mut state, 0, Timestamp::from_secs(1) + Micros::from_millis(3)), 0);
    assert!(!limit.decide(&mut state, 1, Timestamp::EPOCH).is_allowed());
}
