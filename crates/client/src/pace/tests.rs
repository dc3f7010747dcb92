//! The pace against servers in virtual time, without a runtime.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use http::Method;
use proptest::prelude::*;
use tokio::time::Instant;

use super::host::HostPace;
use super::routes::RouteKey;
use super::turn::{Behind, Entry, ObservedAnswer, Sent, Turn};
use crate::limits::{LimitId, ServerLimit, Unit};

fn of(path: &str) -> RouteKey {
    RouteKey::of(&Method::GET, path, None)
}

fn route() -> RouteKey {
    of("/")
}

fn stated(quota: u64, remaining: u64, window: Duration) -> ServerLimit {
    ServerLimit { id: LimitId::named("api"), unit: Unit::Requests, quota: Some(quota), remaining, window }
}

fn answer(limits: &[ServerLimit]) -> ObservedAnswer<'_> {
    ObservedAnswer { route: route(), limits, denied_for: None, is_host_wide: false, is_complete: true }
}

fn sent(entry: Entry) -> Option<Sent> {
    match entry {
        Entry::Sent(sent) => Some(sent),
        Entry::Queued(_) => None,
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn an_unknown_host_is_not_slowed_down() {
    let (pace, now) = (HostPace::default(), Instant::now());
    for _ in 0..1_000 {
        assert!(sent(pace.enter(route, 1, now)).is_some());
    }
}

#[test]
fn no_more_is_sent_than_is_left() {
    let (pace, now) = (HostPace::default(), Instant::now());
    let first = sent(pace.enter(route, 1, now)).unwrap();
    pace.answered(&first, answer(&[stated(10, 4, SECOND)]), now, 0.0);
    for _ in 0..4 {
        assert!(sent(pace.enter(route, 1, now)).is_some());
    }
    let Entry::Queued(place) = pace.enter(route, 1, now) else { panic!("nothing is left") };
    assert!(matches!(pace.turn(place.number, now), Turn::At(at) if at == now + SECOND));
}

#[test]
fn requests_are_spread_when_little_is_left() {
    let (pace, start) = (HostPace::default(), Instant::now());
    let first = sent(pace.enter(route, 1, start)).unwrap();
    pace.answered(&first, answer(&[stated(100, 5, 10 * SECOND)]), start, 0.0);
    assert!(sent(pace.enter(route, 1, start)).is_some());
    let Entry::Queued(place) = pace.enter(route, 1, start) else { panic!("not yet") };
    assert!(matches!(pace.turn(place.number, start), Turn::At(at) if at == start + 2 * SECOND));
    assert!(matches!(pace.turn(place.number, start + 2 * SECOND), Turn::Sent(_)));
    for second in [4, 6, 8] {
        let Entry::Queued(place) = pace.enter(route, 1, start + (second - 2) * SECOND) else { panic!("not yet") };
        assert!(
            matches!(pace.turn(place.number, start + (second - 2) * SECOND), Turn::At(at) if at == start + second * SECOND)
        );
        assert!(matches!(pace.turn(place.number, start + second * SECOND), Turn::Sent(_)));
    }
    let Entry::Queued(place) = pace.enter(route, 1, start + 8 * SECOND) else { panic!("nothing is left") };
    assert!(matches!(pace.turn(place.number, start + 9 * SECOND), Turn::At(at) if at == start + 10 * SECOND));
}

#[test]
fn denials_are_no_more_than_the_most_limits() {
    let (pace, now) = (HostPace::default(), Instant::now());
    for number in 0..2_000 {
        let path = format!("/{number}/x");
        let Entry::Sent(sent) = pace.enter(|| of(&path), 1, now) else { panic!("a new route") };
        let route = of(&path);
        let denial =
            ObservedAnswer { route, limits: &[], denied_for: Some(SECOND), is_host_wide: false, is_complete: false };
        pace.answered(&sent, denial, now, 0.0);
    }
    assert!((1..=1_024).contains(&pace.known_limits()));
}

#[test]
fn a_denial_of_the_host_holds_those_that_wait() {
    let (pace, now) = (HostPace::default(), Instant::now());
    let flight: Vec<_> = (0..2).map(|_| sent(pace.enter(route, 1, now)).unwrap()).collect();
    pace.answered(&flight[0], answer(&[stated(10, 1, SECOND)]), now, 0.0);
    let Entry::Queued(place) = pace.enter(route, 1, now) else { panic!("one is in flight") };
    let denial = ObservedAnswer {
        route: route(),
        limits: &[],
        denied_for: Some(5 * SECOND),
        is_host_wide: true,
        is_complete: false,
    };
    pace.answered(&flight[1], denial, now, 0.0);
    assert!(matches!(pace.turn(place.number, now + 2 * SECOND), Turn::At(at) if at == now + 5 * SECOND));
    assert!(matches!(pace.turn(place.number, now + 5 * SECOND), Turn::Sent(_)));
}

#[test]
fn requests_in_flight_are_not_sent_twice() {
    let (pace, now) = (HostPace::default(), Instant::now());
    let flight: Vec<_> = (0..5).map(|_| sent(pace.enter(route, 1, now)).unwrap()).collect();
    // The first answer: 9 left, but four more requests are in flight.
    pace.answered(&flight[0], answer(&[stated(10, 9, SECOND)]), now, 0.0);
    for _ in 0..5 {
        assert!(sent(pace.enter(route, 1, now)).is_some());
    }
    assert!(sent(pace.enter(route, 1, now)).is_none());
}

#[test]
fn an_answer_that_was_overtaken_may_be_the_newest() {
    let (pace, start) = (HostPace::default(), Instant::now());
    let flight: Vec<_> = (0..2).map(|_| sent(pace.enter(route, 1, start)).unwrap()).collect();
    pace.answered(&flight[0], answer(&[stated(10, 1, SECOND)]), start, 0.0);
    // The server decided the other request just now.
    let later = start + SECOND * 9 / 10;
    pace.answered(&flight[1], answer(&[stated(10, 0, SECOND)]), later, 0.0);
    let Entry::Queued(place) = pace.enter(route, 1, start + SECOND) else { panic!("nothing is left") };
    assert!(matches!(pace.turn(place.number, start + SECOND), Turn::At(at) if at == later + SECOND));
}

#[test]
fn after_the_window_one_request_explores() {
    let (pace, start) = (HostPace::default(), Instant::now());
    let first = sent(pace.enter(route, 1, start)).unwrap();
    pace.answered(&first, answer(&[stated(10, 0, SECOND)]), start, 0.0);
    let places: Vec<_> = (0..3)
        .map(|_| match pace.enter(route, 1, start) {
            Entry::Queued(place) => place.number,
            Entry::Sent(_) => panic!("nothing is left"),
        })
        .collect();
    let later = start + SECOND;
    assert!(matches!(pace.turn(places[1], later), Turn::Behind(_)), "not its turn");
    let Turn::Sent(explorer) = pace.turn(places[0], later) else { panic!("its turn") };
    assert!(matches!(pace.turn(places[1], later), Turn::Behind(_)), "nothing is known yet");
    pace.answered(&explorer, answer(&[stated(10, 9, SECOND)]), later, 0.0);
    assert!(matches!(pace.turn(places[1], later), Turn::Sent(_)));
    assert!(matches!(pace.turn(places[2], later), Turn::Sent(_)));
    assert_eq!(pace.waiting(), 0);
}

#[test]
fn while_an_answer_is_slow_another_request_explores_after_each_window() {
    let (pace, start) = (HostPace::default(), Instant::now());
    let first = sent(pace.enter(route, 1, start)).unwrap();
    pace.answered(&first, answer(&[stated(10, 0, 3 * SECOND)]), start, 0.0);
    let mut places: Vec<u64> = Vec::new();
    for _ in 0..4 {
        let Entry::Queued(place) = pace.enter(route, 1, start) else { panic!("nothing is left") };
        places.push(place.number);
    }
    let at = |seconds| start + seconds * SECOND;
    assert!(matches!(pace.turn(places[0], at(4)), Turn::Sent(_)));
    let Turn::Behind(behind) = pace.turn(places[1], at(4)) else { panic!("one request explores") };
    assert_eq!(behind.recheck_at, Some(at(7)));
    assert!(matches!(pace.turn(places[1], at(6)), Turn::Behind(_)));
    let Turn::Sent(second) = pace.turn(places[1], at(7)) else { panic!("the first is not answered") };
    assert!(matches!(pace.turn(places[2], at(7)), Turn::Behind(_)));
    pace.answered(&second, answer(&[stated(10, 8, 3 * SECOND)]), at(8), 0.0);
    assert!(matches!(pace.turn(places[2], at(8)), Turn::Sent(_)));
}

#[test]
fn a_request_behind_others_knows_that_it_cannot_be_sent_in_this_window() {
    let (pace, start) = (HostPace::default(), Instant::now());
    let first = sent(pace.enter(route, 1, start)).unwrap();
    pace.answered(&first, answer(&[stated(100, 3, 30 * SECOND)]), start, 0.0);
    assert!(sent(pace.enter(route, 1, start)).is_some());
    let mut places: Vec<u64> = Vec::new();
    for _ in 0..4 {
        let Entry::Queued(place) = pace.enter(route, 1, start) else { panic!("they are spread") };
        places.push(place.number);
    }
    let not_before = |number| match pace.turn(number, start) {
        Turn::Behind(behind) => behind.not_before,
        turn => panic!("{turn:?}"),
    };
    assert!(matches!(pace.turn(places[0], start), Turn::At(at) if at == start + 10 * SECOND));
    assert!(not_before(places[1]) < start + 30 * SECOND, "two are left");
    assert_eq!(not_before(places[2]), start + 30 * SECOND);
    assert_eq!(not_before(places[3]), start + 30 * SECOND);
}

#[test]
fn requests_in_flight_count_though_their_limits_were_forgotten() {
    let (pace, now) = (HostPace::default(), Instant::now());
    let first = sent(pace.enter(route, 1, now)).unwrap();
    pace.answered(&first, answer(&[stated(10, 9, SECOND)]), now, 0.0);
    let flight: Vec<_> = (0..3).map(|_| sent(pace.enter(route, 1, now)).unwrap()).collect();
    pace.forget();
    pace.answered(&flight[0], answer(&[stated(10, 6, SECOND)]), now, 0.0);
    for _ in 0..4 {
        assert!(sent(pace.enter(route, 1, now)).is_some());
    }
    let Entry::Queued(place) = pace.enter(route, 1, now) else { panic!("two of six may still arrive") };
    flight[1..].iter().for_each(|sent| pace.abandoned(sent));
    pace.leave(place.number);
    assert_eq!(pace.in_flight(), 4);
}

#[test]
fn a_denial_that_names_no_limit_holds_its_route_only() {
    let (pace, now) = (HostPace::default(), Instant::now());
    let first = sent(pace.enter(route, 1, now)).unwrap();
    pace.answered(
        &first,
        ObservedAnswer {
            route: route(),
            limits: &[],
            denied_for: Some(SECOND),
            is_host_wide: false,
            is_complete: false,
        },
        now,
        0.0,
    );
    assert!(sent(pace.enter(route, 1, now)).is_none());
    assert!(sent(pace.enter(|| of("/other"), 1, now)).is_some());
}

#[test]
fn a_queue_behind_a_vanished_limit_drains_faster_and_faster() {
    let (pace, start) = (HostPace::default(), Instant::now());
    let first = sent(pace.enter(route, 1, start)).unwrap();
    pace.answered(
        &first,
        ObservedAnswer {
            route: route(),
            limits: &[],
            denied_for: Some(SECOND),
            is_host_wide: false,
            is_complete: false,
        },
        start,
        0.0,
    );
    let mut queue: Vec<u64> = Vec::new();
    for _ in 0..127 {
        let Entry::Queued(place) = pace.enter(route, 1, start) else { panic!("denied") };
        queue.push(place.number);
    }
    queue.reverse();
    let now = start + SECOND;
    let mut rounds = 0;
    while !queue.is_empty() {
        rounds += 1;
        let mut flight = Vec::new();
        while let Some(number) = queue.last() {
            let Turn::Sent(sent) = pace.turn(*number, now) else { break };
            flight.push(sent);
            queue.pop();
        }
        flight.iter().for_each(|sent| pace.answered(sent, answer(&[]), now, 0.0));
    }
    assert!(rounds <= 7, "{rounds}");
}

#[test]
fn a_request_that_leaves_lets_the_next_one_go_first() {
    let (pace, start) = (HostPace::default(), Instant::now());
    let first = sent(pace.enter(route, 1, start)).unwrap();
    pace.answered(&first, answer(&[stated(10, 0, SECOND)]), start, 0.0);
    let (Entry::Queued(one), Entry::Queued(two)) = (pace.enter(route, 1, start), pace.enter(route, 1, start)) else {
        panic!("nothing is left")
    };
    pace.leave(one.number);
    assert!(matches!(pace.turn(two.number, start + SECOND), Turn::Sent(_)));
    assert!(pace.waiting() == 0);
}

#[test]
fn tokens_are_paced_by_estimate() {
    let (pace, now) = (HostPace::default(), Instant::now());
    let first = sent(pace.enter(route, 400, now)).unwrap();
    let tokens = ServerLimit { unit: Unit::Tokens, ..stated(1_000, 600, SECOND) };
    pace.answered(&first, answer(&[tokens]), now, 0.0);
    assert!(sent(pace.enter(route, 500, now)).is_some());
    assert!(sent(pace.enter(route, 500, now)).is_none());
}

#[test]
fn a_server_that_names_ever_new_limits_is_not_remembered_for_ever() {
    let (pace, now) = (HostPace::default(), Instant::now());
    for number in 0..5_000 {
        let route = of(&format!("/{number}/x"));
        if let Entry::Sent(sent) = pace.enter(|| route, 1, now) {
            let limit = ServerLimit { id: LimitId::named(number.to_string()), ..stated(10, 9, 1_000 * SECOND) };
            pace.answered(&sent, ObservedAnswer { route, ..answer(&[limit]) }, now, 0.0);
        }
    }
    assert!((1..=1_024).contains(&pace.standing(now).len()));
}

/// A server that decides exactly, and reports whole seconds.
#[derive(Clone, Debug)]
enum Server {
    Window { quota: u64, length: u64, used: u64, window: u64 },
    Bucket { quota: u64, per_second: u64, level: f64, at: f64 },
}

impl Server {
    fn decide(&mut self, now: f64) -> (bool, ServerLimit) {
        match self {
            Server::Window { quota, length, used, window } => {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds of a test")]
                let current = now as u64 / *length;
                if current != *window {
                    (*window, *used) = (current, 0);
                }
                let is_allowed = *used < *quota;
                *used += u64::from(is_allowed);
                let rest = ((current + 1) * *length) as f64 - now;
                (is_allowed, stated(*quota, *quota - *used, Duration::from_secs_f64(rest.ceil())))
            }
            Server::Bucket { quota, per_second, level, at } => {
                *level = (*level + (now - *at) * *per_second as f64).min(*quota as f64);
                *at = now;
                let is_allowed = *level >= 1.0;
                *level -= f64::from(u8::from(is_allowed));
                let more = (1.0 - level.fract()) / *per_second as f64;
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "tokens of a test")]
                let left = *level as u64;
                (is_allowed, stated(*quota, left, Duration::from_secs_f64(more.ceil())))
            }
        }
    }
}

/// Due times and the indices of requests, earliest first.
type Events = BinaryHeap<Reverse<(u64, usize)>>;

fn servers() -> impl Strategy<Value = Server> {
    prop_oneof![
        (1_u64..50, 1_u64..10).prop_map(|(quota, length)| Server::Window { quota, length, used: 0, window: 0 }),
        (1_u64..50, 1_u64..20).prop_map(|(quota, per_second)| Server::Bucket {
            quota,
            per_second,
            level: quota as f64,
            at: 0.0
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// A single client with up to `tasks` concurrent calls: after the first answer nothing is denied, although requests and
    /// answers overtake each other.
    #[test]
    fn a_paced_client_is_not_denied(mut server in servers(), tasks in 1_usize..40, calls in 1_usize..200, latency in 0_u64..200) {
        let (pace, start) = (HostPace::default(), Instant::now());
        let at = |millis: u64| start + Duration::from_millis(millis);
        let mut queue: Vec<u64> = Vec::new();
        let mut flight: Vec<Option<(Sent, Option<ServerLimit>)>> = Vec::new();
        let (mut arrivals, mut answers) = (Events::new(), Events::new());
        let (mut made, mut now, mut last_sent) = (0, 0_u64, 0_u64);
        while made < calls || !queue.is_empty() || !arrivals.is_empty() || !answers.is_empty() {
            while let Some(Reverse((_, index))) = arrivals.peek().copied().filter(|Reverse((due, _))| *due <= now) {
                arrivals.pop();
                let (is_allowed, limit) = server.decide(now as f64 / 1_000.0);
                prop_assert!(is_allowed, "denied at {now} ms by {server:?}");
                answers.push(Reverse((now + latency / 2 + index as u64 * 13 % 30, index)));
                flight[index].as_mut().unwrap().1 = Some(limit);
            }
            while let Some(Reverse((_, index))) = answers.peek().copied().filter(|Reverse((due, _))| *due <= now) {
                answers.pop();
                let (sent, limit) = flight[index].take().unwrap();
                pace.answered(&sent, answer(&[limit.unwrap()]), at(now), 0.5);
            }
            let mut go = Vec::new();
            // The instants at which something may happen: arrivals of messages, and turns.
            let mut next = Vec::new();
            queue.retain(|number| match pace.turn(*number, at(now)) {
                Turn::Sent(sent) => { go.push(sent); false }
                Turn::At(turn) => { next.push(u64::try_from((turn - start).as_micros().div_ceil(1_000)).unwrap()); true }
                Turn::Behind(Behind { recheck_at, .. }) => {
                    next.extend(recheck_at.map(|at| u64::try_from((at - start).as_micros().div_ceil(1_000)).unwrap()));
                    true
                }
            });
            // The first request is sent alone, so that the host is known.
            let at_once = if made == 0 { 1 } else if flight.first().is_some_and(Option::is_some) { 0 } else { tasks };
            while made < calls && queue.len() + arrivals.len() + answers.len() + go.len() < at_once {
                made += 1;
                match pace.enter(route, 1, at(now)) {
                    Entry::Sent(sent) => go.push(sent),
                    Entry::Queued(place) => { queue.push(place.number); next.push(now + 1) }
                }
            }
            if !go.is_empty() {
                last_sent = now;
            }
            prop_assert!(now - last_sent < 16_000, "nothing was sent for 15 s");
            for sent in go {
                let index = flight.len();
                arrivals.push(Reverse((now + latency / 2 + index as u64 * 37 % 50, index)));
                flight.push(Some((sent, None)));
            }
            // Requests behind one that was sent may have their turn.
            next.extend((last_sent == now && !queue.is_empty()).then_some(now + 1));
            next.extend(arrivals.peek().into_iter().chain(answers.peek()).map(|Reverse((due, _))| *due));
            prop_assert!(!next.is_empty() || made == calls && queue.is_empty(), "nothing will ever happen");
            now = next.into_iter().min().unwrap_or(now).max(now + 1);
        }
    }
}
