//! Bounds that all algorithms share.

use crate::time::Micros;

/// The longest period that a rate or a window may have: a leap year.
pub const LONGEST_PERIOD: Micros = Micros::from_secs(366 * 86_400);
/// The shortest window of any algorithm.
pub const SHORTEST_WINDOW: Micros = Micros::from_millis(1);
