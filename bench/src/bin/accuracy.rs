//! Measures how often the sliding window counter decides wrongly, over 400 million requests.
//!
//! Simulated clients send requests at random, with a frequency proportional to 1/k for the client of rank k. The
//! engine's decisions are compared with an exact log of the past window: a decision is wrong if it admits a request
//! that does not fit, or denies one that does. The peer is a published figure for such a counter on real traffic: 0.003
//! % of 400 million requests from 270 000 sources. That counter counts every request, admitted or not, and so does the
//! first row. The engine does not count denied requests; the other rows show the effect, and that of waves and of finer
//! parts.
//!
//! Splitting a Poisson process among clients at random gives an independent Poisson process for each. Therefore each
//! client is simulated separately, from its first request to its last, which is faster and has the same distribution.
//!
//! The environment variable `ACCURACY` sets the number of requests of the first row in millions; the others have a
//! tenth of it.

#![allow(missing_docs, reason = "a program has no users of its items")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use tidegate_bench::report::{Report, Row};
use tidegate_core::limit::Rate;
use tidegate_core::{Limit, Micros};
use tidegate_lab::accuracy::{Judge, Judgement, Promise};
use tidegate_lab::random::Random;
use tidegate_lab::traffic::{FlowShape, START, Spacing, Traffic};

const PUBLISHED: f64 = 0.003;
const CLIENTS: u32 = 270_000;
/// Requests per second of all clients together.
const RATE: f64 = 50_000.0;
const SEED: u64 = 1;

/// The requests that are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counting {
    All,
    Admitted,
}

struct Case {
    what: &'static str,
    limit: &'static str,
    counting: Counting,
    waves: bool,
}

const CASES: [Case; 4] = [
    Case { what: "every request counts", limit: "sliding 10_000/min", counting: Counting::All, waves: false },
    Case { what: "every request counts, in waves", limit: "sliding 10_000/min", counting: Counting::All, waves: true },
    Case { what: "only admitted ones count", limit: "sliding 10_000/min", counting: Counting::Admitted, waves: false },
    Case {
        what: "the same, in 6 parts",
        limit: "sliding 10_000/min parts 6",
        counting: Counting::Admitted,
        waves: false,
    },
];

/// The traffic of one client with this share of all requests, at a steady rate or in waves of three minutes.
fn traffic(share: f64, waves: bool) -> Traffic {
    const HOURS_28: u64 = 100_000;
    let rate = |factor: f64| {
        let requests = (RATE * share * factor * HOURS_28 as f64).round() as u64;
        Rate::new(requests.max(1), Micros::from_secs(HOURS_28)).expect("a rate")
    };
    let shape = if waves {
        FlowShape::Square { peak: rate(1.8), base: Some(rate(0.2)), period: Micros::from_secs(180) }
    } else {
        FlowShape::Steady(rate(1.0))
    };
    Traffic::Flow { shape, spacing: Spacing::Random }
}

/// Judges all clients for the time in which they send this many requests.
fn judged(case: &Case, requests: f64) -> Judgement {
    let limit: Limit = case.limit.parse().expect("a limit");
    let promise = Promise::of(&limit).expect("it has a window");
    let length = Micros::from_millis((requests / RATE * 1_000.0) as u64);
    let all: f64 = (1..=CLIENTS).rev().map(|rank| 1.0 / f64::from(rank)).sum();
    let next = AtomicU32::new(1);
    let one = || {
        let mut sum = Judgement::default();
        loop {
            let rank = next.fetch_add(1, Ordering::Relaxed);
            if rank > CLIENTS {
                return sum;
            }
            let mut judge = match case.counting {
                Counting::All => Judge::counting_all(limit, promise),
                Counting::Admitted => Judge::new(limit, promise),
            };
            let traffic = traffic(1.0 / f64::from(rank) / all, case.waves);
            for arrival in traffic.arrivals_from(START, length, Random::branch(SEED, u64::from(rank))) {
                judge.take(&arrival);
            }
            sum = sum.and(judge.judgement());
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        let all = handles.into_iter().map(|handle| handle.join().expect("a thread panicked"));
        all.fold(Judgement::default(), Judgement::and)
    })
}

fn main() {
    let millions: f64 = std::env::var("ACCURACY").map_or(400.0, |text| text.parse().expect("millions of requests"));
    let mut report = Report::default();
    let (mut wrong, mut fullest) = (Vec::new(), Vec::new());
    for (case, number) in CASES.iter().zip(0..) {
        let began = Instant::now();
        let judgement = judged(case, if number == 0 { millions * 1e6 } else { millions * 1e5 });
        let limit: Limit = case.limit.parse().expect("a limit");
        assert!(judgement.admitted > 0 && judgement.denied > 0, "both happen: {judgement:?}");
        println!(
            "  {}: {} requests, {} denied; {} let through wrongly, {} denied wrongly ({:.5} %); {:.1} s",
            case.what,
            judgement.requests(),
            judgement.denied,
            judgement.wrongly_admitted,
            judgement.wrongly_denied,
            judgement.wrong() * 100.0,
            began.elapsed().as_secs_f64()
        );
        let what = format!("wrong, {:.0} M requests, {}", judgement.requests() as f64 / 1e6, case.what);
        // In parts per million, because tables show two decimals.
        wrong.push(Row::smaller_is_better(what, judgement.wrong() * 1e6, "published", PUBLISHED * 1e4, "of a million"));
        if case.counting == Counting::Admitted {
            assert!(judgement.worst < 2 * limit.capacity(), "the bound that is promised holds: {judgement:?}");
            let held = judgement.worst as f64;
            fullest.push(Row::smaller_is_better(
                format!("in a minute, {}", case.limit),
                held,
                "the limit",
                limit.capacity() as f64,
                "requests",
            ));
        }
    }
    report.section("How often a sliding window counter is wrong", wrong);
    report.section("The most that it let through", fullest);
    report.write("accuracy");
}
