use proptest::prelude::*;

use super::*;

const MOST: Jitter = Jitter(u16::MAX);
const SETTINGS: BreakerSettings =
    BreakerSettings { failures: 3, first_wait: Duration::from_millis(10), longest_wait: Duration::from_millis(100) };

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
    assert_eq!(breaker.failed(2, Evidence::Slow(ms(4)), now + ms(10), MOST), None, "the answer between them counts");
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
    assert_eq!(breaker.failed(1_000, slow, now + ms(3), MOST), None, "it has no time for all of them, but it answers");
    assert!(breaker.failed(1, slow, now + ms(4), MOST).is_some());
}

#[test]
fn a_server_that_is_too_slow_for_some_is_not_taken_from_others() {
    let (mut breaker, now) = closed();
    breaker.set_unanswered_since(Some(now));
    breaker.failed(3, Evidence::Slow(ms(20)), now + ms(20), MOST).unwrap();
    let refused = |breaker: &Breaker, deadline: u64, at: u64| {
        breaker.refusal().is_some_and(|refusal| refusal.covers(ms(deadline), now + ms(at)))
    };
    assert!(refused(&breaker, 20, 20));
    assert!(!refused(&breaker, 21, 20));
    assert!(refused(&breaker, 59, 59), "nothing was answered for as long as it has");
    assert!(!refused(&breaker, 200, 59));
    // The answer arrives, and shows how long answers take.
    assert_eq!(breaker.succeeded(ms(60), now + ms(60)), None);
    breaker.set_unanswered_since(None);
    assert!(refused(&breaker, 60, 60));
    assert!(!refused(&breaker, 200, 60));
    // Probes measure the same, and are sent less and less often.
    let mut at = now + ms(60);
    for _ in 0..9 {
        at = at.max(breaker.probe_at().unwrap());
        breaker.probe(at);
        breaker.set_unanswered_since(Some(at));
        at += ms(60);
        breaker.probe_answered(ms(60), Some(at), at, MOST);
        breaker.set_unanswered_since(None);
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
    assert_eq!(breaker.refusal().unwrap().up_to(now + ms(25)), ms(25), "the oldest answer is still awaited");
    breaker.set_unanswered_since(None);
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
    assert_eq!(breaker.refusal(), Some(BreakerRefusal::All));
    breaker.probe(now + ms(20));
    breaker.probe_refused(now + ms(21), MOST);
    assert_eq!(breaker.refusal(), Some(BreakerRefusal::All));
    breaker.probe(now + ms(60));
    breaker.probe_answered(ms(60), None, now + ms(120), MOST);
    assert_eq!(breaker.state(), BreakerState::Closed, "nobody wanted a quicker answer");

    breaker.failed(3, Evidence::Slow(ms(20)), now + ms(300), MOST);
    assert_ne!(breaker.refusal(), Some(BreakerRefusal::All));
    breaker.trip(now + ms(301), MOST);
    assert_eq!(breaker.refusal(), Some(BreakerRefusal::All), "it was slow, and now it is gone");
}

#[test]
fn a_connection_that_is_not_made_in_time_is_waited_for_by_those_who_have_the_time() {
    let (mut breaker, now) = closed();
    breaker.recovered(now);
    breaker.set_unanswered_since(Some(now + ms(50)));
    breaker.disconnected(now + ms(100));
    breaker.connecting_timed_out(now + ms(350), MOST).unwrap();
    let refusal = breaker.refusal().unwrap();
    assert!(refusal.covers(ms(300), now + ms(350)), "nothing was received for as long");
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
fn stray_events_change_nothing() {
    let (mut breaker, now) = closed();
    assert_eq!(breaker.probe(now), None);
    assert_eq!(breaker.probe_failed(now, MOST), None);
    assert_eq!(breaker.recovered(now), None);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

proptest! {
    #[test]
    fn waits_lie_between_half_and_all(useless_connections in 0_u32..80, jitter: u16) {
        let (first, longest) = (SETTINGS.first_wait, SETTINGS.longest_wait);
        let full = backoff(first, longest, useless_connections, MOST);
        let wait = backoff(first, longest, useless_connections, Jitter(jitter));
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
            // Whenever the breaker is open, a probe is scheduled soon enough.
            if breaker.state() == BreakerState::Open {
                let wait = breaker.probe_at().unwrap().duration_since(now);
                prop_assert!(wait <= SETTINGS.longest_wait);
            }
        }
        breaker.recovered(now);
        prop_assert_eq!(breaker.state(), BreakerState::Closed);
    }
}
