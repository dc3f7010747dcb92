//! Counts the requests of one connection.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of requests that have begun and ended on one connection.
#[derive(Debug, Default)]
pub(crate) struct RequestCount {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl RequestCount {
    /// Counts a request as begun.
    #[inline]
    pub(crate) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request as ended, with or without a response.
    #[inline]
    pub(crate) fn end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of requests that have begun.
    #[inline]
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether a request is in flight.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.ended.load(Ordering::Relaxed) != self.begun()
    }
}
