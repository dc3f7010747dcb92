//! Adaptive limits: limits that follow the capacity of a server.
//!
//! # Concurrency
//! A [`LimitController`] computes a limit from [`Sample`]s: round-trip times, requests in flight, outcomes. It is pure: equal
//! samples give equal limits. [`AdaptiveConcurrency`] enforces the limit: it counts requests in flight, refuses those above the
//! limit, and sums up round trips into one sample a second.
//!
//! | controller | signal | follows |
//! |---|---|---|
//! | [`Aimd`] | a round trip above a bound, or a drop | additive increase, multiplicative decrease |
//! | [`Vegas`] | the queue that the round trip implies | a queue of 3 to 6 times log10 of the limit |
//! | [`Gradient2`] | the ratio of the usual to the present round trip | a round trip of up to 1.5 times the usual one |
//!
//! Formulas and defaults are those of Netflix's concurrency-limits, with two differences. Drops lower every limit if they are
//! more than [a small part](SampleWindow#drops), and their round trips are ignored. And the round trip without load, which Vegas and Gradient2 compare with, is never taken from
//! an overloaded server: it is [probed](ProbeSchedule) with half of the limit, so that an overload that lasts does not become
//! the usual state.
//!
//! ```
//! use tidegate_core::adaptive::{AdaptiveConcurrency, LimitController, SampleOutcome};
//!
//! let concurrency = AdaptiveConcurrency::new("gradient2 20..200".parse::<LimitController>()?);
//! match concurrency.try_acquire(0) {
//!     Some(permit) => permit.finish(SampleOutcome::Success),
//!     None => println!("503"),
//! }
//! # Ok::<(), tidegate_core::adaptive::ControllerError>(())
//! ```
//!
//! # Rate
//! [`RateSteps`] are the values of a rate that rises with time and falls by a part of itself. An [`OutcomeWindow`]
//! compares the requests of each interval with [`OverloadSignal`]s, and so determines when the rate has to fall.
//! Neither reads a clock: instants are arguments.

mod aimd;
#[cfg(test)]
mod closed_loop;
mod concurrency;
mod constants;
mod controller;
mod controller_error;
mod gradient2;
mod limit_range;
mod load_probe;
mod outcome_window;
mod overload_signal;
#[cfg(test)]
mod rate_closed_loop;
mod rate_steps;
mod throughput_trend;
mod vegas;
mod window;

pub use aimd::Aimd;
pub use concurrency::{AdaptiveConcurrency, ConcurrencyPermit, DEFAULT_SHARES};
pub use constants::ConstantError;
pub use controller::LimitController;
pub use controller_error::ControllerError;
pub use gradient2::Gradient2;
pub use limit_range::LimitRange;
pub use load_probe::ProbeSchedule;
pub use outcome_window::{OutcomeWindow, ServiceHealth, ServiceOutcome};
pub use overload_signal::{OverloadSignal, OverloadSignalError};
pub use rate_steps::{RateSteps, RateStepsError};
pub use vegas::Vegas;
pub use window::{SampleWindow, SampleWindowError};

use crate::time::Micros;

/// A measurement of a server: one request, or all requests in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The time from the request to its response; for a window, the mean. Meaningless if a request was dropped.
    pub round_trip: Micros,
    /// The number of requests in flight at the beginning, including this one; for a window, the maximum.
    pub in_flight: u32,
    /// Whether the request was dropped: refused by the server for lack of capacity, or not answered in time. For a
    /// window: whether more requests were dropped than [are tolerated](SampleWindow::tolerated_drops).
    pub is_dropped: bool,
}

impl Sample {
    #[expect(clippy::cast_precision_loss, reason = "2^53 microseconds are 285 years")]
    fn micros(&self) -> f64 {
        self.round_trip.get() as f64
    }
}

/// The outcome of a request, as an indication of the server's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleOutcome {
    /// The server answered. Its round trip counts.
    Success,
    /// The round trip does not depend on load, as after a client error or a cancelled request.
    Ignored,
    /// The server refused for lack of capacity, or did not answer in time.
    Dropped,
}

impl SampleOutcome {
    /// The outcome of an HTTP response with this status, and with this gRPC status if its head has one.
    ///
    /// 503 and 504, and gRPC's `UNAVAILABLE` and `DEADLINE_EXCEEDED`, mean that the server lacks capacity. Other
    /// errors are ignored: many arrive sooner than an answer would, and a denial by a rate limit does not indicate
    /// a lack of capacity.
    #[must_use]
    pub const fn of_response(status: u16, grpc_status: Option<u32>) -> SampleOutcome {
        match (status, grpc_status) {
            (503 | 504, _) | (_, Some(4 | 14)) => SampleOutcome::Dropped,
            (400..=599, _) | (_, Some(1..)) => SampleOutcome::Ignored,
            (_, None | Some(0)) => SampleOutcome::Success,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SampleOutcome::{self, Dropped, Ignored, Success};

    #[test]
    fn overload_is_told_apart_from_other_errors() {
        let of = SampleOutcome::of_response;
        for success in [of(200, None), of(204, None), of(304, None), of(200, Some(0))] {
            assert_eq!(success, Success);
        }
        for ignored in [of(404, None), of(429, None), of(500, None), of(502, None), of(200, Some(8)), of(200, Some(5))]
        {
            assert_eq!(ignored, Ignored);
        }
        for dropped in [of(503, None), of(504, None), of(200, Some(14)), of(200, Some(4)), of(503, Some(0))] {
            assert_eq!(dropped, Dropped);
        }
    }
}
