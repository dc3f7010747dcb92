//! Additive increase, multiplicative decrease.

use super::{LimitRange, Sample};
use crate::time::Micros;

/// Raises the limit by one while requests succeed, and lowers it by a tenth when one is dropped or takes too long.
#[derive(Clone, Debug, PartialEq)]
pub struct Aimd {
    /// The bounds of the limit. 20 to 200 by default.
    pub range: LimitRange,
    /// The factor of a decrease. 0.9 by default.
    pub backoff: f64,
    /// The round trip above which a request counts as dropped. Five seconds by default.
    pub timeout: Micros,
    limit: f64,
}

impl Aimd {
    /// A limit within `range` that begins at its lower bound.
    #[must_use]
    pub fn new(range: LimitRange) -> Aimd {
        Aimd { range, backoff: 0.9, timeout: Micros::from_secs(5), limit: range.min() }
    }

    /// The present limit.
    #[must_use]
    pub fn limit(&self) -> u32 {
        LimitRange::whole(self.limit)
    }

    /// Follows a sample.
    pub fn update(&mut self, sample: &Sample) {
        if sample.is_dropped || sample.round_trip > self.timeout {
            self.limit = self.range.clamp((self.limit * self.backoff).floor());
        } else if f64::from(sample.in_flight) * 2.0 >= self.limit {
            self.limit = self.range.clamp(self.limit + 1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_computed_by_hand() {
        let mut aimd = Aimd::new(LimitRange::new(20, 22).unwrap());
        let sample =
            |millis, in_flight, is_dropped| Sample { round_trip: Micros::from_millis(millis), in_flight, is_dropped };
        for (sample, limit) in [
            (sample(1, 9, false), 20),
            (sample(1, 10, false), 21),
            (sample(5_000, 21, false), 22),
            (sample(1, 21, false), 22),
            (sample(5_001, 1, false), 20),
            (sample(1, 20, false), 21),
            (sample(1, 1, true), 20),
        ] {
            aimd.update(&sample);
            assert_eq!(aimd.limit(), limit, "{sample:?}");
        }
    }
}
