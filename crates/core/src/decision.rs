//! Decisions of limits.

use crate::time::Micros;

/// The decision of one limit on one request.
///
/// The numbers are exact. After an allowed request, they include its charge. A denied request spends nothing, so
/// the numbers describe the key as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request may go ahead.
    pub outcome: Outcome,
    /// The most that this limit can admit at once.
    pub limit: u64,
    /// The largest cost that would be admitted right now.
    pub remaining: u64,
    /// The time until all spending has recovered; for a fixed window, the time until the window ends.
    pub reset_after: Micros,
}

/// Whether and when a request may go ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request may go ahead after `delay` (zero for all limits but a shaper).
    Allow {
        /// The time to hold the request back.
        delay: Micros,
    },
    /// The request may not go ahead now.
    Deny {
        /// The exact wait after which the request succeeds if nothing else is spent. One microsecond less is too
        /// short. Never zero.
        retry_after: Micros,
    },
    /// The request can never succeed: its cost is above the limit's capacity.
    TooLarge {
        /// The largest cost that can succeed.
        max: u64,
    },
}

impl Decision {
    /// The decision where no limit applies: allowed at once.
    pub const NONE: Decision =
        Decision { outcome: Outcome::Allow { delay: Micros::ZERO }, limit: 0, remaining: 0, reset_after: Micros::ZERO };

    /// Returns `true` if the request may go ahead, possibly after [`Decision::delay`].
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allow { .. })
    }

    /// The time to hold an allowed request back; zero for all limits but a shaper.
    #[must_use]
    pub const fn delay(&self) -> Micros {
        match self.outcome {
            Outcome::Allow { delay } => delay,
            Outcome::Deny { .. } | Outcome::TooLarge { .. } => Micros::ZERO,
        }
    }

    /// The wait after which a denied request succeeds if nothing else is spent. `None` if it was allowed or can never succeed.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Micros> {
        match self.outcome {
            Outcome::Deny { retry_after } => Some(retry_after),
            Outcome::Allow { .. } | Outcome::TooLarge { .. } => None,
        }
    }
}
