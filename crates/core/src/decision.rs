//! What a limit answers.

use crate::time::Micros;

/// One limit's answer to one request for `cost` units.
///
/// The numbers are exact. For an allowed request they describe the key after the request was charged; for a refused
/// one, as it stands, for a refused request spends nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request may go ahead.
    pub outcome: Outcome,
    /// The most that this limit can ever admit at once.
    pub limit: u64,
    /// The largest cost that would be admitted right now.
    pub remaining: u64,
    /// How long until nothing that was spent counts any more. For a fixed window: until it ends.
    pub reset_after: Micros,
}

/// Whether a request may go ahead, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It may, once `delay` has passed (zero for all limits but a shaper).
    Allow {
        /// How long to hold the request back.
        delay: Micros,
    },
    /// It may not now.
    Deny {
        /// If nobody else spends, waiting exactly this long succeeds, and a microsecond less does not. Never zero.
        retry_after: Micros,
    },
    /// It never will: it costs more than the limit can hold.
    TooLarge {
        /// The largest cost that can succeed.
        max: u64,
    },
}

impl Decision {
    /// The decision where no limit applies: allowed at once.
    pub const NONE: Decision =
        Decision { outcome: Outcome::Allow { delay: Micros::ZERO }, limit: 0, remaining: 0, reset_after: Micros::ZERO };

    /// Whether the request may go ahead (perhaps after [`Decision::delay`]).
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allow { .. })
    }

    /// How long to hold the request back before it goes ahead; zero unless a shaper says otherwise.
    #[must_use]
    pub const fn delay(&self) -> Micros {
        match self.outcome {
            Outcome::Allow { delay } => delay,
            Outcome::Deny { .. } | Outcome::TooLarge { .. } => Micros::ZERO,
        }
    }

    /// When a denied request succeeds if nobody else spends. `None` if it was allowed, or if it never will.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Micros> {
        match self.outcome {
            Outcome::Deny { retry_after } => Some(retry_after),
            Outcome::Allow { .. } | Outcome::TooLarge { .. } => None,
        }
    }
}
