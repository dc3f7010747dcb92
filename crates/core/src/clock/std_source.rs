//! The wall clock, read from the operating system each time.

use super::wall_micros;
use crate::time::Timestamp;

/// The source of [`SystemClock`](super::SystemClock) without the feature `tsc`.
#[derive(Clone, Debug)]
pub(super) struct StdSource;

impl StdSource {
    pub(super) fn new() -> StdSource {
        StdSource
    }

    #[inline]
    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_micros(wall_micros())
    }
}
