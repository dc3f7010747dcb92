//! A breaker: when a server does not answer, calls fail at once instead of waiting in turn.
//!
//! It is *closed* while all is well. After so many failures with no success between them, and no answer for some time, or
//! at once if there is no connection, it *opens*: no call is sent. A server that answers but cannot keep up does not open it:
//! the calls that it has no time for fail one by one. After a while it is *half open*: the link sends a probe of its own, never a
//! call. If the probe is answered the breaker closes; if not it is open again, and for longer each time, up to a bound
//! that also bounds how long service takes to come back. Waits are spread, so that a fleet does not knock in step.
//!
//! It reads no clock and no random source: both are passed in.

use std::time::Duration;

use tokio::time::Instant;

/// When a breaker opens and how often it probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerSettings {
    /// It opens after so many failed calls with no successful one between them, if there was no answer for as long as a call
    /// may take.
    pub failures: u32,
    /// The first probe comes so long after it opened, or a little less.
    pub first_wait: Duration,
    /// Each wait is twice the one before, up to this.
    pub longest_wait: Duration,
}

impl Default for BreakerSettings {
    fn default() -> BreakerSettings {
        BreakerSettings { failures: 5, first_wait: Duration::from_millis(10), longest_wait: Duration::from_millis(500) }
    }
}

/// Whether calls are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BreakerState {
    /// They are.
    Closed,
    /// They are not.
    Open,
    /// They are not, and a probe is on its way.
    HalfOpen,
}

/// A change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transition {
    pub(super) from: BreakerState,
    pub(super) to: BreakerState,
    /// How long it had been closed until now, or had not been. Probes in between do not count.
    pub(super) after: Duration,
}

/// A random number, drawn by whoever calls: it spreads the wait that a call may lead to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draw(pub(super) u16);

#[derive(Debug)]
pub(super) struct Breaker {
    settings: BreakerSettings,
    /// How long an answer may take.
    patience: Duration,
    answered: Instant,
    state: BreakerState,
    /// Failures since the last success, while closed.
    failures: u32,
    /// Probes that failed since it was last closed for good.
    failed_probes: u32,
    probe_at: Instant,
    /// When it last went from closed to open or back.
    turned: Instant,
    opened: u64,
}

impl Breaker {
    pub(super) const fn new(settings: BreakerSettings, patience: Duration, now: Instant) -> Breaker {
        Breaker {
            settings,
            patience,
            answered: now,
            state: BreakerState::Closed,
            failures: 0,
            failed_probes: 0,
            probe_at: now,
            turned: now,
            opened: 0,
        }
    }

    pub(super) const fn state(&self) -> BreakerState {
        self.state
    }

    /// When it was last closed, if it is, or when it was opened. Probes do not count.
    pub(super) const fn turned(&self) -> Instant {
        self.turned
    }

    /// How many times it went from closed to open.
    pub(super) const fn opened(&self) -> u64 {
        self.opened
    }

    /// When the next probe is due; `None` while it is closed or a probe is on its way.
    pub(super) fn probe_at(&self) -> Option<Instant> {
        (self.state == BreakerState::Open).then_some(self.probe_at)
    }

    /// Calls failed, or were not answered in time.
    pub(super) fn failed(&mut self, calls: u32, now: Instant, draw: Draw) -> Option<Transition> {
        if self.state != BreakerState::Closed {
            return None;
        }
        self.failures = self.failures.saturating_add(calls);
        let is_silent = now.duration_since(self.answered) >= self.patience;
        (self.failures >= self.settings.failures && is_silent).then(|| self.open(now, draw))
    }

    /// A call was answered.
    pub(super) const fn succeeded(&mut self, now: Instant) {
        self.failures = 0;
        self.answered = now;
    }

    /// There is no connection, so no call can succeed.
    pub(super) fn trip(&mut self, now: Instant, draw: Draw) -> Option<Transition> {
        match self.state {
            BreakerState::Closed => Some(self.open(now, draw)),
            BreakerState::HalfOpen => self.probe_failed(now, draw),
            BreakerState::Open => None,
        }
    }

    /// A probe is sent.
    pub(super) fn probe(&mut self, now: Instant) -> Option<Transition> {
        (self.state == BreakerState::Open).then(|| self.turn(BreakerState::HalfOpen, now))
    }

    /// The server answers.
    pub(super) fn recovered(&mut self, now: Instant) -> Option<Transition> {
        if self.state == BreakerState::Closed {
            return None;
        }
        self.succeeded(now);
        let transition = self.turn(BreakerState::Closed, now);
        self.turned = now;
        Some(transition)
    }

    /// The probe was not answered, or not well.
    pub(super) fn probe_failed(&mut self, now: Instant, draw: Draw) -> Option<Transition> {
        if self.state != BreakerState::HalfOpen {
            return None;
        }
        self.failed_probes = self.failed_probes.saturating_add(1);
        self.probe_at = now + self.wait(draw);
        Some(self.turn(BreakerState::Open, now))
    }

    fn open(&mut self, now: Instant, draw: Draw) -> Transition {
        // A breaker that opens again soon after it closed was closed too early, so the waits go on growing.
        if now.duration_since(self.turned) > 2 * self.settings.longest_wait || self.opened == 0 {
            self.failed_probes = 0;
        } else {
            self.failed_probes = self.failed_probes.saturating_add(1);
        }
        self.probe_at = now + self.wait(draw);
        self.opened += 1;
        let transition = self.turn(BreakerState::Open, now);
        self.turned = now;
        transition
    }

    fn turn(&mut self, to: BreakerState, now: Instant) -> Transition {
        let transition = Transition { from: self.state, to, after: now.duration_since(self.turned) };
        self.state = to;
        transition
    }

    fn wait(&self, draw: Draw) -> Duration {
        spread(self.settings.first_wait, self.settings.longest_wait, self.failed_probes, draw)
    }
}

/// Twice `first` for every time that it was in vain, but at most `longest`; then anything from half of that to all of it.
pub(super) fn spread(first: Duration, longest: Duration, in_vain: u32, draw: Draw) -> Duration {
    let full = 2_u32.checked_pow(in_vain).and_then(|times| first.checked_mul(times)).unwrap_or(longest).min(longest);
    full / 2 + full / 2 * u32::from(draw.0) / u32::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOST: Draw = Draw(u16::MAX);
    const SETTINGS: BreakerSettings = BreakerSettings {
        failures: 3,
        first_wait: Duration::from_millis(10),
        longest_wait: Duration::from_millis(100),
    };

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn closed() -> (Breaker, Instant) {
        let now = Instant::now();
        (Breaker::new(SETTINGS, ms(4), now), now)
    }

    #[test]
    fn it_opens_after_failures_in_a_row() {
        let (mut breaker, now) = closed();
        assert_eq!(breaker.failed(2, now + ms(5), MOST), None);
        breaker.succeeded(now + ms(5));
        assert_eq!(breaker.failed(2, now + ms(10), MOST), None, "the success between them counts");
        let transition = breaker.failed(1, now + ms(10), MOST).unwrap();
        assert_eq!((transition.from, transition.to), (BreakerState::Closed, BreakerState::Open));
        assert_eq!(transition.after, ms(10));
        assert_eq!(breaker.probe_at(), Some(now + ms(20)));
        assert_eq!(breaker.failed(9, now + ms(11), MOST), None, "it is open already");
        assert_eq!(breaker.opened(), 1);
    }

    #[test]
    fn a_server_that_answers_does_not_open_it() {
        let (mut breaker, now) = closed();
        breaker.succeeded(now);
        assert_eq!(breaker.failed(1_000, now + ms(3), MOST), None, "it is too slow for all of them, but it answers");
        assert!(breaker.failed(1, now + ms(4), MOST).is_some());
    }

    #[test]
    fn a_lost_connection_opens_it_at_once() {
        let (mut breaker, now) = closed();
        assert!(breaker.trip(now, MOST).is_some());
        assert_eq!(breaker.trip(now, MOST), None);
        assert_eq!(breaker.state(), BreakerState::Open);
    }

    #[test]
    fn a_probe_that_is_answered_closes_it() {
        let (mut breaker, now) = closed();
        breaker.trip(now, MOST);
        assert_eq!(breaker.probe(now + ms(10)).unwrap().to, BreakerState::HalfOpen);
        assert_eq!(breaker.probe_at(), None, "one probe at a time");
        let transition = breaker.recovered(now + ms(11)).unwrap();
        assert_eq!((transition.to, transition.after), (BreakerState::Closed, ms(11)));
        assert_eq!(breaker.turned(), now + ms(11));
        assert_eq!(breaker.failed(2, now + ms(30), MOST), None, "it counts from the beginning");
    }

    #[test]
    fn waits_double_up_to_a_bound_while_probes_fail() {
        let (mut breaker, mut now) = closed();
        breaker.trip(now, MOST);
        for wait in [10, 20, 40, 80, 100, 100] {
            assert_eq!(breaker.probe_at(), Some(now + ms(wait)));
            now += ms(wait);
            breaker.probe(now);
            breaker.probe_failed(now, MOST);
        }
        assert_eq!(breaker.opened(), 1);
    }

    #[test]
    fn waits_go_on_growing_if_it_opens_again_soon() {
        let (mut breaker, now) = closed();
        breaker.trip(now, MOST);
        breaker.recovered(now + ms(10));
        breaker.trip(now + ms(30), MOST);
        assert_eq!(breaker.probe_at(), Some(now + ms(50)));
        breaker.recovered(now + ms(50));
        breaker.trip(now + ms(500), MOST);
        assert_eq!(breaker.probe_at(), Some(now + ms(510)), "all was well for long enough");
    }

    #[test]
    fn what_a_stray_event_says_changes_nothing() {
        let (mut breaker, now) = closed();
        assert_eq!(breaker.probe(now), None);
        assert_eq!(breaker.probe_failed(now, MOST), None);
        assert_eq!(breaker.recovered(now), None);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    proptest! {
        #[test]
        fn waits_lie_between_half_and_all(in_vain in 0_u32..80, draw: u16) {
            let (first, longest) = (SETTINGS.first_wait, SETTINGS.longest_wait);
            let full = spread(first, longest, in_vain, MOST);
            let wait = spread(first, longest, in_vain, Draw(draw));
            prop_assert!(full / 2 <= wait && wait <= full && full <= longest);
        }

        #[test]
        fn from_any_state_a_recovery_closes_it(events in proptest::collection::vec(0..6, 0..40)) {
            let (mut breaker, mut now) = closed();
            for event in events {
                now += ms(7);
                match event {
                    0 => breaker.failed(1, now, MOST),
                    1 => { breaker.succeeded(now); None }
                    2 => breaker.trip(now, MOST),
                    3 => breaker.probe(now),
                    4 => breaker.recovered(now),
                    _ => breaker.probe_failed(now, MOST),
                };
                // Whenever it is open there is a probe to come, and not too late.
                if breaker.state() == BreakerState::Open {
                    let wait = breaker.probe_at().unwrap().duration_since(now);
                    prop_assert!(wait <= SETTINGS.longest_wait);
                }
            }
            breaker.recovered(now);
            prop_assert_eq!(breaker.state(), BreakerState::Closed);
        }
    }
}
