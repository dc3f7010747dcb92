//! Verdicts: the decisions of all limits on one request, combined.

use crate::charge::Charge;
use crate::decision::{Decision, Outcome};
use crate::time::Micros;

/// The combined decision of all limits on one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the request may go ahead.
    ///
    /// If all limits allow it, it may go ahead after the longest delay. If some deny it, after the longest wait among them,
    /// because until then at least one of them still denies it. If it is too large for any limit, never.
    pub outcome: Outcome,
    /// The index of the binding limit among the charges, which belongs in headers. If the request was denied, this is the
    /// limit that determines the outcome, otherwise the one with the smallest share left. `None` if there were no charges.
    pub binding: Option<usize>,
}

impl Verdict {
    /// The verdict without charges: nothing limits the request.
    pub const NONE: Verdict = Verdict { outcome: Outcome::Allow { delay: Micros::ZERO }, binding: None };

    /// Combines the decisions on the charges of one request.
    #[must_use]
    pub fn of(decisions: &[Decision]) -> Verdict {
        let mut verdict = Verdict::NONE;
        for (index, decision) in decisions.iter().enumerate() {
            if verdict.binding.is_none_or(|binding| is_tighter(decision, &decisions[binding])) {
                verdict.binding = Some(index);
            }
            verdict.outcome = combine(verdict.outcome, decision.outcome);
        }
        verdict
    }

    /// The index of the binding limit among some decisions, by the order of [`Verdict::binding`].
    #[must_use]
    pub fn binding_among<'d>(decisions: impl IntoIterator<Item = (usize, &'d Decision)>) -> Option<usize> {
        let tighter = |tightest: Option<(usize, &'d Decision)>, one: (usize, &'d Decision)| match tightest {
            Some(tightest) if !is_tighter(one.1, tightest.1) => Some(tightest),
            _ => Some(one),
        };
        decisions.into_iter().fold(None, tighter).map(|(index, _)| index)
    }

    /// Returns `true` if the request may go ahead.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allow { .. })
    }

    /// The denied charges, with their decisions.
    pub fn refusals<'a, 'b>(
        charges: &'a [Charge<'b>],
        decisions: &'a [Decision],
    ) -> impl Iterator<Item = (&'a Charge<'b>, &'a Decision)> {
        charges.iter().zip(decisions).filter(|(_, decision)| !decision.is_allowed())
    }
}

fn combine(one: Outcome, other: Outcome) -> Outcome {
    use Outcome::{Allow, Deny, TooLarge};
    match (one, other) {
        (TooLarge { max }, TooLarge { max: other }) => TooLarge { max: max.min(other) },
        (TooLarge { max }, Allow { .. } | Deny { .. }) | (Allow { .. } | Deny { .. }, TooLarge { max }) => {
            TooLarge { max }
        }
        (Deny { retry_after }, Deny { retry_after: other }) => Deny { retry_after: retry_after.max(other) },
        (Deny { retry_after }, Allow { .. }) | (Allow { .. }, Deny { retry_after }) => Deny { retry_after },
        (Allow { delay }, Allow { delay: other }) => Allow { delay: delay.max(other) },
    }
}

fn is_tighter(one: &Decision, other: &Decision) -> bool {
    use Outcome::{Allow, Deny, TooLarge};
    match (one.outcome, other.outcome) {
        (TooLarge { max }, TooLarge { max: other }) => max < other,
        (TooLarge { .. }, Allow { .. } | Deny { .. }) => true,
        (Deny { retry_after }, Deny { retry_after: other }) => retry_after > other,
        (Deny { .. }, Allow { .. }) => true,
        (Allow { .. }, Allow { .. }) => share_left_is_less(one, other),
        (Allow { .. } | Deny { .. }, TooLarge { .. }) | (Allow { .. }, Deny { .. }) => false,
    }
}

fn share_left_is_less(one: &Decision, other: &Decision) -> bool {
    u128::from(one.remaining) * u128::from(other.limit) < u128::from(other.remaining) * u128::from(one.limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(outcome: Outcome, limit: u64, remaining: u64) -> Decision {
        Decision { outcome, limit, remaining, reset_after: Micros::ZERO }
    }

    const ALLOW: Outcome = Outcome::Allow { delay: Micros::ZERO };

    fn deny(secs: u64) -> Outcome {
        Outcome::Deny { retry_after: Micros::from_secs(secs) }
    }

    #[test]
    fn nothing_limits_a_request_without_charges() {
        assert_eq!(Verdict::of(&[]), Verdict { outcome: ALLOW, binding: None });
    }

    #[test]
    fn the_longest_wait_among_those_that_denied_counts() {
        let decisions = [decision(deny(1), 10, 0), decision(ALLOW, 10, 9), decision(deny(60), 10, 0)];
        assert_eq!(Verdict::of(&decisions), Verdict { outcome: deny(60), binding: Some(2) });
    }

    #[test]
    fn costs_that_never_fit_have_no_retry() {
        let never = Outcome::TooLarge { max: 5 };
        let decisions = [decision(deny(1), 10, 0), decision(never, 5, 5), decision(deny(60), 10, 0)];
        assert_eq!(Verdict::of(&decisions), Verdict { outcome: never, binding: Some(1) });
    }

    #[test]
    fn the_binding_limit_of_an_allowed_request_is_the_one_it_is_closest_to() {
        let decisions = [decision(ALLOW, 10, 5), decision(ALLOW, 1_000, 400), decision(ALLOW, 4, 2)];
        assert_eq!(Verdict::of(&decisions).binding, Some(1));
    }

    #[test]
    fn the_longest_delay_counts() {
        let delay = |secs| Outcome::Allow { delay: Micros::from_secs(secs) };
        let decisions = [decision(delay(2), 1, 1), decision(delay(3), 1, 1), decision(ALLOW, 1, 1)];
        assert_eq!(Verdict::of(&decisions).outcome, delay(3));
    }
}
