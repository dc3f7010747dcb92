//! The time of one check, including reading the clock, with 1 k, 1 M and 10 M live keys, from one thread and from two,
//! with nearly all checks allowed and with nearly all denied.
//!
//! Compared with governor's keyed limiter and throttlecrab. Nanoseconds per check and thread: wall time × threads /
//! checks. The contestants take short turns over several rounds. Each turn uses other keys, which are the same for all
//! contestants. The result is the median turn.

use std::fmt;

use tidegate_bench::keys::{Order, for_each_key};
use tidegate_bench::report::{Report, Row, lowest_of};
use tidegate_bench::sample::{median, quiet_rounds};
use tidegate_bench::threads::{together, undisturbed};

use crate::contestants::{Contestant, Terms, gcra, governor, throttlecrab, token_bucket};
use crate::scale::Scale;

const OURS: [&str; 2] = ["token bucket", "gcra"];
const PEERS: [&str; 2] = ["governor", "throttlecrab"];
const TURNS_A_ROUND: usize = 8;
/// Checks of each thread in a turn.
const CHECKS_A_TURN: usize = 1 << 16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mix {
    Allowed,
    Denied,
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mix::Allowed => "allowed",
            Mix::Denied => "denied",
        })
    }
}

impl Mix {
    /// A burst that outlasts the benchmark, or one that the filling spends. The latter is two, because with a burst of
    /// one, throttlecrab removes a key immediately and denies nothing.
    const fn terms(self) -> Terms {
        Terms { burst: if matches!(self, Mix::Allowed) { 1_000_000 } else { 2 } }
    }

    fn assert_is(self, allowed: usize, checks: usize, who: &str) {
        let as_said = match self {
            Mix::Allowed => allowed * 100 > checks * 95,
            Mix::Denied => allowed * 100 < checks * 5,
        };
        assert!(as_said, "{who}: {allowed} of {checks} allowed, in a mix that should be {self}");
    }
}

/// The time of an allowed check by one thread, by number of live keys: the mean of both algorithms.
#[derive(Default)]
pub struct Checks {
    alone: Vec<(u64, f64)>,
}

impl Checks {
    pub fn alone(&self, live: u64) -> Option<f64> {
        self.alone.iter().find(|(keys, _)| *keys == live).map(|(_, nanos)| *nanos)
    }
}

pub fn measure(report: &mut Report, scale: &Scale) -> Checks {
    let mut checks = Checks::default();
    for &live in scale.live {
        let rows: Vec<_> =
            [Mix::Allowed, Mix::Denied].into_iter().flat_map(|mix| over(live, mix, scale.rounds)).collect();
        checks.alone.push((live, (rows[0].ours + rows[1].ours) / 2.0));
        let id = format!("inproc/{}", named(live).replace(' ', ""));
        let rows = lowest_of(&id, rows, |row| row.peer == PEERS[0]);
        report.section(&format!("One check over {} live keys", named(live)), rows);
    }
    checks
}

/// Formats 10 000 000 as `10 M`.
pub fn named(keys: u64) -> String {
    match keys {
        1_000_000.. => format!("{} M", keys / 1_000_000),
        _ => format!("{} k", keys / 1_000),
    }
}

fn over(live: u64, mix: Mix, rounds: usize) -> Vec<Row> {
    let terms = mix.terms();
    let (bucket, gcra) = (token_bucket(terms), gcra(terms));
    let (governor, throttlecrab) = (governor(terms), throttlecrab(terms, live as usize));
    let contestants: [(&str, &dyn Contestant); 4] =
        [(OURS[0], &bucket), (OURS[1], &gcra), (PEERS[0], &governor), (PEERS[1], &throttlecrab)];
    for (_, contestant) in contestants {
        fill(contestant, live);
    }
    let mut rows = Vec::new();
    for threads in [1, 2] {
        // With few keys, both the keys and a repeated order stay in a cache.
        let length = (TURNS_A_ROUND * CHECKS_A_TURN).min(8 * live as usize);
        let mut orders: Vec<_> = (0..threads).map(|_| Order::of_length(length)).collect();
        let rounds = quiet_rounds(rounds, |round| {
            for (thread, order) in orders.iter_mut().enumerate() {
                order.draw(live, (2 * round + thread) as u64);
            }
            one_round(&contestants, &orders, mix)
        });
        let nanos = std::array::from_fn(|who| median(rounds.iter().flatten().map(|turn| turn[who]).collect()));
        rows.extend(compare(&format!("{} keys, {mix}, {threads} thr", named(live)), nanos));
    }
    rows
}

/// Checks every key twice, which spends a burst of two.
fn fill(contestant: &dyn Contestant, live: u64) {
    together(2, |half| {
        let numbers = if half == 0 { 0..live / 2 } else { live / 2..live };
        for_each_key(numbers, |key| {
            contestant.check(key);
            contestant.check(key);
        });
    });
}

/// The times of the contestants in each of their turns.
fn one_round(contestants: &[(&str, &dyn Contestant); 4], orders: &[Order], mix: Mix) -> Vec<[f64; 4]> {
    (0..TURNS_A_ROUND)
        .map(|turn| {
            let keys: Vec<_> = orders.iter().map(|order| part(order.keys(), turn)).collect();
            contestants.map(|(who, contestant)| one_turn(contestant, &keys, mix, who))
        })
        .collect()
}

/// The part of an order for this turn: all of it, if there are few keys.
fn part(keys: &[String], turn: usize) -> &[String] {
    if keys.len() <= CHECKS_A_TURN { keys } else { &keys[turn * CHECKS_A_TURN..][..CHECKS_A_TURN] }
}

fn one_turn(contestant: &dyn Contestant, keys: &[&[String]], mix: Mix, who: &str) -> f64 {
    let threads = keys.len();
    let passes = CHECKS_A_TURN / keys[0].len();
    let turn = undisturbed(threads, |thread| {
        (0..passes).map(|_| contestant.check_all(keys[thread], threads == 1)).sum::<usize>()
    });
    let checks = threads * passes * keys[0].len();
    mix.assert_is(turn.results.iter().sum(), checks, who);
    turn.took.as_nanos() as f64 * threads as f64 / checks as f64
}

fn compare(what: &str, [bucket, gcra, governor, throttlecrab]: [f64; 4]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (peer, theirs) in PEERS.into_iter().zip([governor, throttlecrab]) {
        for (name, ours) in OURS.into_iter().zip([bucket, gcra]) {
            rows.push(Row::smaller_is_better(format!("{what}, {name}"), ours, peer, theirs, "ns/check"));
        }
    }
    rows
}
