//! GCRA, the generic cell rate algorithm: the token bucket with a single timestamp as its state.
//!
//! The state is the theoretical arrival time ([`Tat`](super::Tat)): the instant at which all spending has recovered. A
//! request moves it ahead by `cost / rate`, from now if it lies in the past. The request is denied if that would put the
//! arrival time more than `capacity / rate` ahead of now. Its decisions are those of the token bucket.

use super::bucket::Bucket;
use super::error::LimitError;
use super::rate::Rate;

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
