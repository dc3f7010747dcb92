//! What three rules cost of our own throughput.
//!
//! That is a small difference of two large numbers, and the machine changes its speed from one second to the next. So a gateway
//! without rules and one with three take turns of a few hundredths of a second, each with its load waiting while it is not its
//! turn: both have the same speeds then, and each has the core to itself.
//!
//! It is also measured with both at work at once, by the processor's time that each takes for a request. They push each other
//! out of the caches then, so this is the upper end.

use std::thread;
use std::time::{Duration, Instant};

use tidegate_bench::report::{Report, Row};
use tidegate_bench::sample::median;

use crate::load::requests_a_second;
use crate::servers::{Headers, NONE, Running, THREE_RULES};

/// How many pairs are started: where in memory a program comes to lie makes it quicker or slower for as long as it runs.
const PAIRS: usize = 10;
const ROUNDS: usize = 2;
const SECONDS: u32 = 4;
const TURN: Duration = Duration::from_millis(25);
const SECONDS_AT_ONCE: u32 = 2;

pub fn measure(report: &mut Report) {
    let upstream = Running::upstream();
    let pairs = |headers| {
        let pair = move || [NONE, THREE_RULES].map(|rules| Running::ours(upstream.address, rules, headers));
        (0..PAIRS).map(move |_| pair())
    };
    let in_turns = |headers| {
        let both = |pair: [Running; 2]| [(); ROUNDS].map(|()| rates_in_turns(&pair));
        in_proportion(pairs(headers).flat_map(both).collect())
    };
    let row =
        |what, [plain, three]: [f64; 2]| Row::larger_is_better(what, three, "ours, no rules", plain, "requests/s");
    report.section(
        "What three rules cost, in turns of 25 ms",
        vec![
            row("forwarded, three rules", in_turns(Headers::None)),
            row("forwarded, three rules, headers", in_turns(Headers::Usual)),
        ],
    );
    let both = |pair: [Running; 2]| [(); ROUNDS].map(|()| nanoseconds_a_request(&pair));
    let [plain, three] = in_proportion(pairs(Headers::None).flat_map(both).collect());
    report.section(
        "What three rules cost, with both at work at once",
        vec![Row::smaller_is_better("processor time, three rules", three, "ours, no rules", plain, "ns/request")],
    );
}

/// The middle of the first ones, and as much of it as the second were of theirs: round by round, for both had the same speed
/// in each.
fn in_proportion(rounds: Vec<[f64; 2]>) -> [f64; 2] {
    let ratio = median(rounds.iter().map(|[first, second]| second / first).collect());
    let first = median(rounds.iter().map(|[first, _]| *first).collect());
    [first, first * ratio]
}

/// How many requests each of two serves in a second of its own while they take turns.
fn rates_in_turns(servers: &[Running; 2]) -> [f64; 2] {
    servers.iter().for_each(Running::pause);
    let mut had = [Duration::ZERO; 2];
    let rates = thread::scope(|scope| {
        let loads = servers.each_ref().map(|server| {
            let address = server.address;
            scope.spawn(move || requests_a_second(address, SECONDS))
        });
        // Each has two turns in a row, and so comes first as often as last.
        for number in [0, 1, 1, 0].into_iter().cycle() {
            if loads.iter().any(thread::ScopedJoinHandle::is_finished) {
                break;
            }
            let began = Instant::now();
            servers[number].go_on();
            thread::sleep(TURN);
            servers[number].pause();
            had[number] += began.elapsed();
        }
        servers.iter().for_each(Running::go_on);
        loads.map(|load| load.join().expect("a load that ends"))
    });
    std::array::from_fn(|number| {
        let (rate, refused) = rates[number];
        assert!(refused == 0.0, "{refused} were refused");
        rate * f64::from(SECONDS) / had[number].as_secs_f64()
    })
}

/// What each of two takes for a request while both have as many as they can serve.
fn nanoseconds_a_request(servers: &[Running; 2]) -> [f64; 2] {
    let used = || servers.each_ref().map(Running::processor_time);
    let before = used();
    let rates = thread::scope(|scope| {
        let load = |server: &Running| {
            let address = server.address;
            scope.spawn(move || requests_a_second(address, SECONDS_AT_ONCE))
        };
        servers.each_ref().map(load).map(|load| load.join().expect("a load that ends"))
    });
    let after = used();
    std::array::from_fn(|number| {
        let (rate, refused) = rates[number];
        assert!(refused == 0.0, "{refused} were refused");
        (after[number] - before[number]).as_nanos() as f64 / (rate * f64::from(SECONDS_AT_ONCE))
    })
}
