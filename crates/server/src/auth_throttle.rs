//! Slows down guessing of passwords and tokens.
//!
//! Each failure from an address delays the next attempt from it, by 50 ms, and by up to two seconds after many
//! failures. Correct and wrong attempts wait alike, so that the delay reveals nothing. A legitimate client that shares
//! the address with an attacker waits two seconds at most.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Clock, Gate, MemoryStore, Outcome, SystemClock};

use crate::listen::client_network;
use crate::log_throttle::LogThrottle;

/// Limit that failures are counted against, for each address.
const LIMIT: &str = "shaper 20/s queue 40";
/// Longest delay of an attempt.
const LONGEST: Duration = Duration::from_secs(2);
/// Maximum number of addresses with counters of their own. Further ones share counters.
const MOST_CLIENTS: usize = 65_536;

/// The failures of each client, at one listener.
pub(crate) struct AuthThrottle<C: Clock = SystemClock> {
    failures: Option<Gate<C>>,
    log: LogThrottle,
}

impl AuthThrottle {
    pub(crate) fn new() -> AuthThrottle {
        AuthThrottle::with_clock(SystemClock::new())
    }
}

impl<C: Clock> AuthThrottle<C> {
    fn with_clock(clock: C) -> AuthThrottle<C> {
        let store = Arc::new(MemoryStore::with_clock_and_cap(clock, MOST_CLIENTS));
        // A test checks that the limit parses.
        let failures = LIMIT.parse().ok().map(|limit| Gate::in_store(store, "auth", limit));
        AuthThrottle { failures, log: LogThrottle::default() }
    }

    /// Delay before an attempt from this address is processed.
    pub(crate) fn delay(&self, address: IpAddr) -> Duration {
        let network = client_network(address).to_string();
        match self.failures.as_ref().map(|failures| failures.peek_cost(network.as_str(), 1).outcome) {
            None => Duration::ZERO,
            Some(Outcome::Allow { delay }) => Duration::from(delay).min(LONGEST),
            Some(Outcome::Deny { .. } | Outcome::TooLarge { .. }) => LONGEST,
        }
    }

    /// Counts a failed attempt, and logs at most one a second. The password is never logged.
    pub(crate) fn failed(&self, address: IpAddr, listener: &'static str) {
        if let Some(failures) = &self.failures {
            failures.check(client_network(address).to_string().as_str());
        }
        if let Some(suppressed) = self.log.pass() {
            tracing::warn!(%address, listener, suppressed, "an attempt to authenticate failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{ManualClock, Micros, Timestamp};

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn each_failure_puts_off_the_next_attempt_and_time_heals() {
        let clock = ManualClock::at(Timestamp::from_secs(1_000));
        let throttle = AuthThrottle::with_clock(clock.clone());
        let (attacker, neighbour) = (ip("203.0.113.7"), ip("203.0.113.8"));
        assert!(throttle.failures.is_some());
        assert_eq!(throttle.delay(attacker), Duration::ZERO);
        throttle.failed(attacker, "resp");
        assert_eq!(throttle.delay(attacker), Duration::from_millis(50));
        throttle.failed(attacker, "resp");
        assert_eq!(throttle.delay(attacker), Duration::from_millis(100));
        for _ in 0..1_000 {
            throttle.failed(attacker, "resp");
        }
        assert_eq!(throttle.delay(attacker), LONGEST);
        assert_eq!(throttle.delay(neighbour), Duration::ZERO);
        clock.advance(Micros::from_secs(2));
        assert_eq!(throttle.delay(attacker), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_subscriber_of_ipv6_cannot_change_the_address_to_start_over() {
        let throttle = AuthThrottle::with_clock(ManualClock::at(Timestamp::from_secs(1_000)));
        throttle.failed(ip("2001:db8::1"), "admin");
        assert!(!throttle.delay(ip("2001:db8::2")).is_zero());
        assert!(throttle.delay(ip("2001:db8:0:1::1")).is_zero());
    }
}
