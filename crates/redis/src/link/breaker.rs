//! A breaker: when a server does not answer, calls fail at once instead of waiting in turn.
//!
//! It is *closed* while all is well. It *opens* on one of two kinds of evidence, and whom it refuses depends on the kind:
//!
//! - The server is *down*: it does not take connections, or refuses everybody. Every call fails at once.
//! - The server is *slow*: calls ran out of their own time, or connecting did. That says nothing to a caller with more time, so only those calls
//!   fail at once whose deadline is no longer than answers take at present: the last round trip, or the age of the oldest
//!   unanswered command if that is more.
//!
//! A server that answers in time but cannot keep up does not open it: the calls that it has no time for fail one by one. After
//! a while it is *half open*: the link sends a probe of its own. If the probe is answered soon enough for those who are refused,
//! the breaker closes; if not it is open again, and for longer each time, up to a bound that also bounds how long service takes
//! to come back. Answers to calls that are sent meanwhile count as well. Waits are spread, so that a fleet does not probe in
//! step.
//!
//! It reads no clock and no random source: both are passed in.

use std::time::Duration;

use tokio::time::Instant;

/// Timeouts further apart than this are not a series, and callers who were not seen for so long are not waited for.
const FORGET: Duration = Duration::from_secs(60);

/// When a breaker opens and how often it probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerSettings {
    /// It opens after so many failed calls, if no answer came meanwhile that was quick enough for them.
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
    /// All are.
    Closed,
    /// Some or all fail at once: [`ServerStats::refuses_up_to`](super::ServerStats::refuses_up_to) says which.
    Open,
    /// As open, and a probe is on its way.
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

/// What a failure says about the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// It refuses everybody, or the connection broke.
    Down,
    /// It did not answer within this time, which is what the caller allowed.
    Slow(Duration),
}

/// Which calls fail at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// All of them.
    Everybody,
    /// Those that would probably be answered too late.
    Hasty {
        /// How long the last answer took.
        round_trip: Duration,
        /// Since when the server owes an answer, if it does.
        owed_since: Option<Instant>,
    },
}

impl Refusal {
    /// The longest deadline that is refused.
    pub(super) fn up_to(self, now: Instant) -> Duration {
        match self {
            Refusal::Everybody => Duration::MAX,
            Refusal::Hasty { round_trip, owed_since } => {
                let waited = owed_since.map_or(Duration::ZERO, |since| now.duration_since(since));
                round_trip.max(waited)
            }
        }
    }

    pub(super) fn covers(self, remaining: Duration, now: Instant) -> bool {
        remaining <= self.up_to(now)
    }
}

/// A random number, drawn by whoever calls: it spreads the wait that a call may lead to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draw(pub(super) u16);

#[derive(Debug)]
pub(super) struct Breaker {
    settings: BreakerSettings,
    /// How long a server may be silent before refusals and broken connections count.
    patience: Duration,
    state: BreakerState,
    /// Whether everybody is refused while it is not closed.
    is_down: bool,
    /// Refusals and broken connections since the last answer, while closed.
    faults: u32,
    timeouts: Timeouts,
    answered: Instant,
    round_trip: Duration,
    owed_since: Option<Instant>,
    /// Probes that failed since it was last closed for good.
    failed_probes: u32,
    probe_at: Instant,
    /// When it last went from closed to open or back.
    turned: Instant,
    opened: u64,
}

/// Calls that ran out of time since an answer came that was quick enough for all of them.
#[derive(Debug)]
struct Timeouts {
    calls: u32,
    /// The shortest deadline among them.
    shortest: Duration,
    last: Instant,
}

impl Timeouts {
    const fn none(now: Instant) -> Timeouts {
        Timeouts { calls: 0, shortest: Duration::MAX, last: now }
    }
}

impl Breaker {
    /// Closed, without a connection yet.
    pub(super) const fn new(settings: BreakerSettings, patience: Duration, now: Instant) -> Breaker {
        Breaker {
            settings,
            patience,
            state: BreakerState::Closed,
            is_down: false,
            faults: 0,
            timeouts: Timeouts::none(now),
            answered: now,
            round_trip: Duration::ZERO,
            owed_since: Some(now),
            failed_probes: 0,
            probe_at: now,
            turned: now,
            opened: 0,
        }
    }

    pub(super) const fn state(&self) -> BreakerState {
        self.state
    }

    /// Which calls fail at once; `None` while it is closed.
    pub(super) const fn refusal(&self) -> Option<Refusal> {
        match self.state {
            BreakerState::Closed => None,
            _ if self.is_down => Some(Refusal::Everybody),
            _ => Some(Refusal::Hasty { round_trip: self.round_trip, owed_since: self.owed_since }),
        }
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

    /// Since when the server owes the oldest answer that it owes.
    pub(super) const fn owes(&mut self, since: Option<Instant>) {
        self.owed_since = since;
    }

    /// The connection has ended: what was owed still is, and a new call has nobody to go to.
    pub(super) fn disconnected(&mut self, now: Instant) {
        self.owed_since.get_or_insert(now);
    }

    /// Calls failed, or were not answered in time.
    pub(super) fn failed(&mut self, calls: u32, evidence: Evidence, now: Instant, draw: Draw) -> Option<Transition> {
        match evidence {
            Evidence::Down => self.refused(calls, now, draw),
            Evidence::Slow(allowed) => self.timed_out(calls, allowed, now, draw),
        }
    }

    fn refused(&mut self, calls: u32, now: Instant, draw: Draw) -> Option<Transition> {
        if self.is_down && self.state != BreakerState::Closed {
            return None;
        }
        self.faults = self.faults.saturating_add(calls);
        let is_silent = now.duration_since(self.answered) >= self.patience;
        if self.faults < self.settings.failures || !is_silent {
            return None;
        }
        self.is_down = true;
        (self.state == BreakerState::Closed).then(|| self.open(now, draw))
    }

    fn timed_out(&mut self, calls: u32, allowed: Duration, now: Instant, draw: Draw) -> Option<Transition> {
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
            self.open(now, draw)
        })
    }

    /// A call was answered, in time or not, after this long.
    pub(super) fn succeeded(&mut self, round_trip: Duration, now: Instant) -> Option<Transition> {
        self.heard(round_trip, now);
        let is_quick = round_trip < self.timeouts.shortest;
        match self.state {
            BreakerState::Closed => {
                if is_quick {
                    self.timeouts = Timeouts::none(now);
                }
                None
            }
            // What a call tells before a probe is due is not enough: a server that wavers would make it flutter.
            BreakerState::Open if now < self.probe_at => None,
            BreakerState::Open | BreakerState::HalfOpen => (is_quick && !self.is_down).then(|| self.close(now)),
        }
    }

    const fn heard(&mut self, round_trip: Duration, now: Instant) {
        self.faults = 0;
        self.answered = now;
        self.round_trip = round_trip;
    }

    /// There is no connection, so no call can succeed.
    pub(super) fn trip(&mut self, now: Instant, draw: Draw) -> Option<Transition> {
        self.is_down = true;
        match self.state {
            BreakerState::Closed => Some(self.open(now, draw)),
            BreakerState::HalfOpen => self.probe_failed(now, draw),
            BreakerState::Open => None,
        }
    }

    /// Nothing was heard while connecting. Like a call that is not answered, that says nothing to those with more time.
    pub(super) fn connecting_timed_out(&mut self, now: Instant, draw: Draw) -> Option<Transition> {
        self.is_down = false;
        self.owed_since.get_or_insert(now);
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

    /// There is a connection, and the server is well as far as anybody knows.
    pub(super) fn recovered(&mut self, now: Instant) -> Option<Transition> {
        self.owed_since = None;
        if self.state == BreakerState::Closed {
            return None;
        }
        self.heard(Duration::ZERO, now);
        Some(self.close(now))
    }

    /// A probe was answered after this long. `refused` is when a call was last refused.
    pub(super) fn probe_answered(
        &mut self,
        round_trip: Duration,
        refused: Option<Instant>,
        now: Instant,
        draw: Draw,
    ) -> Option<Transition> {
        self.heard(round_trip, now);
        let wanted = refused.map_or(self.timeouts.last, |refused| refused.max(self.timeouts.last));
        let is_wanted = self.timeouts.calls > 0 && now.duration_since(wanted) <= FORGET;
        if self.state == BreakerState::Closed {
            return None;
        }
        if round_trip < self.timeouts.shortest || !is_wanted {
            return Some(self.close(now));
        }
        self.is_down = false;
        self.probe_failed(now, draw)
    }

    /// The server answered the probe by refusing everybody.
    pub(super) fn probe_refused(&mut self, now: Instant, draw: Draw) -> Option<Transition> {
        if self.state == BreakerState::Closed {
            return self.refused(1, now, draw);
        }
        self.is_down = true;
        self.probe_failed(now, draw)
    }

    /// The probe was not answered, or not well, or too late for those who are refused.
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

    fn close(&mut self, now: Instant) -> Transition {
        self.faults = 0;
        self.is_down = false;
        self.timeouts = Timeouts::none(now);
        let transition = self.turn(BreakerState::Closed, now);
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
    fn it_opens_after_timeouts_in_a_row() {
        let (mut breaker, now) = closed();
        assert_eq!(breaker.failed(2, Evidence::Slow(ms(4)), now + ms(5), MOST), None);
        assert_eq!(breaker.succeeded(ms(3), now + ms(5)), None);
        assert_eq!(
            breaker.failed(2, Evidence::Slow(ms(4)), now + ms(10), MOST),
            None,
            "the answer between them counts"
        );
        let transition = breaker.failed(1, Evidence::Slow(ms(4)), now + ms(10), MOST).unwrap();
        assert_eq!((transition.from, transition.to), (BreakerState::Closed, BreakerState::Open));
        assert_eq!(transition.after, ms(10));
        assert_eq!(breaker.probe_at(), Some(now + ms(20)));
        assert_eq!(breaker.failed(9, Evidence::Slow(ms(4)), now + ms(11), MOST), None, "it is open already");
        assert_eq!(breaker.opened(), 1);
    }

    #[test]
    fn a_server_that_answers_in_time_does_not_open_it() {
        let (mut breaker, now) = closed();
        breaker.succeeded(ms(3), now);
        let slow = Evidence::Slow(ms(4));
        assert_eq!(
            breaker.failed(1_000, slow, now + ms(3), MOST),
            None,
            "it has no time for all of them, but it answers"
        );
        assert!(breaker.failed(1, slow, now + ms(4), MOST).is_some());
    }

    #[test]
    fn a_server_that_is_too_slow_for_some_is_not_taken_from_others() {
        let (mut breaker, now) = closed();
        breaker.owes(Some(now));
        breaker.failed(3, Evidence::Slow(ms(20)), now + ms(20), MOST).unwrap();
        let refused = |breaker: &Breaker, deadline: u64, at: u64| {
            breaker.refusal().is_some_and(|refusal| refusal.covers(ms(deadline), now + ms(at)))
        };
        assert!(refused(&breaker, 20, 20));
        assert!(!refused(&breaker, 21, 20));
        assert!(refused(&breaker, 59, 59), "nothing was answered for as long as it has");
        assert!(!refused(&breaker, 200, 59));
        // The answer comes, and with it the knowledge of how long answers take.
        assert_eq!(breaker.succeeded(ms(60), now + ms(60)), None);
        breaker.owes(None);
        assert!(refused(&breaker, 60, 60));
        assert!(!refused(&breaker, 200, 60));
        // Probes find the same, and are sent less and less often.
        let mut at = now + ms(60);
        for _ in 0..9 {
            at = at.max(breaker.probe_at().unwrap());
            breaker.probe(at);
            breaker.owes(Some(at));
            at += ms(60);
            breaker.probe_answered(ms(60), Some(at), at, MOST);
            breaker.owes(None);
            assert_eq!(breaker.refusal().unwrap().up_to(at), ms(60));
        }
        assert_eq!(breaker.probe_at(), Some(at + SETTINGS.longest_wait));
        breaker.probe(at + ms(100));
        let transition = breaker.probe_answered(ms(19), Some(at), at + ms(119), MOST).unwrap();
        assert_eq!(transition.to, BreakerState::Closed);
        assert_eq!(breaker.refusal(), None);
    }

    #[test]
    fn a_call_that_is_answered_soon_enough_is_as_good_as_a_probe() {
        let (mut breaker, now) = closed();
        breaker.failed(3, Evidence::Slow(ms(20)), now + ms(20), MOST).unwrap();
        assert_eq!(breaker.succeeded(ms(5), now + ms(25)), None, "no probe is due yet");
        assert_eq!(breaker.refusal().unwrap().up_to(now + ms(25)), ms(25), "the oldest answer is still owed");
        breaker.owes(None);
        assert_eq!(breaker.refusal().unwrap().up_to(now + ms(25)), ms(5), "but nobody of them is refused any more");
        assert_eq!(breaker.succeeded(ms(25), now + ms(60)), None, "that is too slow");
        assert_eq!(breaker.succeeded(ms(5), now + ms(61)).unwrap().to, BreakerState::Closed);
    }

    #[test]
    fn it_closes_when_nobody_asks_for_quick_answers_any_more() {
        let (mut breaker, now) = closed();
        breaker.failed(3, Evidence::Slow(ms(20)), now + ms(20), MOST).unwrap();
        let refused = Some(now + Duration::from_secs(30));
        breaker.probe(now + Duration::from_secs(80));
        breaker.probe_answered(ms(60), refused, now + Duration::from_secs(80), MOST);
        assert_eq!(breaker.state(), BreakerState::Open, "somebody was refused less than a minute ago");
        breaker.probe(now + Duration::from_secs(91));
        breaker.probe_answered(ms(60), refused, now + Duration::from_secs(91), MOST);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn a_server_that_refuses_everybody_is_taken_from_everybody() {
        let (mut breaker, now) = closed();
        assert_eq!(breaker.failed(2, Evidence::Down, now + ms(5), MOST), None);
        assert!(breaker.failed(1, Evidence::Down, now + ms(5), MOST).is_some());
        assert_eq!(breaker.refusal(), Some(Refusal::Everybody));
        breaker.probe(now + ms(20));
        breaker.probe_refused(now + ms(21), MOST);
        assert_eq!(breaker.refusal(), Some(Refusal::Everybody));
        breaker.probe(now + ms(60));
        breaker.probe_answered(ms(60), None, now + ms(120), MOST);
        assert_eq!(breaker.state(), BreakerState::Closed, "nobody wanted a quicker answer");

        breaker.failed(3, Evidence::Slow(ms(20)), now + ms(300), MOST);
        assert_ne!(breaker.refusal(), Some(Refusal::Everybody));
        breaker.trip(now + ms(301), MOST);
        assert_eq!(breaker.refusal(), Some(Refusal::Everybody), "it was slow, and now it is gone");
    }

    #[test]
    fn a_connection_that_is_not_made_in_time_is_waited_for_by_those_who_have_the_time() {
        let (mut breaker, now) = closed();
        breaker.recovered(now);
        breaker.owes(Some(now + ms(50)));
        breaker.disconnected(now + ms(100));
        breaker.connecting_timed_out(now + ms(350), MOST).unwrap();
        let refusal = breaker.refusal().unwrap();
        assert!(refusal.covers(ms(300), now + ms(350)), "nothing was heard for as long");
        assert!(!refusal.covers(ms(301), now + ms(350)));
        assert!(refusal.covers(ms(301), now + ms(351)));
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
        let timeout = breaker.failed(2, Evidence::Slow(ms(4)), now + ms(30), MOST);
        assert_eq!(timeout, None, "it counts from the beginning");
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
        fn from_any_state_a_recovery_closes_it(events in proptest::collection::vec(0..9, 0..40)) {
            let (mut breaker, mut now) = closed();
            for event in events {
                now += ms(7);
                match event {
                    0 => breaker.failed(1, Evidence::Slow(ms(4)), now, MOST),
                    1 => breaker.succeeded(ms(1), now),
                    6 => breaker.failed(1, Evidence::Down, now, MOST),
                    7 => breaker.succeeded(ms(9), now),
                    8 => breaker.probe_answered(ms(9), Some(now), now, MOST),
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
