//! A server's limit, as tracked by its client.

use std::time::Duration;

use tokio::time::Instant;

use crate::limits::{ServerLimit, Unit};

/// Requests are spread evenly once less than one part in this many of the quota is left.
const SPREAD_BELOW: u64 = 5;
/// Maximum jitter that is added to the end of a window.
const MOST_JITTER: Duration = Duration::from_secs(1);
/// The shortest time between two requests that explore, one of which has not been answered.
const SHORTEST_EXPLORATION: Duration = Duration::from_secs(1);
/// The interval of probes while nothing is left is this part of the time until the window ends, within the two bounds. A limit by the
/// hour is probed fifteen times, and one that was stated by mistake, or was raised, holds requests up for ten minutes at most.
const PROBE_INTERVAL_DIVISOR: u32 = 4;
const SHORTEST_PROBE_INTERVAL: Duration = Duration::from_secs(30);
const LONGEST_PROBE_INTERVAL: Duration = Duration::from_secs(600);

/// The state of one limit.
///
/// Within the window no more is sent than was left. When it has ended, nothing is known but that as much as was left then can be
/// sent at once, or a single request if nothing was. Its answer begins the next window. While that is not there, another
/// request goes after each time as long as the window.
#[derive(Debug)]
pub(super) struct PacedLimit {
    unit: Unit,
    /// The stated quota, or otherwise the largest remaining quota seen so far.
    quota: u64,
    /// The quota left for further requests.
    left: u64,
    ends: Instant,
    /// The length of the window when it was stated.
    window: Duration,
    /// The last request that was sent after the window had ended.
    explored: Instant,
    /// The last answer about it, or the last request that was sent to see whether it still holds.
    answered_at: Instant,
    /// The earliest instant of the next request while they are spread.
    next: Instant,
    /// The cost of requests that were sent and are not answered yet.
    in_flight: u64,
    /// The number of requests that had been sent when the last answer arrived. The answer to a later request is certainly
    /// newer.
    answered_after: u64,
}

/// When to send a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    Now,
    At(Instant),
    /// After a request in flight has been answered, or at this instant.
    AfterAnswer(Instant),
}

/// The context of an answer: its request, and the requests sent since then.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerContext {
    /// The request was the nth that was sent to the host.
    pub(super) order: u64,
    /// The number of requests sent to the host so far.
    pub(super) sent: u64,
    /// Requests in flight that were sent before the limit was known, so that it has not counted them.
    pub(super) unpaced: u64,
}

impl PacedLimit {
    /// A limit that has just become known.
    pub(super) fn new(unit: Unit, now: Instant) -> PacedLimit {
        PacedLimit {
            unit,
            quota: 0,
            left: 1,
            ends: now,
            window: Duration::ZERO,
            explored: now,
            answered_at: now,
            next: now,
            in_flight: 0,
            answered_after: 0,
        }
    }

    /// The cost of a request with this many tokens.
    fn cost(&self, tokens: u64) -> u64 {
        match self.unit {
            Unit::Requests => 1,
            // A cost above the quota would never be admitted.
            Unit::Tokens => tokens.clamp(1, self.quota.max(1)),
        }
    }

    pub(super) fn ready(&self, tokens: u64, now: Instant) -> Ready {
        if now >= self.ends {
            let is_alone = self.in_flight == 0;
            let fits = self.in_flight + self.cost(tokens) <= self.left;
            let next = self.explored.max(self.ends) + self.window.max(SHORTEST_EXPLORATION);
            return if is_alone || fits || now >= next { Ready::Now } else { Ready::AfterAnswer(next) };
        }
        if self.left < self.cost(tokens) {
            return Ready::At(self.ends);
        }
        if self.next > now { Ready::At(self.next.min(self.ends)) } else { Ready::Now }
    }

    /// Whether a request that is sent now does not delay another one, which other limits hold back until `at`.
    pub(super) fn has_room_for_both(&self, tokens: u64, other_tokens: u64, at: Instant, now: Instant) -> bool {
        let (cost, other_cost) = (self.cost(tokens), self.cost(other_tokens));
        if now >= self.ends {
            // The answer begins the next window. By then the other one has its turn.
            return at > now || self.in_flight.saturating_add(cost).saturating_add(other_cost) <= self.left;
        }
        let is_room_left = self.left >= cost.saturating_add(other_cost);
        at >= self.ends || is_room_left && self.next_after(cost, now) <= at
    }

    /// The quota left for further requests.
    pub(super) fn left(&self) -> usize {
        usize::try_from(self.left).unwrap_or(usize::MAX)
    }

    /// The end of the window, unless it has ended.
    pub(super) fn ends(&self, now: Instant) -> Option<Instant> {
        Some(self.ends).filter(|ends| *ends > now)
    }

    /// Whether a request may be sent although nothing is left, because the last answer about the limit is too old: at least as old
    /// as `silence`.
    pub(super) fn may_probe(&self, silence: Duration, now: Instant) -> bool {
        let rest = self.ends.saturating_duration_since(now);
        let interval = (rest / PROBE_INTERVAL_DIVISOR).clamp(SHORTEST_PROBE_INTERVAL, LONGEST_PROBE_INTERVAL);
        now.saturating_duration_since(self.answered_at) >= interval.max(silence)
    }

    /// Notes that a request is sent to see whether the limit still holds.
    pub(super) const fn probed(&mut self, now: Instant) {
        self.answered_at = now;
    }

    /// Counts a request that is sent now. Returns its cost.
    pub(super) fn send(&mut self, tokens: u64, now: Instant) -> u64 {
        let cost = self.cost(tokens);
        self.in_flight += cost;
        if now < self.ends {
            self.next = self.next_after(cost, now);
            self.left = self.left.saturating_sub(cost);
        } else {
            self.explored = now;
        }
        cost
    }

    /// The earliest instant of the next request within the window, if one of this cost is sent now.
    fn next_after(&self, cost: u64, now: Instant) -> Instant {
        if !self.is_scarce() {
            return self.next;
        }
        let requests = (self.left / cost).max(1);
        now + self.ends.saturating_duration_since(now) / u32::try_from(requests).unwrap_or(u32::MAX)
    }

    const fn is_scarce(&self) -> bool {
        self.left.saturating_mul(SPREAD_BELOW) < self.quota
    }

    /// Counts the end of a request.
    pub(super) fn ended(&mut self, cost: u64) {
        self.in_flight = self.in_flight.saturating_sub(cost);
    }

    /// Takes back a request that was counted at this instant but is not sent now.
    #[cfg(feature = "adaptive")]
    pub(super) fn unsend(&mut self, cost: u64, now: Instant) {
        self.ended(cost);
        if now < self.ends {
            self.left = self.left.saturating_add(cost);
            self.next = self.next.min(now);
        }
    }

    /// Updates the state from an answer. `random` is between 0 and 1.
    ///
    /// The server may have decided a request before others that were sent with it, which it has counted since. So only the
    /// answer to a request that was sent after the last answer arrived replaces the known state. Any other answer can only
    /// lower what is left, and for a longer time: it may also have been decided after all others.
    pub(super) fn learn(&mut self, stated: &ServerLimit, context: AnswerContext, now: Instant, random: f64) {
        // Requests in flight may or may not be part of what the server counted.
        let left = stated.remaining.saturating_sub(self.in_flight + context.unpaced);
        let mut ends = now + stated.window;
        if stated.remaining == 0 {
            ends += jitter(stated.window, random);
        }
        let is_overtaken = context.order <= self.answered_after;
        (self.answered_after, self.answered_at) = (context.sent, now);
        if is_overtaken {
            if left <= self.left {
                (self.left, self.ends) = (left, self.ends.max(ends));
                self.window = self.window.max(stated.window);
            }
            return;
        }
        self.unit = stated.unit;
        self.quota = stated.quota.unwrap_or(self.quota).max(stated.remaining);
        (self.left, self.ends, self.window) = (left, ends, stated.window);
        self.next = self.next.min(self.ends);
    }

    /// Records that nothing is left for this time.
    pub(super) fn exhaust(&mut self, wait: Duration, now: Instant, random: f64) {
        self.left = 0;
        (self.ends, self.window, self.answered_at) = (now + wait + jitter(wait, random), wait, now);
    }

    /// Learns from an answer that no longer names the limit: after the window, twice as many requests may be in flight. The answer to
    /// a request that was to see whether the limit still holds ends the window.
    pub(super) fn relax(&mut self, now: Instant, is_probe: bool) {
        if is_probe {
            self.ends = self.ends.min(now);
        }
        if now >= self.ends {
            self.left = self.left.max(1).saturating_mul(2);
        }
    }

    /// Whether the limit can be forgotten without losing information, if no request waits for it.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        now >= self.ends && !self.has_in_flight()
    }

    /// Whether requests are in flight under the limit.
    pub(super) const fn has_in_flight(&self) -> bool {
        self.in_flight > 0
    }

    /// The quota, the remaining quota, and the time until the window ends.
    pub(super) fn standing(&self, now: Instant) -> (u64, u64, Duration) {
        (self.quota, self.left, self.ends.saturating_duration_since(now))
    }
}

/// A random part of a tenth of a wait, so that clients that wait for the same instant do not return at the same time.
fn jitter(wait: Duration, random: f64) -> Duration {
    (wait / 10).min(MOST_JITTER).mul_f64(random.clamp(0.0, 1.0))
}
