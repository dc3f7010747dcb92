//! Denials spend nothing, and all numbers of a decision are exact.

use proptest::prelude::*;
use tidegate_core::limit::State;
use tidegate_core::receipt::ReceiptId;
use tidegate_core::{Decision, Limit, Micros, Outcome, Timestamp};

use crate::properties::model::number_of;
use tidegate_test_support::limits::{any_limit, calendar_windows, fixed_windows};
use tidegate_test_support::traces::{KeyOperation, Step, TraceClock, costs, starts, traces, traces_ahead};

/// Applies a trace to a key, and passes every decision with the states before and after it to `check`.
fn watch(
    limit: &Limit,
    start: u64,
    steps: &[Step],
    mut check: impl FnMut(&ObservedDecision) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let (mut after, mut hands) = (limit.fresh(), TraceClock::at(start));
    let mut marks = Vec::new();
    for (number, &(by, op)) in (1..).zip(steps) {
        let (now, id) = (hands.go(by, limit), ReceiptId::new(number));
        match op {
            KeyOperation::Decide(cost) => {
                let before = after.clone();
                let decision = limit.decide(&mut after, cost.of(limit), now);
                check(&ObservedDecision { before, after: after.clone(), cost: cost.of(limit), now, decision })?;
                hands.remember_wait(&decision);
            }
            KeyOperation::Penalize(cost) => marks.push((limit.charge(&mut after, cost.of(limit), now, id), id)),
            KeyOperation::Credit(cost) => {
                limit.credit(&mut after, cost.of(limit), now);
            }
            KeyOperation::Refund { which, cost } if !marks.is_empty() => {
                let (mark, id) = *which.get(&marks);
                limit.refund(&mut after, cost.of(limit), mark, now, id);
            }
            KeyOperation::Refund { .. } | KeyOperation::Renew { .. } => {}
        }
    }
    Ok(())
}

struct ObservedDecision {
    before: State,
    after: State,
    cost: u64,
    now: Timestamp,
    decision: Decision,
}

/// The instant after `wait`, unless it is beyond the end of time.
fn later(now: Timestamp, wait: Micros) -> Option<Timestamp> {
    let later = now + wait;
    (later.since(now) == wait).then_some(later)
}

proptest! {
    #![proptest_config(crate::properties::cases(1_000))]

    #[test]
    fn a_denied_request_leaves_the_state_bit_for_bit(limit in any_limit(), start in starts(), steps in traces()) {
        watch(&limit, start, &steps, |seen| {
            let mut before = seen.before.clone();
            // The only change that a denial can make is a correction after a step of the clock.
            if !limit.resync(&mut before, seen.now) {
                prop_assert_eq!(&before, &seen.before);
            }
            if !seen.decision.is_allowed() || seen.cost == 0 {
                prop_assert_eq!(&before, &seen.after);
            }
            Ok(())
        })?;
    }

    #[test]
    fn retry_after_is_tight(limit in any_limit(), start in starts(), steps in traces()) {
        watch(&limit, start, &steps, |seen| {
            let Some(wait) = seen.decision.retry_after() else { return Ok(()) };
            prop_assert!(!wait.is_zero());
            let Some(due) = later(seen.now, wait) else { return Ok(()) };
            prop_assert!(limit.decide(&mut seen.after.clone(), seen.cost, due).is_allowed());
            let early = due - Micros::new(1);
            prop_assert!(!limit.decide(&mut seen.after.clone(), seen.cost, early).is_allowed());
            Ok(())
        })?;
    }

    #[test]
    fn only_what_can_never_fit_is_too_large(limit in any_limit(), start in starts(), steps in traces()) {
        watch(&limit, start, &steps, |seen| {
            let never = matches!(seen.decision.outcome, Outcome::TooLarge { max } if max == limit.capacity());
            prop_assert_eq!(never, seen.cost > limit.capacity());
            prop_assert_eq!(seen.decision.limit, limit.capacity());
            Ok(())
        })?;
    }

    #[test]
    fn remaining_is_the_largest_cost_that_would_be_admitted(
        limit in any_limit(), start in starts(), steps in traces(),
    ) {
        watch(&limit, start, &steps, |seen| {
            let admits = |cost| limit.decide(&mut seen.after.clone(), cost, seen.now).is_allowed();
            let Decision { remaining, .. } = seen.decision;
            // A key in debt denies even a cost of zero.
            prop_assert!(admits(remaining) || (remaining == 0 && !admits(0)));
            prop_assert!(!admits(remaining + 1));
            prop_assert!(remaining <= limit.capacity());
            Ok(())
        })?;
    }

    #[test]
    fn at_reset_nothing_counts_and_not_a_moment_earlier(limit in any_limit(), start in starts(), steps in traces()) {
        let is_fixed = matches!(limit.algorithm(), tidegate_core::limit::Algorithm::FixedWindow(_));
        watch(&limit, start, &steps, |seen| {
            let Some(reset) = later(seen.now, seen.decision.reset_after) else { return Ok(()) };
            prop_assert!(limit.is_recovered(&seen.after, reset));
            if reset > seen.now && !is_fixed {
                prop_assert!(!limit.is_recovered(&seen.after, reset - Micros::new(1)));
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_recovered_key_answers_like_one_never_seen(
        limit in any_limit(), start in starts(), steps in traces_ahead(), cost in costs(), wait in 0_u64..10_000_000,
    ) {
        watch(&limit, start, &steps, |seen| {
            let Some(reset) = later(seen.now, seen.decision.reset_after) else { return Ok(()) };
            let now = reset + Micros::new(wait);
            let (mut old, mut new) = (seen.after.clone(), limit.fresh());
            for now in [now, now + Micros::new(wait)] {
                let cost = cost.of(&limit);
                prop_assert_eq!(limit.decide(&mut old, cost, now), limit.decide(&mut new, cost, now));
            }
            Ok(())
        })?;
    }

    #[test]
    fn reset_does_not_wobble(limit in any_limit(), start in starts(), steps in traces(), cost in costs()) {
        let is_fixed = matches!(limit.algorithm(), tidegate_core::limit::Algorithm::FixedWindow(_));
        watch(&limit, start, &steps, |seen| {
            let Some(reset) = later(seen.now, seen.decision.reset_after) else { return Ok(()) };
            // Until then, the reset time stays the same instant, as long as nothing is spent.
            for share in 0..=4 {
                let now = seen.now + Micros::new(seen.decision.reset_after.get() / 4 * share);
                let decision = limit.evaluate(&seen.after, 0, now);
                if now < reset {
                    prop_assert_eq!(now + decision.reset_after, reset);
                }
                // For a fixed window, spending does not change it.
                if now < reset && is_fixed {
                    prop_assert_eq!(now + limit.evaluate(&seen.after, cost.of(&limit), now).reset_after, reset);
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn every_key_has_the_same_reset_in_the_same_window(
        window in prop_oneof![fixed_windows(), calendar_windows()], start in starts(), steps in traces(),
    ) {
        let limit = Limit::from(window);
        let mut resets = std::collections::HashMap::new();
        watch(&limit, start, &steps, |seen| {
            let number = number_of(window.windows(), seen.now.as_micros());
            let reset = seen.now + limit.evaluate(&limit.fresh(), seen.cost, seen.now).reset_after;
            prop_assert_eq!(*resets.entry(number).or_insert(reset), reset);
            prop_assert_eq!(number_of(window.windows(), reset.as_micros()), number + 1);
            Ok(())
        })?;
    }

    #[test]
    fn evaluating_says_what_deciding_does(limit in any_limit(), start in starts(), steps in traces()) {
        watch(&limit, start, &steps, |seen| {
            prop_assert_eq!(limit.evaluate(&seen.before, seen.cost, seen.now), seen.decision);
            Ok(())
        })?;
    }
}
