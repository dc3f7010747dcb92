//! A circuit breaker: calls to a server that does not answer fail immediately.
//!
//! The breaker is *closed* while calls succeed. It *opens* on one of two kinds of evidence, which determines the calls that
//! it refuses:
//!
//! - The server is *down*: it refuses connections, or all calls. Every call fails immediately.
//! - The server is *slow*: calls or connection attempts timed out. A caller with a longer deadline may still be answered.
//!   So a call fails immediately only if its deadline is no longer than the present time of an answer: the last round trip,
//!   or the age of the oldest unanswered command if that is more.
//!
//! A server that answers in time but is overloaded does not open the breaker: the calls for which it has no time fail one
//! by one. After a wait the breaker is *half open*: the link sends a probe. If the probe is answered soon enough for the
//! refused calls, the breaker closes. If not, it opens again, for twice as long each time, up to a bound that also limits
//! the time to recover. Answers to calls that are sent meanwhile count as well. Waits are random, so that the nodes of a
//! fleet do not probe in step.
//!
//! The breaker reads neither a clock nor a random source: both are arguments.

use std::time::Duration;

use tokio::time::Instant;

/// Time after which timeouts and refused calls no longer count.
const FORGET: Duration = Duration::from_secs(60);

/// Settings of the breaker: the failures that open it, and the interval of its probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerSettings {
    /// Number of failed calls that open the breaker, unless there was an answer in between that was fast enough for them.
    pub failures: u32,
    /// Maximum wait before the first probe.
    pub first_wait: Duration,
    /// The longest wait. Each wait is twice the previous one, up to this.
    pub longest_wait: Duration,
}

impl Default for BreakerSettings {
    fn default() -> BreakerSettings {
        BreakerSettings { failures: 5, first_wait: Duration::from_millis(10), longest_wait: Duration::from_millis(500) }
    }
}

/// The state of the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BreakerState {
    /// All calls are sent.
    Closed,
    /// Some or all calls fail immediately, depending on [`ServerStats::refuses_up_to`](super::ServerStats::refuses_up_to).
    Open,
    /// As open, with a probe in flight.
    HalfOpen,
}

/// A change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transition {
    pub(super) from: BreakerState,
    pub(super) to: BreakerState,
    /// The time for which the breaker had been closed, or not closed. Probes in between do not count.
    pub(super) after: Duration,
}

/// The evidence of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// The server refuses all calls, or the connection broke.
    Down,
    /// The server did not answer within the time that the caller allowed.
    Slow(Duration),
}

/// The calls that fail immediately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BreakerRefusal {
    /// All calls.
    All,
    /// Calls that would probably be answered too late.
    ShortDeadlines {
        /// The last round trip.
        round_trip: Duration,
        /// When the oldest unanswered command was sent.
        unanswered_since: Option<Instant>,
    },
}

impl BreakerRefusal {
    /// The longest deadline that is refused.
    pub(super) fn up_to(self, now: Instant) -> Duration {
        match self {
            BreakerRefusal::All => Duration::MAX,
            BreakerRefusal::ShortDeadlines { round_trip, unanswered_since } => {
                let waited = unanswered_since.map_or(Duration::ZERO, |since| now.duration_since(since));
                round_trip.max(waited)
            }
        }
    }

    pub(super) fn covers(self, remaining: Duration, now: Instant) -> bool {
        remaining <= self.up_to(now)
    }
}

/// A random number from the caller, which randomises the next wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Jitter(pub(super) u16);

#[derive(Debug)]
pub(super) struct Breaker {
    settings: BreakerSettings,
    /// Time without an answer after which refusals and broken connections count.
    reply_timeout: Duration,
    state: BreakerState,
    /// Whether all calls are refused while the breaker is not closed.
    is_down: bool,
    /// Refusals and broken connections since the last answer, while the breaker is closed.
    faults: u32,
    timeouts: Timeouts,
    answered: Instant,
    round_trip: Duration,
    unanswered_since: Option<Instant>,
    /// Failed probes since the breaker was last closed permanently.
    failed_probes: u32,
    probe_at: Instant,
    /// When the breaker last changed between closed and open.
    turned: Instant,
    opened: u64,
}

/// Timeouts of calls since the last answer that was fast enough for all of them.
#[derive(Debug)]
struct Timeouts {
    calls: u32,
    /// The shortest deadline of these calls.
    shortest: Duration,
    last: Instant,
}

impl Timeouts {
    const fn none(now: Instant) -> Timeouts {
        Timeouts { calls: 0, shortest: Duration::MAX, last: now }
    }
}

impl Breaker {
    /// A closed breaker, before the first connection.
    pub(super) const fn new(settings: BreakerSettings, reply_timeout: Duration, now: Instant) -> Breaker {
        Breaker {
            settings,
            reply_timeout,
            state: BreakerState::Closed,
            is_down: false,
            faults: 0,
            timeouts: Timeouts::none(now),
            answered: now,
            round_trip: Duration::ZERO,
            unanswered_since: Some(now),
            failed_probes: 0,
            probe_at: now,
            turned: now,
            opened: 0,
        }
    }

    pub(super) const fn state(&self) -> BreakerState {
        self.state
    }

    /// The calls that fail immediately; `None` while the breaker is closed.
    pub(super) const fn refusal(&self) -> Option<BreakerRefusal> {
        match self.state {
            BreakerState::Closed => None,
            _ if self.is_down => Some(BreakerRefusal::All),
            _ => Some(BreakerRefusal::ShortDeadlines {
                round_trip: self.round_trip,
                unanswered_since: self.unanswered_since,
            }),
        }
    }

    /// When the breaker last changed between closed and open. Probes do not count.
    pub(super) const fn turned(&self) -> Instant {
        self.turned
    }

    /// Number of times that the breaker has opened.
    pub(super) const fn opened(&self) -> u64 {
        self.opened
    }

    /// When the next probe is due; `None` while the breaker is closed or a probe is in flight.
    pub(super) fn probe_at(&self) -> Option<Instant> {
        (self.state == BreakerState::Open).then_some(self.probe_at)
    }

    /// Sets when the oldest unanswered command was sent.
    pub(super) const fn set_unanswered_since(&mut self, since: Option<Instant>) {
        self.unanswered_since = since;
    }

    /// Records that the connection has ended: the server counts as silent from now on.
    pub(super) fn disconnected(&mut self, now: Instant) {
        self.unanswered_since.get_or_insert(now);
    }

    /// Records calls that failed or timed out.
    pub(super) fn failed(
        &mut self,
        calls: u32,
        evidence: Evidence,
        now: Instant,
        jitter: Jitter,
    ) -> Option<Transition> {
        match evidence {
            Evidence::Down => self.refused(calls, now, jitter),
            Evidence::Slow(allowed) => self.timed_out(calls, allowed, now, jitter),
        }
    }

    fn refused(&mut self, calls: u32, now: Instant, jitter: Jitter) -> Option<Transition> {
        if self.is_down && self.state != BreakerState::Closed {
            return None;
        }
        self.faults = self.faults.saturating_add(calls);
        let is_silent = now.duration_since(self.answered) >= self.reply_timeout;
        if self.faults < self.settings.failures || !is_silent {
            return None;
        }
        self.is_down = true;
        (self.state == BreakerState::Closed).then(|| self.open(now, jitter))
    }

    fn timed_out(&mut self, calls: u32, allowed: Duration, now: Instant, jitter: Jitter) -> Option<Transition> {
        if now.duration_since(self.timeouts.last) > FORGET {
            self.timeouts = Timeouts::none(now);
        }
        self.timeouts.calls = self.timeouts.calls.saturating_add(calls);
        self.timeouts.shortest = self.timeouts.shortest.min(allowed);
        self.timeouts.last = now;
        let was_quick = self.round_trip < allowed && now.duration_since(self.answered) < allowed;
        let opens = self.state == BreakerState::Closed && self.timeouts.calls >= self.settings.failures && !was_quick;
        opens.then(|| {
            self.is_down = false;
            self.open(now, jitter)
        })
    }

    /// Records that a call was answered after `round_trip`, in time or not.
    pub(super) fn succeeded(&mut self, round_trip: Duration, now: Instant) -> Option<Transition> {
        self.replied(round_trip, now);
        let is_quick = round_trip < self.timeouts.shortest;
        match self.state {
            BreakerState::Closed => {
                if is_quick {
                    self.timeouts = Timeouts::none(now);
                }
                None
            }
            // Answers before a probe is due do not close the breaker: an unstable server would make it open and close
            // constantly.
            BreakerState::Open if now < self.probe_at => None,
            BreakerState::Open | BreakerState::HalfOpen => (is_quick && !self.is_down).then(|| self.close(now)),
        }
    }

    const fn replied(&mut self, round_trip: Duration, now: Instant) {
        self.faults = 0;
        self.answered = now;
        self.round_trip = round_trip;
    }

    /// Records that there is no connection: no call can succeed.
    pub(super) fn trip(&mut self, now: Instant, jitter: Jitter) -> Option<Transition> {
        self.is_down = true;
        match self.state {
            BreakerState::Closed => Some(self.open(now, jitter)),
            BreakerState::HalfOpen => self.probe_failed(now, jitter),
            BreakerState::Open => None,
        }
    }

    /// Records that connecting timed out. As after a call that timed out, callers with longer deadlines are not refused.
    pub(super) fn connecting_timed_out(&mut self, now: Instant, jitter: Jitter) -> Option<Transition> {
        self.is_down = false;
        self.unanswered_since.get_or_insert(now);
        match self.state {
            BreakerState::Closed => Some(self.open(now, jitter)),
            BreakerState::HalfOpen => self.probe_failed(now, jitter),
            BreakerState::Open => None,
        }
    }

    /// Records that a probe is sent.
    pub(super) fn probe(&mut self, now: Instant) -> Option<Transition> {
        (self.state == BreakerState::Open).then(|| self.change_state(BreakerState::HalfOpen, now))
    }

    /// Records a new connection to a server that passed its greeting.
    pub(super) fn recovered(&mut self, now: Instant) -> Option<Transition> {
        self.unanswered_since = None;
        if self.state == BreakerState::Closed {
            return None;
        }
        self.replied(Duration::ZERO, now);
        Some(self.close(now))
    }

    /// Records a probe that was answered after `round_trip`. `refused` is the time of the last refused call.
    pub(super) fn probe_answered(
        &mut self,
        round_trip: Duration,
        refused: Option<Instant>,
        now: Instant,
        jitter: Jitter,
    ) -> Option<Transition> {
        self.replied(round_trip, now);
        let wanted = refused.map_or(self.timeouts.last, |refused| refused.max(self.timeouts.last));
        let is_wanted = self.timeouts.calls > 0 && now.duration_since(wanted) <= FORGET;
        if self.state == BreakerState::Closed {
            return None;
        }
        if round_trip < self.timeouts.shortest || !is_wanted {
            return Some(self.close(now));
        }
        self.is_down = false;
        self.probe_failed(now, jitter)
    }

    /// Records a probe that was answered with an error that refuses all calls.
    pub(super) fn probe_refused(&mut self, now: Instant, jitter: Jitter) -> Option<Transition> {
        if self.state == BreakerState::Closed {
            return self.refused(1, now, jitter);
        }
        self.is_down = true;
        self.probe_failed(now, jitter)
    }

    /// Records a probe that was not answered, or too late for the refused calls.
    pub(super) fn probe_failed(&mut self, now: Instant, jitter: Jitter) -> Option<Transition> {
        if self.state != BreakerState::HalfOpen {
            return None;
        }
        self.failed_probes = self.failed_probes.saturating_add(1);
        self.probe_at = now + self.wait(jitter);
        Some(self.change_state(BreakerState::Open, now))
    }

    fn open(&mut self, now: Instant, jitter: Jitter) -> Transition {
        // If the breaker opens again soon after it closed, it was closed too early, so the waits continue to grow.
        if now.duration_since(self.turned) > 2 * self.settings.longest_wait || self.opened == 0 {
            self.failed_probes = 0;
        } else {
            self.failed_probes = self.failed_probes.saturating_add(1);
        }
        self.probe_at = now + self.wait(jitter);
        self.opened += 1;
        let transition = self.change_state(BreakerState::Open, now);
        self.turned = now;
        transition
    }

    fn close(&mut self, now: Instant) -> Transition {
        self.faults = 0;
        self.is_down = false;
        self.timeouts = Timeouts::none(now);
        let transition = self.change_state(BreakerState::Closed, now);
        self.turned = now;
        transition
    }

    fn change_state(&mut self, to: BreakerState, now: Instant) -> Transition {
        let transition = Transition { from: self.state, to, after: now.duration_since(self.turned) };
        self.state = to;
        transition
    }

    fn wait(&self, jitter: Jitter) -> Duration {
        backoff(self.settings.first_wait, self.settings.longest_wait, self.failed_probes, jitter)
    }
}

/// Exponential backoff with jitter: `first`, doubled for each useless connection, at most `longest`. The result is random,
/// between half of that and all of it.
pub(super) fn backoff(first: Duration, longest: Duration, useless_connections: u32, jitter: Jitter) -> Duration {
    let full = 2_u32
        .checked_pow(useless_connections)
        .and_then(|times| first.checked_mul(times))
        .unwrap_or(longest)
        .min(longest);
    full / 2 + full / 2 * u32::from(jitter.0) / u32::from(u16::MAX)
}

#[cfg(test)]
mod tests;
