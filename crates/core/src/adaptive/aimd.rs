//! Additive increase, multiplicative decrease.

use super::constants::{Constant, Constants};
use super::{LimitRange, Sample};
use crate::time::Micros;

/// Raises the limit by one after each success, and lowers it by a tenth when a request is dropped or takes too
/// long.
#[derive(Clone, Debug, PartialEq)]
pub struct Aimd {
    /// The bounds of the limit. 20 to 200 by default.
    pub range: LimitRange,
    /// The limit before the first sample. The lower bound by default.
    pub initial: u32,
    /// The factor of a decrease. 0.9 by default.
    pub backoff: f64,
    /// The round trip above which a request counts as dropped. Five seconds by default.
    pub timeout: Micros,
    /// The limit after the last sample.
    limit: Option<f64>,
}

impl Aimd {
    /// A limit within `range` that begins at its lower bound.
    #[must_use]
    pub fn new(range: LimitRange) -> Aimd {
        Aimd {
            range,
            initial: LimitRange::whole(range.min()),
            backoff: 0.9,
            timeout: Micros::from_secs(5),
            limit: None,
        }
    }

    pub(super) fn constants(&mut self) -> Constants<'_> {
        vec![
            ("initial", Constant::Count(&mut self.initial, self.range.bounds())),
            ("backoff", Constant::Number(&mut self.backoff, 0.1..=0.99)),
            ("timeout", Constant::Span(&mut self.timeout, Micros::from_millis(1)..=Micros::from_secs(3_600))),
        ]
    }

    fn exact(&self) -> f64 {
        self.limit.unwrap_or_else(|| self.range.clamp(f64::from(self.initial)))
    }

    /// The present limit.
    #[must_use]
    pub fn limit(&self) -> u32 {
        LimitRange::whole(self.exact())
    }

    /// Updates the limit from a sample.
    pub fn update(&mut self, sample: &Sample) {
        let limit = self.exact();
        if sample.is_dropped || sample.round_trip > self.timeout {
            self.limit = Some(self.range.clamp((limit * self.backoff).floor()));
        } else if f64::from(sample.in_flight) * 2.0 >= limit {
            self.limit = Some(self.range.clamp(limit + 1.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_computed_by_hand() {
        let mut aimd = Aimd::new(LimitRange::new(10, 22).unwrap());
        aimd.initial = 20;
        let sample =
            |millis, in_flight, is_dropped| Sample { round_trip: Micros::from_millis(millis), in_flight, is_dropped };
        for (sample, limit) in [
            (sample(1, 9, false), 20),
            (sample(1, 10, false), 21),
            (sample(5_000, 21, false), 22),
            (sample(1, 21, false), 22),
            (sample(5_001, 1, false), 19), // floor(22 * 0.9)
            (sample(1, 20, false), 20),
            (sample(1, 1, true), 18),
        ] {
            aimd.update(&sample);
            assert_eq!(aimd.limit(), limit, "{sample:?}");
        }
    }
}
