//! Backoff: the wait before a retry.

use std::time::Duration;

/// Waits before retries.
///
/// With a hint from the server, a retry waits for the hint plus a random part of a tenth of it. Without a hint, it waits
/// for a random part of `base`, doubled with each retry, at most `cap` (full jitter). So clients that were denied at the
/// same time do not return at the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// Maximum wait before the first retry without a hint: 100 ms by default.
    pub base: Duration,
    /// Maximum wait without a hint: 20 s by default.
    pub cap: Duration,
    /// Maximum jitter that is added to a hint, as a share of the hint: 0.1 by default.
    pub spread: f64,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff { base: Duration::from_millis(100), cap: Duration::from_secs(20), spread: 0.1 }
    }
}

impl Backoff {
    /// The wait before retry number `retry`, counted from 0. `random` is between 0 and 1.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate_client::Backoff;
    ///
    /// let backoff = Backoff::default();
    /// assert_eq!(backoff.wait(3, None, 0.5), Duration::from_millis(400));
    /// assert_eq!(backoff.wait(3, Some(Duration::from_secs(10)), 0.5), Duration::from_millis(10_500));
    /// ```
    #[must_use]
    pub fn wait(&self, retry: u32, hint: Option<Duration>, random: f64) -> Duration {
        match hint {
            Some(hint) => hint.saturating_add(part(hint, self.spread * random)),
            None => {
                let doubled = 2_u32.checked_pow(retry).and_then(|factor| self.base.checked_mul(factor));
                part(doubled.unwrap_or(self.cap).min(self.cap), random)
            }
        }
    }
}

fn part(span: Duration, share: f64) -> Duration {
    Duration::try_from_secs_f64(span.as_secs_f64() * share).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_wait_is_never_shorter_than_the_hint(millis in 0_u64..1_000_000_000, retry: u32, random in 0.0..1.0_f64) {
            let hint = Duration::from_millis(millis);
            let wait = Backoff::default().wait(retry, Some(hint), random);
            prop_assert!(wait >= hint && wait <= hint + hint / 10 + Duration::from_nanos(1));
        }

        #[test]
        fn a_wait_without_a_hint_is_at_most_the_cap(retry: u32, random in 0.0..1.0_f64) {
            let backoff = Backoff::default();
            let wait = backoff.wait(retry, None, random);
            prop_assert!(wait <= backoff.cap);
            prop_assert!(retry > 7 || wait <= backoff.base * 2_u32.pow(retry));
        }
    }
}
