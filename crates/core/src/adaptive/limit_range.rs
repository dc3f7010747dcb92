//! The bounds of an adaptive concurrency limit.

use std::ops::RangeInclusive;
use std::str::FromStr;

use super::ControllerError;

/// Highest limit that can be set.
const MOST: u32 = 1_000_000;

/// The bounds of a concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitRange {
    pub(super) min: u32,
    pub(super) max: u32,
}

impl LimitRange {
    /// Bounds from 1 to 1 000 000, with `min` not above `max`.
    ///
    /// # Errors
    /// Fails if the bounds are outside that range or `min` is above `max`.
    pub fn new(min: u32, max: u32) -> Result<LimitRange, ControllerError> {
        if (1..=max).contains(&min) && max <= MOST {
            Ok(LimitRange { min, max })
        } else {
            Err(ControllerError::Range(format!("{min}..{max}")))
        }
    }

    /// The upper bound.
    #[must_use]
    pub const fn highest(self) -> u32 {
        self.max
    }

    pub(super) fn min(self) -> f64 {
        f64::from(self.min)
    }

    pub(super) const fn bounds(self) -> RangeInclusive<u32> {
        self.min..=self.max
    }

    pub(super) fn clamp(self, limit: f64) -> f64 {
        // `max` also replaces NaN by the lower bound.
        limit.max(f64::from(self.min)).min(f64::from(self.max))
    }

    /// Rounds a limit down to a whole number, at least 1.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "limits are from 1 to a million")]
    pub(super) fn whole(limit: f64) -> u32 {
        limit.max(1.0) as u32
    }
}

impl FromStr for LimitRange {
    type Err = ControllerError;

    fn from_str(text: &str) -> Result<LimitRange, ControllerError> {
        let wrong = || ControllerError::Range(text.to_owned());
        let (min, max) = text.split_once("..").ok_or_else(wrong)?;
        let number = |text: &str| text.replace('_', "").parse().map_err(|_| wrong());
        LimitRange::new(number(min)?, number(max)?).map_err(|_| wrong())
    }
}
