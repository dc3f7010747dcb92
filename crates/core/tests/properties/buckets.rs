//! Token bucket and GCRA: burst and rate are never exceeded.

use proptest::prelude::*;
use tidegate_core::limit::ChargeMark;
use tidegate_core::receipt::ReceiptId;
use tidegate_core::{Limit, Micros, Outcome, Timestamp};

use tidegate_test_support::limits::{Bucket, buckets};
use tidegate_test_support::traces::{KeyOperation, TraceClock, requests_ahead, starts, traces};

/// An admission.
struct Admission {
    at: u64,
    cost: u64,
}

fn admitted_on(
    limit: &Limit,
    start: u64,
    requests: &[(tidegate_test_support::traces::ClockMove, tidegate_test_support::traces::Cost)],
) -> Vec<Admission> {
    let (mut state, mut clock) = (limit.fresh(), TraceClock::at(start));
    let mut admitted = Vec::new();
    for &(by, cost) in requests {
        let now = clock.go(by, limit);
        let cost = cost.of(limit);
        let decision = limit.decide(&mut state, cost, now);
        clock.remember_wait(&decision);
        if decision.is_allowed() {
            admitted.push(Admission { at: now.as_micros(), cost });
        }
    }
    admitted
}

/// Whether these admissions, with `more` at the end, are within the burst plus the tokens that recovered since the first of
/// them. Both sides are in tokens times microseconds.
fn is_within(bucket: &Bucket, admitted: &[Admission], more: u64, until: u64) -> bool {
    let Some(first) = admitted.first() else { return more <= bucket.capacity };
    let (period, tokens) = (u128::from(bucket.rate.period().get()), u128::from(bucket.rate.tokens()));
    let cost: u128 = admitted.iter().map(|admitted| u128::from(admitted.cost)).sum();
    (cost + u128::from(more)) * period <= u128::from(bucket.capacity) * period + tokens * u128::from(until - first.at)
}

proptest! {
    #![proptest_config(crate::properties::cases(1_000))]

    #[test]
    fn token_bucket_and_gcra_agree_on_every_trace(bucket in buckets(), start in starts(), steps in traces()) {
        let limits = [bucket.token_bucket(), bucket.gcra(), bucket.meter()];
        let mut states = limits.map(|limit| limit.fresh());
        let mut clock = TraceClock::at(start);
        for (by, op) in steps {
            let now = clock.go(by, &limits[0]);
            let answers = [0, 1, 2].map(|each| {
                let (limit, state) = (&limits[each], &mut states[each]);
                let id = ReceiptId::ANONYMOUS;
                let answer = match op {
                    KeyOperation::Decide(cost) => (Some(limit.decide(state, cost.of(limit), now)), 0),
                    KeyOperation::Penalize(cost) => { limit.charge(state, cost.of(limit), now, id); (None, 0) }
                    KeyOperation::Credit(cost) => (None, limit.credit(state, cost.of(limit), now)),
                    KeyOperation::Refund { cost, .. } => (None, limit.refund(state, cost.of(limit), ChargeMark::default(), now, id)),
                    KeyOperation::Renew { .. } => (None, u64::from(limit.resync(state, now))),
                };
                (answer, limit.is_ahead(state, now), limit.is_recovered(state, now))
            });
            if let (Some(decision), _) = answers[0].0 {
                clock.remember_wait(&decision);
            }
            prop_assert_eq!(answers[0], answers[1]);
            prop_assert_eq!(answers[0], answers[2]);
        }
    }

    #[test]
    fn a_request_is_admitted_just_when_every_interval_that_ends_with_it_allows_it(
        bucket in buckets(), start in starts(), requests in requests_ahead(),
    ) {
        let limit = bucket.token_bucket();
        let (mut state, mut clock) = (limit.fresh(), TraceClock::at(start));
        let mut admitted: Vec<Admission> = Vec::new();
        for (by, cost) in requests {
            let now = clock.go(by, &limit);
            let (at, cost) = (now.as_micros(), cost.of(&limit));
            let allowed_at = |at| (0..=admitted.len()).all(|from| is_within(&bucket, &admitted[from..], cost, at));
            let decision = limit.decide(&mut state, cost, now);
            clock.remember_wait(&decision);
            match decision.outcome {
                Outcome::Allow { .. } => {
                    prop_assert!(allowed_at(at));
                    admitted.push(Admission { at, cost });
                }
                Outcome::Deny { retry_after } => {
                    prop_assert!(allowed_at(at + retry_after.get()));
                    prop_assert!(!allowed_at(at + retry_after.get() - 1));
                }
                Outcome::TooLarge { max } => prop_assert!(max == bucket.capacity && cost > max),
            }
        }
    }

    #[test]
    fn any_interval_admits_at_most_burst_plus_rate_times_its_length(
        bucket in buckets(), start in starts(), requests in requests_ahead(),
    ) {
        for limit in [bucket.token_bucket(), bucket.gcra(), bucket.meter(), bucket.shaper()] {
            let admitted = admitted_on(&limit, start, &requests);
            for from in 0..admitted.len() {
                for to in from..admitted.len() {
                    prop_assert!(is_within(&bucket, &admitted[from..=to], 0, admitted[to].at));
                }
            }
        }
    }

    #[test]
    fn a_greedy_client_gets_exactly_burst_plus_rate_times_time(
        bucket in buckets(), start in starts(), pauses in prop::collection::vec(0_u64..=1_000, 1..100),
    ) {
        // A pause in which the bucket fills up wastes tokens, so the longest pause is one token short of that.
        let spare = u128::from(bucket.capacity.saturating_sub(1)) * u128::from(bucket.rate.period().get());
        let longest = u64::try_from(spare / u128::from(bucket.rate.tokens())).unwrap().min(1 << 45);
        prop_assume!(bucket.capacity > 0);
        for limit in [bucket.token_bucket(), bucket.gcra(), bucket.meter()] {
            let (mut state, mut elapsed, mut got) = (limit.fresh(), 0_u64, 0_u128);
            for pause in &pauses {
                let now = Timestamp::from_micros(start.min(1 << 52)) + Micros::new(elapsed);
                let all = limit.evaluate(&state, 0, now).remaining;
                prop_assert!(limit.decide(&mut state, all, now).is_allowed());
                got += u128::from(all);
                let brought = u128::from(elapsed) * u128::from(bucket.rate.tokens());
                prop_assert_eq!(
                    got, u128::from(bucket.capacity) + brought / u128::from(bucket.rate.period().get())
                );
                elapsed += u64::try_from(u128::from(longest) * u128::from(*pause) / 1_000).unwrap();
            }
        }
    }

    #[test]
    fn one_token_after_another_comes_exactly_on_time(bucket in buckets(), start in starts()) {
        prop_assume!(bucket.capacity > 0);
        let limit = bucket.gcra();
        let start = start.min(1 << 52);
        let (mut state, mut now) = (limit.fresh(), Timestamp::from_micros(start));
        prop_assert!(limit.decide(&mut state, bucket.capacity, now).is_allowed());
        let (period, tokens) = (u128::from(bucket.rate.period().get()), u128::from(bucket.rate.tokens()));
        // At several tokens per microsecond, a small bucket overflows, which another property tests.
        let longest_burst = tokens / period + 1;
        prop_assume!(u128::from(bucket.capacity) > longest_burst);
        for number in 1..=300_u128 {
            let due = start + u64::try_from((number * period).div_ceil(tokens)).unwrap();
            while !limit.decide(&mut state, 1, now).is_allowed() {
                prop_assert!(now.as_micros() < due);
                let wait = limit.evaluate(&state, 1, now).retry_after().unwrap();
                prop_assert!(!wait.is_zero());
                now = now + wait;
            }
            prop_assert_eq!(now.as_micros(), due);
        }
    }
}
