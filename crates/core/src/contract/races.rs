//! Races: many concurrent callers.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Subject, limit, rule};
use crate::charge::Charge;
use crate::key::{Key, RuleId};
use crate::receipt::Settlement;
use crate::time::Micros;

const THREADS: usize = 8;
const REQUESTS: usize = 1_000;

/// Runs `work` a thousand times on eight threads, and returns how often it returned `true`.
fn count_in_parallel(work: impl Fn(usize) -> bool + Sync) -> u64 {
    let count = AtomicU64::new(0);
    let barrier = std::sync::Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (work, count, barrier) = (&work, &count, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for number in (thread..REQUESTS).step_by(THREADS) {
                    count.fetch_add(u64::from(work(number)), Ordering::Relaxed);
                }
            });
        }
    });
    count.into_inner()
}

/// A thousand requests to a limit of N admit exactly N, for each algorithm.
pub fn parallel_requests_are_admitted_exactly_up_to_the_limit(subject: &impl Subject) {
    let key = Key::from("alice");
    for limit in [
        "1/h burst 337",
        "gcra 1/h burst 337",
        "meter 1/h burst 337",
        "shaper 1/h queue 337",
        "fixed 337/month calendar",
        "sliding 337/h",
        "sliding 337/h parts 60",
        "log 337/h",
        "concurrent 337 ttl 1h",
    ]
    .map(limit)
    {
        let rule = rule("race", &limit);
        let admitted = count_in_parallel(|_| subject.decide_one(Charge::new(&rule, &key, &limit)).is_allowed());
        assert_eq!(admitted, 337, "{limit}");
    }
}

/// Requests that charge two keys, in either order, neither deadlock nor charge only one of them.
pub fn parallel_requests_over_two_keys_charge_both_or_none(subject: &impl Subject) {
    let (one, other) = (RuleId::new("race one"), RuleId::new("race other"));
    let (key, limit) = (Key::from("alice"), limit("1/h burst 400"));
    let charges = [Charge::new(&one, &key, &limit), Charge::new(&other, &key, &limit).cost(2)];
    let backwards = [charges[1], charges[0]];
    let admitted =
        count_in_parallel(|number| subject.decide(if number % 2 == 0 { &charges } else { &backwards }).is_allowed());
    assert_eq!(admitted, 200);
    assert_eq!(subject.peek(charges[0].cost(0)).remaining, 200);
    assert_eq!(subject.peek(charges[1].cost(0)).remaining, 0);
}

/// Of a thousand attempts to settle one receipt, one succeeds.
pub fn a_receipt_settled_by_many_at_once_settles_once(subject: &impl Subject) {
    let (rule, key, limit) = (RuleId::new("race settle"), Key::from("alice"), limit("1/h burst 1000"));
    let charge = Charge::new(&rule, &key, &limit).cost(900);
    let answer = subject.decide(&[charge.reserve(Micros::from_secs(60))]);
    let Some(receipt) = answer.receipt else { panic!("nothing to give back: {answer:?}") };
    let settled = count_in_parallel(|_| subject.settle(&receipt, &[100]) != Settlement::Gone);
    assert_eq!(settled, 1);
    assert_eq!(subject.peek(charge.cost(0)).remaining, 900);
}
