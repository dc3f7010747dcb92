//! The recovery of a limit's quota over time.

use super::{Algorithm, Gcra, Limit, Meter, Shaper, TokenBucket, Windows};
use crate::decision::{Decision, Outcome};
use crate::time::Micros;

/// The way in which a limit's quota recovers, and the time that a full recovery takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recovery {
    /// At a constant rate: buckets.
    Steady(Micros),
    /// All at once, when the window ends: fixed windows.
    AtOnce(Micros),
    /// Gradually, as each admission leaves the window: sliding windows and logs.
    Rolling(Micros),
    /// On release, at any time: slots.
    OnRelease,
}

impl Recovery {
    /// The time of a full recovery; `None` for slots.
    #[must_use]
    pub const fn window(self) -> Option<Micros> {
        match self {
            Recovery::Steady(window) | Recovery::AtOnce(window) | Recovery::Rolling(window) => Some(window),
            Recovery::OnRelease => None,
        }
    }

    /// The time until more than `decision.remaining` can be admitted, if nothing is spent meanwhile. Never longer than the
    /// [wait](Decision::retry_after) of a denied request.
    ///
    /// `None` if nothing is spent, and if the decision does not determine the time: for slots, and for an allowed request
    /// under a limit with [rolling](Recovery::Rolling) recovery.
    #[must_use]
    pub fn more_after(self, decision: &Decision) -> Option<Micros> {
        if decision.remaining >= decision.limit {
            return None;
        }
        let retry_after = decision.retry_after();
        let until_more = match self {
            Recovery::OnRelease => return None,
            Recovery::Rolling(_) => return retry_after,
            Recovery::AtOnce(_) => decision.reset_after,
            Recovery::Steady(window) => {
                // The amount still missing once one more unit has recovered. Rounded up, so that the time is not too long.
                let missing = u128::from(decision.limit - decision.remaining - 1);
                let later = (missing * u128::from(window.get())).div_ceil(u128::from(decision.limit));
                let later = u64::try_from(later).unwrap_or(u64::MAX);
                Micros::new(decision.reset_after.get().saturating_sub(later).max(1))
            }
        };
        Some(retry_after.map_or(until_more, |wait| wait.min(until_more)))
    }

    /// The decision to report for a denial whose cost was charged anyway. `after` is the state of the key after the charge.
    #[must_use]
    pub fn charged_though_denied(self, denied: &Decision, after: &Decision) -> Decision {
        let outcome = match (denied.outcome, self) {
            (Outcome::Deny { retry_after }, Recovery::Steady(_)) => {
                // The charge moved the whole line.
                let moved = after.reset_after.get().saturating_sub(denied.reset_after.get());
                Outcome::Deny { retry_after: Micros::new(retry_after.get().saturating_add(moved)) }
            }
            (Outcome::Deny { retry_after }, Recovery::AtOnce(_) | Recovery::Rolling(_) | Recovery::OnRelease) => {
                // Enough has recovered at the latest when everything has.
                Outcome::Deny { retry_after: retry_after.max(after.reset_after) }
            }
            (outcome @ (Outcome::Allow { .. } | Outcome::TooLarge { .. }), _) => outcome,
        };
        Decision { outcome, ..*after }
    }
}

impl Limit {
    /// The way in which the quota recovers.
    #[must_use]
    #[inline]
    pub const fn recovery(&self) -> Recovery {
        match self.algorithm() {
            Algorithm::TokenBucket(TokenBucket { bucket })
            | Algorithm::Gcra(Gcra { bucket })
            | Algorithm::Meter(Meter { bucket })
            | Algorithm::Shaper(Shaper { bucket }) => Recovery::Steady(bucket.time_to_fill()),
            Algorithm::FixedWindow(limit) => Recovery::AtOnce(match limit.windows() {
                Windows::Every(length) => length,
                Windows::Calendar(calendar) => calendar.longest(),
            }),
            Algorithm::SlidingWindow(limit) => Recovery::Rolling(limit.window()),
            Algorithm::SlidingLog(limit) => Recovery::Rolling(limit.window()),
            Algorithm::Concurrency(_) => Recovery::OnRelease,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::Timestamp;

    const NOW: Timestamp = Timestamp::from_secs(1_767_225_600);

    fn limit(text: &str) -> Limit {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_bucket_has_more_as_soon_as_one_token_has_come() {
        let limit = limit("2/min burst 2");
        let mut state = limit.fresh();
        let mut more = || limit.recovery().more_after(&limit.decide(&mut state, 1, NOW)).map(Micros::as_secs_ceil);
        assert_eq!([more(), more(), more()], [Some(30), Some(30), Some(30)]);
        assert_eq!(limit.recovery().more_after(&limit.evaluate(&limit.fresh(), 0, NOW)), None, "all is left");
    }

    #[test]
    fn a_window_has_more_when_it_ends() {
        let limit = limit("fixed 3/min");
        let mut state = limit.fresh();
        let decision = limit.decide(&mut state, 1, NOW + Micros::from_secs(20));
        assert_eq!(limit.recovery().more_after(&decision), Some(Micros::from_secs(40)));
    }

    proptest! {
        /// Until that time, no more than `remaining` can be admitted.
        #[test]
        fn no_more_than_what_remains_can_be_used_until_then(
            text in prop::sample::select(vec![
                "7/s burst 10", "3/min burst 9", "gcra 100/min burst 10", "meter 3/min burst 20", "shaper 10/s queue 50",
                "fixed 10/min", "sliding 10/min", "sliding 12/min parts 6", "log 10/min", "1/month burst 3",
            ]),
            spending in prop::collection::vec((0_u64..4, 0_u64..20_000_000), 1..12),
        ) {
            let limit = limit(text);
            let (mut state, mut now) = (limit.fresh(), NOW);
            for (cost, pause) in spending {
                now = now + Micros::new(pause);
                let decision = limit.decide(&mut state, cost, now);
                let Some(more) = limit.recovery().more_after(&decision) else { continue };
                prop_assert!(decision.retry_after().is_none_or(|wait| more <= wait));
                let just_before = now + Micros::new(more.get().saturating_sub(1));
                if decision.retry_after().is_none() || !matches!(limit.recovery(), Recovery::Rolling(_)) {
                    prop_assert!(limit.evaluate(&state, 0, just_before).remaining <= decision.remaining, "{}", limit);
                }
            }
        }
    }
}
