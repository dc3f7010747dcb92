//! The limiters that are compared, each called as its users would.

use std::num::NonZeroU32;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use throttlecrab::PeriodicStore;
use tidegate_core::{Gate, Limit};

/// One limit for all contestants: a burst of `burst`, and one more per hour, so that no key recovers during the
/// measurement.
#[derive(Clone, Copy)]
pub struct Terms {
    pub burst: u32,
}

pub trait Contestant: Sync {
    /// Checks each key once, and returns how many were allowed. `alone` is whether no other thread checks concurrently.
    fn check_all(&self, keys: &[String], alone: bool) -> usize;

    /// Checks one key.
    #[expect(clippy::ptr_arg, reason = "governor takes nothing but what its keys are: strings")]
    fn check(&self, key: &String) -> bool;
}

pub fn token_bucket(terms: Terms) -> Gate {
    Gate::new(limit(&format!("1/h burst {}", terms.burst)))
}

pub fn gcra(terms: Terms) -> Gate {
    Gate::new(limit(&format!("gcra 1/h burst {}", terms.burst)))
}

pub fn limit(notation: &str) -> Limit {
    notation.parse().unwrap_or_else(|error| panic!("{error}"))
}

impl Contestant for Gate {
    fn check_all(&self, keys: &[String], _alone: bool) -> usize {
        keys.iter().filter(|key| self.check(key.as_str()).is_allowed()).count()
    }

    fn check(&self, key: &String) -> bool {
        Gate::check(self, key.as_str()).is_allowed()
    }
}

pub fn governor(terms: Terms) -> DefaultKeyedRateLimiter<String> {
    RateLimiter::keyed(quota(terms))
}

pub fn quota(terms: Terms) -> Quota {
    let burst = NonZeroU32::new(terms.burst).expect("a burst above zero");
    Quota::with_period(Duration::from_secs(3_600)).expect("a period above zero").allow_burst(burst)
}

impl Contestant for DefaultKeyedRateLimiter<String> {
    fn check_all(&self, keys: &[String], _alone: bool) -> usize {
        keys.iter().filter(|key| self.check_key(key).is_ok()).count()
    }

    fn check(&self, key: &String) -> bool {
        self.check_key(key).is_ok()
    }
}

/// throttlecrab's limiter is single-threaded; its documentation recommends a `Mutex` to share it. Among its stores,
/// this is the fastest before the first clean-up, which comes after a minute: a hash map with capacity for all keys.
pub struct Throttlecrab {
    limiter: Mutex<throttlecrab::RateLimiter<PeriodicStore>>,
    burst: i64,
}

pub fn throttlecrab(terms: Terms, live: usize) -> Throttlecrab {
    let store = PeriodicStore::builder().capacity(live).build();
    Throttlecrab { limiter: Mutex::new(throttlecrab::RateLimiter::new(store)), burst: i64::from(terms.burst) }
}

impl Throttlecrab {
    fn lock(&self) -> MutexGuard<'_, throttlecrab::RateLimiter<PeriodicStore>> {
        self.limiter.lock().expect("nobody panicked with the lock")
    }

    fn ask(&self, limiter: &mut throttlecrab::RateLimiter<PeriodicStore>, key: &str) -> bool {
        let (allowed, _) = limiter.rate_limit(key, self.burst, 1, 3_600, 1, SystemTime::now()).expect("valid terms");
        allowed
    }
}

impl Contestant for Throttlecrab {
    fn check_all(&self, keys: &[String], alone: bool) -> usize {
        if alone {
            // A single thread takes the lock only once.
            let mut limiter = self.lock();
            return keys.iter().filter(|key| self.ask(&mut limiter, key)).count();
        }
        keys.iter().filter(|key| self.check(key)).count()
    }

    fn check(&self, key: &String) -> bool {
        self.ask(&mut self.lock(), key)
    }
}
