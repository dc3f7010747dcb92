//! Measures how often the sliding window counter decides otherwise than the exact truth, over 400 million requests.
//!
//! Made-up clients, some far more popular than others, ask by chance. Each decision is the engine's own (`Limit::decide`), and
//! is held against an exact log of what that limit has itself let through in the window just gone: letting through what no
//! longer fits is wrong, and so is denying what would have fitted. Beside it stands the share of wrong decisions that was
//! published of such a counter on real traffic: 0.003 % of 400 million requests by 270 000 sources. How often the counter is
//! wrong depends on how many clients are close to their limit, so there are rows for crowds of several kinds.
//!
//! `ACCURACY` in the environment sets the millions of requests of the first row; the others have a twentieth of that.

#![allow(missing_docs, reason = "a program has no users of its items")]

use std::time::Instant;

use tidegate_bench::report::{Report, Row};
use tidegate_core::{Limit, Micros};
use tidegate_lab::accuracy::{Judge, Judgement, Promise};
use tidegate_lab::random::Random;
use tidegate_lab::traffic::{START, Traffic};

const PUBLISHED: f64 = 0.003;
const SEED: u64 = 1;

/// A crowd, and a limit for each of its clients.
struct Crowd {
    what: &'static str,
    limit: &'static str,
    /// Of one of the threads: each has its own clients.
    traffic: &'static str,
}

const CROWDS: [Crowd; 5] = [
    Crowd {
        what: "few clients near their limit",
        limit: "sliding 100_000/min",
        traffic: "poisson 50_000/s clients 135_000 zipf 1",
    },
    Crowd { what: "some far over it", limit: "sliding 10_000/min", traffic: "poisson 50_000/s clients 135_000 zipf 1" },
    Crowd {
        what: "the same, in waves",
        limit: "sliding 10_000/min",
        traffic: "square 90_000/s 10_000/s every 90s random clients 135_000 zipf 1",
    },
    Crowd {
        what: "in waves, six parts",
        limit: "sliding 10_000/min parts 6",
        traffic: "square 90_000/s 10_000/s every 90s random clients 135_000 zipf 1",
    },
    Crowd { what: "all at their limit", limit: "sliding 60/min", traffic: "poisson 10_000/s clients 10_000" },
];

/// Judges so many requests, divided over the processors.
fn judged(crowd: &Crowd, requests: usize) -> Judgement {
    let limit: Limit = crowd.limit.parse().expect("a limit");
    let traffic: Traffic = crowd.traffic.parse().expect("a model of traffic");
    let promise = Promise::of(&limit).expect("it has a window");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let one = |thread: usize| {
        let mut judge = Judge::new(limit, promise);
        let seed = Random::branch(SEED, thread as u64);
        let arrivals = traffic.arrivals_from(START, Micros::from_secs(366 * 86_400), seed);
        for arrival in arrivals.take(requests / threads) {
            judge.take(&arrival);
        }
        judge.judgement()
    };
    std::thread::scope(|scope| {
        let one = &one;
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        let all = handles.into_iter().map(|handle| handle.join().expect("a thread panicked"));
        all.fold(Judgement::default(), Judgement::and)
    })
}

fn main() {
    let millions: usize = std::env::var("ACCURACY").map_or(400, |text| text.parse().expect("millions of requests"));
    let mut report = Report::default();
    let (mut wrong, mut details) = (Vec::new(), Vec::new());
    for (crowd, number) in CROWDS.iter().zip(0..) {
        let requests = if number == 0 { millions * 1_000_000 } else { millions * 50_000 };
        let began = Instant::now();
        let judgement = judged(crowd, requests);
        let limit: Limit = crowd.limit.parse().expect("a limit");
        assert!(judgement.admitted > 0 && judgement.denied > 0, "both happen: {judgement:?}");
        assert!(judgement.worst < 2 * limit.capacity(), "the bound that is promised holds: {judgement:?}");
        let what = format!("wrong, {} million requests, {}", requests / 1_000_000, crowd.what);
        wrong.push(Row::smaller_is_better(what, judgement.wrong() * 100.0, "published", PUBLISHED, "%"));
        let over = judgement.worst as f64 / limit.capacity() as f64 * 100.0;
        details.push(Row::smaller_is_better(format!("fullest window, {}", crowd.what), over, "the limit", 100.0, "%"));
        println!(
            "  {} on {}: {} let through wrongly, {} denied wrongly, {} denied in all; {:.1} s",
            crowd.limit,
            crowd.traffic,
            judgement.wrongly_admitted,
            judgement.wrongly_denied,
            judgement.denied,
            began.elapsed().as_secs_f64()
        );
    }
    report.section("How often a sliding window counter is wrong", wrong);
    report.section("What its fullest window held", details);
    report.write("accuracy");
}
