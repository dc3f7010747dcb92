//! Client-side throttling: requests that a server would refuse are not sent.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use crate::recent_counts::RecentCounts;

const SLOT_SECONDS: u64 = 10;
/// The number of slots: two minutes.
const SLOTS: u64 = 12;

/// Refuses requests locally while a server accepts few of them, as in the chapter on overload in Google's SRE book.
///
/// Over the last two minutes, a request is refused with the probability `(requests − k · accepts) / (requests + 1)`. With
/// the usual `k` of 2 the server gets about two requests for each that it accepts, for any number of calls. Refused
/// requests count as requests. Requests in flight do not count yet.
#[derive(Debug)]
pub struct Throttle {
    k: f64,
    window: Mutex<RecentCounts<RequestCounts>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct RequestCounts {
    requests: u64,
    accepts: u64,
}

impl Throttle {
    /// A throttle that refuses requests beyond `k` times the accepted ones.
    #[must_use]
    pub fn new(k: f64) -> Throttle {
        Throttle { k: k.max(1.0), window: Mutex::new(RecentCounts::new(SLOT_SECONDS, SLOTS)) }
    }

    /// Whether a request may be sent. If not, counts it as refused. `random` is between 0 and 1.
    #[must_use]
    pub fn admit(&self, now: Instant, random: f64) -> bool {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let present = window.advance(now);
        let is_admitted = random >= refusal(&window, self.k);
        if !is_admitted {
            window.slot(present).requests += 1;
        }
        is_admitted
    }

    /// Counts the answer to a request. `is_accepted` is `false` for a refusal because of overload, and `true` for any other
    /// answer.
    pub fn answered(&self, now: Instant, is_accepted: bool) {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let present = window.advance(now);
        let counts = window.slot(present);
        counts.requests += 1;
        counts.accepts += u64::from(is_accepted);
    }
}

/// The probability with which a request is refused.
fn refusal(window: &RecentCounts<RequestCounts>, k: f64) -> f64 {
    let requests: u64 = window.all().map(|counts| counts.requests).sum();
    let accepts: u64 = window.all().map(|counts| counts.accepts).sum();
    ((requests as f64 - k * accepts as f64) / (requests as f64 + 1.0)).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// The number of requests that reach a server, for 100 per second over two minutes. `accepts` determines which of those
    /// it accepts.
    fn sent(accepts: fn(u64) -> bool) -> u64 {
        let (throttle, start) = (Throttle::new(2.0), Instant::now());
        let mut random = fastrand::Rng::with_seed(7);
        let mut sent = 0;
        for number in 0..12_000 {
            let now = start + Duration::from_millis(number * 10);
            if throttle.admit(now, random.f64()) {
                sent += 1;
                throttle.answered(now, accepts(sent));
            }
        }
        sent
    }

    #[test]
    fn a_healthy_server_is_sent_everything() {
        assert_eq!(sent(|_| true), 12_000);
        assert!(sent(|number| number % 3 > 0) > 11_900, "two of three accepted is still healthy");
    }

    #[test]
    fn a_server_that_accepts_little_is_sent_little() {
        let sent = sent(|_| false);
        assert!(sent < 50, "{sent}");
    }

    #[test]
    fn a_server_that_recovers_is_sent_everything_again() {
        let (throttle, start) = (Throttle::new(2.0), Instant::now());
        for _ in 0..100 {
            throttle.answered(start, false);
        }
        assert!(!throttle.admit(start, 0.5));
        assert!(throttle.admit(start + Duration::from_mins(2), 0.5), "after two minutes nothing is left of it");
    }
}
