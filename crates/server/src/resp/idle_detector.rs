//! Detection of idle connections.

use std::time::Duration;

/// Number of checks without activity after which a connection is closed.
const IDLE_CHECKS: u32 = 4;
/// Interval at which a connection without idle timeout releases unused buffers.
const SHRINK_INTERVAL: Duration = Duration::from_secs(30);

/// Detects idle connections without reading a clock while there is activity.
pub(super) struct IdleDetector {
    pub(super) idle: Option<Duration>,
    touched: bool,
    looks: u32,
}

impl IdleDetector {
    pub(super) const fn new(idle: Option<Duration>) -> IdleDetector {
        IdleDetector { idle, touched: false, looks: 0 }
    }

    pub(super) const fn touch(&mut self) {
        self.touched = true;
    }

    /// Time until the next check.
    pub(super) fn check_interval(&self) -> Duration {
        self.idle.map_or(SHRINK_INTERVAL, |idle| idle / IDLE_CHECKS)
    }

    /// Checks for activity since the previous check. Returns whether the idle timeout has passed.
    pub(super) fn is_over(&mut self) -> bool {
        self.looks = if std::mem::take(&mut self.touched) { 0 } else { self.looks + 1 };
        self.idle.is_some() && self.looks >= IDLE_CHECKS
    }
}
