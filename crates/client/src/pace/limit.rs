//! One limit of a server, as its client keeps it.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::limits::{ServerLimit, Unit};

/// Requests are spread evenly once less than one part in this many of the quota is left.
const SPREAD_BELOW: u64 = 5;
/// The most that jitter adds to the end of a window.
const MOST_JITTER: Duration = Duration::from_secs(1);

/// The state of one limit.
///
/// Within the window no more is sent than was left. When it has ended, nothing is known but that as much as was left then can be
/// sent at once, or a single request if nothing was. Its answer begins the next window.
#[derive(Debug)]
pub(super) struct PacedLimit {
    unit: Unit,
    /// The quota as stated, or else the most that was ever left.
    quota: u64,
    /// The quota left for further requests.
    left: u64,
    ends: Instant,
    /// The earliest instant of the next request while they are spread.
    next: Instant,
    /// The cost of requests that were sent and not answered.
    in_flight: u64,
    /// The number of requests that were sent before the last answer came. The answer to a later one is newer for sure.
    heard_after: u64,
    /// Waiting requests.
    pub(super) queue: BTreeSet<u64>,
}

/// The time to send a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    Now,
    At(Instant),
    /// After a request in flight has been answered.
    AfterAnswer,
}

/// The instant of a request, and the requests sent since.
#[derive(Clone, Copy, Debug)]
pub(super) struct News {
    /// The request was the nth that was sent to the host.
    pub(super) order: u64,
    /// The number of requests that were sent to the host by now.
    pub(super) sent: u64,
    /// Requests in flight that the limit has not counted, because it was not known when they were sent.
    pub(super) unpaced: u64,
}

impl PacedLimit {
    /// A limit that was first heard of now.
    pub(super) fn new(unit: Unit, now: Instant) -> PacedLimit {
        PacedLimit {
            unit,
            quota: 0,
            left: 1,
            ends: now,
            next: now,
            in_flight: 0,
            heard_after: 0,
            queue: BTreeSet::new(),
        }
    }

    /// The cost of a request with these tokens.
    fn cost(&self, tokens: u64) -> u64 {
        match self.unit {
            Unit::Requests => 1,
            // More than the quota would never fit.
            Unit::Tokens => tokens.clamp(1, self.quota.max(1)),
        }
    }

    pub(super) fn ready(&self, tokens: u64, now: Instant) -> Ready {
        if now >= self.ends {
            let is_alone = self.in_flight == 0;
            let fits = self.in_flight + self.cost(tokens) <= self.left;
            return if is_alone || fits { Ready::Now } else { Ready::AfterAnswer };
        }
        if self.left < self.cost(tokens) {
            return Ready::At(self.ends);
        }
        if self.next > now { Ready::At(self.next.min(self.ends)) } else { Ready::Now }
    }

    /// Counts a request that is sent now. Returns its cost.
    pub(super) fn send(&mut self, tokens: u64, now: Instant) -> u64 {
        let cost = self.cost(tokens);
        self.in_flight += cost;
        if let Some(rest) = self.ends.checked_duration_since(now).filter(|rest| !rest.is_zero()) {
            if self.is_scarce() {
                let requests = (self.left / cost).max(1);
                self.next = now + rest / u32::try_from(requests).unwrap_or(u32::MAX);
            }
            self.left = self.left.saturating_sub(cost);
        }
        cost
    }

    fn is_scarce(&self) -> bool {
        self.left.saturating_mul(SPREAD_BELOW) < self.quota
    }

    /// Counts the end of a request.
    pub(super) fn ended(&mut self, cost: u64) {
        self.in_flight = self.in_flight.saturating_sub(cost);
    }

    /// Takes back a request that was counted at this instant and is not sent now.
    #[cfg(feature = "adaptive")]
    pub(super) fn unsend(&mut self, cost: u64, now: Instant) {
        self.ended(cost);
        if now < self.ends {
            self.left = self.left.saturating_add(cost);
            self.next = self.next.min(now);
        }
    }

    /// Learns from an answer. `random` lies between 0 and 1.
    ///
    /// The server may have decided a request before others that were sent with it, and counted those since. So only the answer to a
    /// request that was sent after the last answer had come replaces what is known. Any other can only lower what is left, and for
    /// longer: it may as well have been decided after all others.
    pub(super) fn learn(&mut self, stated: &ServerLimit, news: News, now: Instant, random: f64) {
        // Requests in flight may or may not be part of what the server counted.
        let left = stated.remaining.saturating_sub(self.in_flight + news.unpaced);
        let mut ends = now + stated.window;
        if stated.remaining == 0 {
            ends += jitter(stated.window, random);
        }
        let is_overtaken = news.order <= self.heard_after;
        self.heard_after = news.sent;
        if is_overtaken {
            if left <= self.left {
                (self.left, self.ends) = (left, self.ends.max(ends));
            }
            return;
        }
        self.unit = stated.unit;
        self.quota = stated.quota.unwrap_or(self.quota).max(stated.remaining);
        (self.left, self.ends) = (left, ends);
        self.next = self.next.min(self.ends);
    }

    /// Learns that nothing is left for this time.
    pub(super) fn exhaust(&mut self, wait: Duration, now: Instant, random: f64) {
        self.left = 0;
        self.ends = now + wait + jitter(wait, random);
    }

    /// Learns from an answer that no longer names the limit: after the window, twice as many requests may be in flight.
    pub(super) fn relax(&mut self, now: Instant) {
        if now >= self.ends {
            self.left = self.left.max(1).saturating_mul(2);
        }
    }

    /// Whether nothing is lost if it is forgotten.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        now >= self.ends && !self.is_used()
    }

    /// Whether requests wait for it or are in flight under it.
    pub(super) fn is_used(&self) -> bool {
        self.in_flight > 0 || !self.queue.is_empty()
    }

    /// The quota, what is left of it, and the time until its window ends.
    pub(super) fn standing(&self, now: Instant) -> (u64, u64, Duration) {
        (self.quota, self.left, self.ends.saturating_duration_since(now))
    }
}

/// A random part of a tenth of a wait, so that clients that wait for the same instant come back apart.
fn jitter(wait: Duration, random: f64) -> Duration {
    (wait / 10).min(MOST_JITTER).mul_f64(random.clamp(0.0, 1.0))
}
