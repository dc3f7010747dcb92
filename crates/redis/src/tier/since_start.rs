//! A clock that never steps.

use tidegate_core::{Clock, Timestamp};

/// A monotonic clock that counts from its creation instead of the epoch. Steps of the wall clock do not affect it.
///
/// On Linux it includes the time for which the machine was suspended, so that a lease does not outlast its end.
#[derive(Clone, Copy, Debug)]
pub struct SinceStart {
    start: Instant,
}

impl SinceStart {
    /// A clock that starts at 0.
    #[must_use]
    pub fn new() -> SinceStart {
        SinceStart { start: Instant::now() }
    }
}

impl Default for SinceStart {
    fn default() -> SinceStart {
        SinceStart::new()
    }
}

impl Clock for SinceStart {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.start.elapsed_micros())
    }
}

/// An instant of the clock that includes suspension.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug)]
struct Instant {
    micros: u64,
}

#[cfg(target_os = "linux")]
impl Instant {
    #[inline]
    fn now() -> Instant {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let micros = |count: i64| u64::try_from(count).unwrap_or_default();
        Instant { micros: micros(now.tv_sec) * 1_000_000 + micros(now.tv_nsec) / 1_000 }
    }

    #[inline]
    fn elapsed_micros(&self) -> u64 {
        Instant::now().micros.saturating_sub(self.micros)
    }
}

#[cfg(not(target_os = "linux"))]
#[derive(Clone, Copy, Debug)]
struct Instant(tokio::time::Instant);

#[cfg(not(target_os = "linux"))]
impl Instant {
    fn now() -> Instant {
        Instant(tokio::time::Instant::now())
    }

    fn elapsed_micros(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_starts_at_zero_and_goes_on() {
        let clock = SinceStart::new();
        let first = clock.now();
        std::thread::sleep(std::time::Duration::from_millis(2));
        let later = clock.now();
        assert!(first.as_micros() < 60_000_000 && later.since(first).get() >= 2_000, "{first:?} {later:?}");
    }
}
