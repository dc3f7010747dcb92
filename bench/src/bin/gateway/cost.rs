//! The cost of three rules, an access log and verified tokens, as a fraction of the gateway's throughput.
//!
//! Each cost is a small difference of two large numbers, and the machine's speed varies from one second to the next.
//! Therefore a gateway without the feature and one with it take turns of a few hundredths of a second, while the load
//! on the other waits: both then run at the same speed, and each has the core to itself.
//!
//! The cost is also measured with both running concurrently, by processor time per request. They then compete for the
//! caches, so this is an upper bound.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use tidegate_bench::report::{Report, Row};
use tidegate_bench::sample::median;

use crate::load::requests_with;
use crate::servers::{Headers, NONE, Running, THREE_RULES, TOKEN};

/// Number of pairs that are started. The layout of a program's memory affects its speed for as long as it runs.
const PAIRS: usize = 10;
const ROUNDS: usize = 2;
const SECONDS: u32 = 4;
const TURN: Duration = Duration::from_millis(25);
const SECONDS_AT_ONCE: u32 = 2;

/// Two gateways that differ in one feature, and the header of the requests to both.
struct Pair<'a> {
    rules: [&'a str; 2],
    headers: Headers,
    /// Settings of the second gateway.
    settings: &'a [&'a str],
    header: Option<&'a str>,
}

impl Pair<'_> {
    fn start(&self, upstream: SocketAddr) -> [Running; 2] {
        let [first, second] = self.rules;
        [
            Running::ours(upstream, first, self.headers),
            Running::ours_with(upstream, second, self.headers, self.settings),
        ]
    }

    fn rates_in_turns(&self, upstream: SocketAddr) -> [f64; 2] {
        let pairs = (0..PAIRS).map(|_| self.start(upstream));
        in_proportion(pairs.flat_map(|pair| [(); ROUNDS].map(|()| rates_in_turns(&pair, self.header))).collect())
    }

    fn nanoseconds_a_request(&self, upstream: SocketAddr) -> [f64; 2] {
        let pairs = (0..PAIRS).map(|_| self.start(upstream));
        in_proportion(pairs.flat_map(|pair| [(); ROUNDS].map(|()| nanoseconds_a_request(&pair, self.header))).collect())
    }
}

pub fn measure(report: &mut Report) {
    let upstream = Running::upstream();
    let back = upstream.address;
    let rules = Pair { rules: [NONE, THREE_RULES], headers: Headers::None, settings: &[], header: None };
    let telling = Pair { headers: Headers::Usual, ..rules };
    let authorization = format!("Authorization: Bearer {TOKEN}");
    let log = ["access_log.format=json", "access_log.path=FOLDER/logs/access.log"];
    let jwt = ["auth.jwt.secret_file=FOLDER/secret", "auth.jwt.issuer=bench", "auth.jwt.audience=bench"];
    let logged = Pair { rules: [THREE_RULES; 2], settings: &log, ..rules };
    let verified = Pair { rules: [THREE_RULES; 2], settings: &jwt, header: Some(&authorization), ..rules };

    let rate = |what, peer, [without, with]: [f64; 2]| Row::larger_is_better(what, with, peer, without, "requests/s");
    report.section(
        "What it costs, in turns of 25 ms",
        vec![
            rate("three rules", "ours, no rules", rules.rates_in_turns(back)).with_id("gateway/cost-of-rules"),
            rate("three rules, headers", "ours, no rules", telling.rates_in_turns(back)),
            rate("an access log, JSON, to a file", "ours without", logged.rates_in_turns(back))
                .with_id("gateway/cost-of-observing"),
            rate("tokens, HS256", "ours without", verified.rates_in_turns(back)).with_id("gateway/cost-of-jwt"),
        ],
    );
    let time = |what, peer, [without, with]: [f64; 2]| Row::smaller_is_better(what, with, peer, without, "ns/request");
    report.section(
        "What it costs, with both at work at once, by processor time",
        vec![
            time("three rules", "ours, no rules", rules.nanoseconds_a_request(back)),
            time("an access log, JSON, to a file", "ours without", logged.nanoseconds_a_request(back)),
            time("tokens, HS256", "ours without", verified.nanoseconds_a_request(back)),
        ],
    );
}

/// The median of the first values, and the second value in proportion: the ratio is the median of the ratios of each
/// round, in which both ran at the same speed.
fn in_proportion(rounds: Vec<[f64; 2]>) -> [f64; 2] {
    let ratio = median(rounds.iter().map(|[first, second]| second / first).collect());
    let first = median(rounds.iter().map(|[first, _]| *first).collect());
    [first, first * ratio]
}

/// Requests that each of two servers serves per second of its own running time, in turns.
fn rates_in_turns(servers: &[Running; 2], header: Option<&str>) -> [f64; 2] {
    servers.iter().for_each(Running::pause);
    let mut had = [Duration::ZERO; 2];
    let rates = thread::scope(|scope| {
        let loads = servers.each_ref().map(|server| {
            let address = server.address;
            scope.spawn(move || requests_with(address, SECONDS, header))
        });
        // Each gets two turns in a row, so that each comes first as often as last.
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

/// Processor time per request of each of two servers, with both saturated.
fn nanoseconds_a_request(servers: &[Running; 2], header: Option<&str>) -> [f64; 2] {
    let used = || servers.each_ref().map(Running::processor_time);
    let before = used();
    let rates = thread::scope(|scope| {
        let load = |server: &Running| {
            let address = server.address;
            scope.spawn(move || requests_with(address, SECONDS_AT_ONCE, header))
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
