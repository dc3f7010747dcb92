//! Conversion of past decisions to the present, for keys that were not charged in between.

use tidegate_core::limit::{Algorithm, Rate};
use tidegate_core::{Decision, Limit, Micros, Outcome};

/// The present denial of `wanted` that follows from a decision on `cost` made `passed` ago. `None` if none follows, or if
/// the wait is unknown.
pub(super) fn refusal(limit: &Limit, given: &Decision, cost: u64, wanted: u64, passed: Micros) -> Option<Decision> {
    let outcome = match given.outcome {
        Outcome::Allow { .. } => return None,
        Outcome::Deny { .. } | Outcome::TooLarge { .. } if wanted > limit.capacity() => {
            Outcome::TooLarge { max: limit.capacity() }
        }
        Outcome::Deny { retry_after } => {
            let longer = wait_for_more(limit, wanted.checked_sub(cost)?)?;
            let left = less(retry_after, passed);
            Outcome::Deny { retry_after: Micros::new(left.get().saturating_add(longer).max(1)) }
        }
        Outcome::TooLarge { .. } => return None,
    };
    Some(Decision { outcome, ..standing(limit, given, passed) })
}

/// The present state of the key, from a decision made `passed` ago. `remaining` is a lower bound.
pub(super) fn standing(limit: &Limit, given: &Decision, passed: Micros) -> Decision {
    let delay = match given.outcome {
        Outcome::Allow { delay } => less(delay, passed),
        Outcome::Deny { .. } | Outcome::TooLarge { .. } => Micros::ZERO,
    };
    let reset_after = less(given.reset_after, passed);
    let remaining = match rate_of(limit) {
        Some(rate) => given.remaining.max(left_in_bucket(limit.capacity(), rate, reset_after)),
        None => given.remaining,
    };
    Decision { outcome: Outcome::Allow { delay }, limit: given.limit, remaining, reset_after }
}

/// The additional wait of a cost that is larger by `more`, in microseconds, rounded up.
fn wait_for_more(limit: &Limit, more: u64) -> Option<u64> {
    if more == 0 {
        return Some(0);
    }
    match limit.algorithm() {
        // The end of the window is the same for every cost.
        Algorithm::FixedWindow(_) => Some(0),
        Algorithm::SlidingWindow(_) | Algorithm::SlidingLog(_) | Algorithm::Concurrency(_) => None,
        Algorithm::TokenBucket(_) | Algorithm::Gcra(_) | Algorithm::Meter(_) | Algorithm::Shaper(_) => {
            let rate = rate_of(limit)?;
            let drops = u128::from(more) * u128::from(rate.drops_per_token());
            u64::try_from(drops.div_ceil(u128::from(rate.drops_per_micro()))).ok()
        }
    }
}

/// The tokens of a bucket that will be full again after this time, as a lower bound.
fn left_in_bucket(capacity: u64, rate: Rate, reset_after: Micros) -> u64 {
    let per_token = u128::from(rate.drops_per_token());
    let full = u128::from(capacity) * per_token;
    let spent = u128::from(reset_after.get()) * u128::from(rate.drops_per_micro());
    u64::try_from(full.saturating_sub(spent) / per_token).unwrap_or(capacity)
}

fn rate_of(limit: &Limit) -> Option<Rate> {
    match limit.algorithm() {
        Algorithm::TokenBucket(limit) => Some(limit.refill()),
        Algorithm::Gcra(limit) => Some(limit.rate()),
        Algorithm::Meter(limit) => Some(limit.outflow()),
        Algorithm::Shaper(limit) => Some(limit.outflow()),
        Algorithm::FixedWindow(_)
        | Algorithm::SlidingWindow(_)
        | Algorithm::SlidingLog(_)
        | Algorithm::Concurrency(_) => None,
    }
}

fn less(span: Micros, passed: Micros) -> Micros {
    Micros::new(span.get().saturating_sub(passed.get()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;
    use tidegate_core::Timestamp;

    use super::*;

    const LIMITS: [&str; 12] = [
        "5/s burst 9",
        "7/s burst 12",
        "gcra 3/s burst 9",
        "gcra 1000/s burst 30",
        "gcra 3000000/s burst 30",
        "meter 2/min burst 6",
        "shaper 11/s queue 9",
        "fixed 20/min",
        "fixed 12/month calendar",
        "sliding 9/6s parts 3",
        "sliding 25/min",
        "log 9/10s",
    ];

    proptest! {
        /// For any spending at any time, the store would give the same denial.
        #[test]
        fn a_refusal_that_is_counted_down_is_what_the_limit_says(
            limit in select(&LIMITS[..]),
            spent in prop::collection::vec((1_u64..9, 0_u64..3_000_000), 1..12),
            cost in 0_u64..9,
            more in 0_u64..30,
            share in 0.0_f64..1.0,
        ) {
            let limit: Limit = limit.parse().unwrap();
            let (mut state, mut now) = (limit.fresh(), Timestamp::from_secs(1_700_000_000));
            for (cost, wait) in spent {
                limit.decide(&mut state, cost, now);
                now = now + Micros::new(wait);
            }
            // Spends everything, so that the next request is denied.
            let left = limit.evaluate(&state, 0, now).remaining;
            limit.decide(&mut state, left, now);
            let cost = cost.max(limit.evaluate(&state, 0, now).remaining + 1).min(limit.capacity());
            let given = limit.evaluate(&state, cost, now);
            prop_assume!(!given.is_allowed());
            let retry_after = given.retry_after().unwrap().get();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a share")]
            let passed = Micros::new(((retry_after - 1) as f64 * share) as u64);
            let wanted = cost + more;

            let real = limit.evaluate(&state, wanted, now + passed);
            prop_assert!(!real.is_allowed());
            if let Some(derived) = refusal(&limit, &given, cost, wanted, passed) {
                prop_assert_eq!((derived.limit, derived.reset_after), (real.limit, real.reset_after));
                prop_assert!(derived.remaining <= real.remaining, "{:?} {:?}", derived, real);
                if cost == 1 || matches!(limit.algorithm(), Algorithm::FixedWindow(_)) {
                    prop_assert_eq!(derived.remaining, real.remaining);
                }
                if rate_of(&limit).is_some_and(|rate| rate.drops_per_micro() == 1) {
                    prop_assert_eq!(derived, real);
                }
                match (derived.outcome, real.outcome) {
                    (Outcome::Deny { retry_after: derived }, Outcome::Deny { retry_after: real }) => {
                        prop_assert!(derived == real || more > 0 && derived.get() == real.get() + 1);
                    }
                    (derived, real) => prop_assert_eq!(derived, real),
                }
            } else {
                prop_assert!(more > 0 && matches!(limit.algorithm(), Algorithm::SlidingWindow(_) | Algorithm::SlidingLog(_)));
            }
            let left = limit.evaluate(&state, 0, now);
            let later = limit.evaluate(&state, 0, now + passed);
            let derived = standing(&limit, &left, passed);
            prop_assert!(derived.remaining <= later.remaining);
        }
    }

    #[test]
    fn a_smaller_cost_is_not_refused_by_what_a_larger_one_was_told() {
        let limit: Limit = "10/s".parse().unwrap();
        let mut state = limit.fresh();
        let now = Timestamp::from_secs(1_000);
        limit.decide(&mut state, 8, now);
        let given = limit.evaluate(&state, 5, now);
        assert!(!given.is_allowed());
        assert_eq!(refusal(&limit, &given, 5, 4, Micros::ZERO), None);
        let too_large = limit.evaluate(&state, 11, now);
        assert_eq!(refusal(&limit, &too_large, 11, 5, Micros::ZERO), None);
        assert_eq!(refusal(&limit, &too_large, 11, 12, Micros::ZERO), Some(too_large));
    }
}
