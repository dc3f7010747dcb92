//! GCRA, the generic cell rate algorithm: the token bucket told by one timestamp.
//!
//! The state is the theoretical arrival time ([`Tat`](super::Tat)): the instant at which everything spent has come back.
//! A request moves it `cost / rate` further, from now if it lies in the past, and is refused if that would put it more
//! than `capacity / rate` ahead of now. Decision for decision this is the token bucket.

use super::LimitError;
use super::bucket::Bucket;
use crate::limit::Rate;

/// The generic cell rate algorithm with a burst of `capacity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gcra {
    pub(super) bucket: Bucket,
}

impl Gcra {
    /// At most `capacity` at once and `rate` in the long run. A capacity of zero admits nothing.
    ///
    /// # Errors
    /// [`LimitError::CapacityTooLarge`] if the arrival time could not be counted exactly.
    pub fn new(capacity: u64, rate: Rate) -> Result<Gcra, LimitError> {
        Ok(Gcra { bucket: Bucket::new(capacity, rate)? })
    }

    /// The largest burst.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.bucket.capacity()
    }

    /// The sustained rate.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.bucket.rate()
    }
}
