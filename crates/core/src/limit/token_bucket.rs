//! Token bucket: separate burst and sustained rate.
//!
//! The bucket holds `capacity` tokens and starts full. It is refilled at `refill`, lazily: its state is the amount spent
//! and an instant ([`Level`](super::Level)). A request takes its cost in tokens or is denied.

use super::bucket::Bucket;
use super::error::LimitError;
use super::rate::Rate;

/// A token bucket. In any span of length `t` it admits at most `capacity + refill · t`. A client that uses all of it gets
/// exactly that, rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    pub(super) bucket: Bucket,
}

impl TokenBucket {
    /// A bucket of `capacity` tokens, refilled at `refill`. A capacity of zero admits nothing.
    ///
    /// # Errors
    /// [`LimitError::CapacityTooLarge`] if the level could not be counted exactly.
    pub fn new(capacity: u64, refill: Rate) -> Result<TokenBucket, LimitError> {
        Ok(TokenBucket { bucket: Bucket::new(capacity, refill)? })
    }

    /// Maximum number of tokens in the bucket.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.bucket.capacity()
    }

    /// The rate at which spent tokens recover.
    #[must_use]
    pub const fn refill(&self) -> Rate {
        self.bucket.rate()
    }
}
