//! Windows: bounds on the admissions in any window.

use proptest::prelude::*;
use tidegate_core::limit::SlidingWindow;
use tidegate_core::{Limit, Micros, Timestamp};

use crate::properties::model::number_of;
use tidegate_test_support::limits::{calendar_windows, fixed_windows, sliding_logs, sliding_windows};
use tidegate_test_support::traces::{ClockMove, Cost, TraceClock, requests_ahead, starts};

/// The admissions: instants and costs.
fn admitted_on(limit: &Limit, start: u64, requests: &[(ClockMove, Cost)]) -> Vec<(u64, u64)> {
    let (mut state, mut clock) = (limit.fresh(), TraceClock::at(start));
    let mut admitted = Vec::new();
    for &(by, cost) in requests {
        let now = clock.go(by, limit);
        let decision = limit.decide(&mut state, cost.of(limit), now);
        clock.remember_wait(&decision);
        if decision.is_allowed() {
            admitted.push((now.as_micros(), cost.of(limit)));
        }
    }
    admitted
}

fn sum(admitted: &[(u64, u64)], within: impl Fn(u64) -> bool) -> u64 {
    admitted.iter().filter(|(at, _)| within(*at)).map(|(_, cost)| cost).sum()
}

proptest! {
    #![proptest_config(crate::properties::cases(800))]

    #[test]
    fn the_log_never_holds_more_than_its_limit_in_any_window(
        log in sliding_logs(), start in starts(), requests in requests_ahead(),
    ) {
        let admitted = admitted_on(&log.into(), start, &requests);
        // The fullest windows are those that end with an admission.
        for &(end, _) in &admitted {
            let held = sum(&admitted, |at| at <= end && end < at + log.window().get());
            prop_assert!(held <= log.limit(), "{held} in the window that ends at {end}");
        }
    }

    #[test]
    fn the_log_admits_all_that_its_limit_allows(
        log in sliding_logs(), start in starts(), requests in requests_ahead(),
    ) {
        let limit = Limit::from(log);
        let (mut state, mut clock) = (limit.fresh(), TraceClock::at(start));
        let mut admitted = Vec::new();
        for (by, cost) in requests {
            let now = clock.go(by, &limit);
            let held = sum(&admitted, |at| now.as_micros() < at + log.window().get());
            let fits = cost.of(&limit) <= log.limit() - held;
            prop_assert_eq!(limit.decide(&mut state, cost.of(&limit), now).is_allowed(), fits);
            if fits {
                admitted.push((now.as_micros(), cost.of(&limit)));
            }
        }
    }

    #[test]
    fn a_fixed_window_admits_at_most_its_limit(
        window in prop_oneof![fixed_windows(), calendar_windows()], start in starts(), requests in requests_ahead(),
    ) {
        let admitted = admitted_on(&window.into(), start, &requests);
        let number = |at| number_of(window.windows(), at);
        for &(at, _) in &admitted {
            prop_assert!(sum(&admitted, |other| number(other) == number(at)) <= window.limit());
        }
    }

    #[test]
    fn the_sliding_counter_admits_at_most_its_limit_in_an_aligned_window(
        window in sliding_windows(), start in starts(), requests in requests_ahead(),
    ) {
        let admitted = admitted_on(&window.into(), start, &requests);
        let part = window.window().get() / u64::from(window.parts());
        for &(last, _) in &admitted {
            let end = (last / part + 1) * part;
            let begin = end.saturating_sub(window.window().get());
            prop_assert!(sum(&admitted, |at| begin <= at && at < end) <= window.limit());
        }
    }

    #[test]
    fn the_sliding_counter_stays_below_twice_its_limit(
        window in sliding_windows(), start in starts(), requests in requests_ahead(),
    ) {
        let admitted = admitted_on(&window.into(), start, &requests);
        for &(end, _) in &admitted {
            let held = sum(&admitted, |at| at <= end && end < at + window.window().get());
            prop_assert!(held <= (2 * window.limit()).saturating_sub(1), "{held} in the window that ends at {end}");
        }
    }
}

#[test]
fn the_sliding_counter_can_reach_one_less_than_twice_its_limit() {
    let limit = Limit::from(SlidingWindow::new(10, Micros::from_secs(1)).unwrap());
    let mut state = limit.fresh();
    assert!(limit.decide(&mut state, 10, Timestamp::from_micros(999_999)).is_allowed());
    assert!(limit.decide(&mut state, 9, Timestamp::from_micros(1_900_000)).is_allowed());
    // Ten at the end of one window and nine late in the next: nineteen within 0.900001 s.
    assert_eq!(limit.evaluate(&state, 1, Timestamp::from_micros(1_999_998)).remaining, 0);
}
