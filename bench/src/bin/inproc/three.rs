//! Three limits on one key, decided atomically in one call of the store.
//!
//! Compared with three calls for one limit each, which are not atomic. Nanoseconds for all three, by one thread.

use std::hint::black_box;

use tidegate_bench::keys::{Order, for_each_key};
use tidegate_bench::report::{Report, Row, lowest};
use tidegate_bench::sample::{median, quiet_rounds};
use tidegate_bench::threads::undisturbed;
use tidegate_core::{Charge, Key, Limit, MemoryStore, RuleId};

use crate::contestants::limit;
use crate::scale::Scale;
use crate::speed::named;

const TURNS_A_ROUND: usize = 16;
const CHECKS_A_TURN: usize = 1 << 14;

struct Rules {
    store: MemoryStore,
    rules: [(RuleId, Limit); 3],
}

impl Rules {
    fn new(notations: [&str; 3]) -> Rules {
        let rule = |notation: &str| (RuleId::new(notation), limit(notation));
        Rules { store: MemoryStore::new(), rules: notations.map(rule) }
    }

    fn together(&self, key: &str) -> bool {
        let key = Key::from(key);
        let charges = self.rules.each_ref().map(|(rule, limit)| Charge::new(rule, &key, limit));
        self.store.decide(&charges).expect("nothing is reserved").is_allowed()
    }

    fn one_by_one(&self, key: &str) -> bool {
        let key = Key::from(key);
        self.rules.iter().fold(true, |all, (rule, limit)| {
            let answer = self.store.decide(&[Charge::new(rule, &key, limit)]).expect("nothing is reserved");
            all & answer.is_allowed()
        })
    }
}

pub fn measure(report: &mut Report, scale: &Scale) {
    let rows = scale.live.iter().filter(|&&live| live <= 1_000_000).flat_map(|&live| over(live, scale.rounds));
    report.section("Three limits on one key", lowest("inproc/three-limits", rows.collect()));
}

fn over(live: u64, rounds: usize) -> Vec<Row> {
    let allowing = ["1/h burst 1_000_000", "gcra 1/h burst 1_000_000", "fixed 1_000_000_000/year"];
    let denying = ["1/h burst 1_000_000", "gcra 1/h burst 1_000_000", "1/h burst 1"];
    [("allowed", allowing, true), ("denied", denying, false)]
        .into_iter()
        .map(|(mix, notations, expected)| {
            let (together, one_by_one) = compare(&Rules::new(notations), live, rounds, expected);
            let what = format!("{} keys, {mix}", named(live));
            Row::smaller_is_better(what, together, "three single checks", one_by_one, "ns")
        })
        .collect()
}

fn compare(rules: &Rules, live: u64, rounds: usize, expected: bool) -> (f64, f64) {
    for_each_key(0..live, |key| {
        rules.one_by_one(key);
    });
    let mut order = Order::of_length((TURNS_A_ROUND * CHECKS_A_TURN).min(8 * live as usize));
    let rounds = quiet_rounds(rounds, |round| {
        order.draw(live, round as u64);
        // The second contestant finds the keys in the cache, so the order alternates too.
        let turn = |(number, keys): (usize, &[String])| {
            let joint = || nanos_a_check(keys, expected, |key| rules.together(key));
            let single = || nanos_a_check(keys, expected, |key| rules.one_by_one(key));
            if number % 2 == 0 {
                (joint(), single())
            } else {
                let single = single();
                (joint(), single)
            }
        };
        order.keys().chunks(CHECKS_A_TURN).enumerate().map(turn).collect::<Vec<_>>()
    });
    let turns = || rounds.iter().flatten();
    (median(turns().map(|turn| turn.0).collect()), median(turns().map(|turn| turn.1).collect()))
}

fn nanos_a_check(keys: &[String], expected: bool, check: impl Fn(&str) -> bool + Sync) -> f64 {
    let turn = undisturbed(1, |_| keys.iter().filter(|key| check(black_box(key)) == expected).count());
    let (checks, as_expected) = (keys.len(), turn.results[0]);
    assert!(as_expected * 100 > checks * 95, "{} of {checks} were not what the mix says", checks - as_expected);
    turn.took.as_nanos() as f64 / checks as f64
}
