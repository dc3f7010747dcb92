//! Requests a second: forwarded plainly, under limits that allow them, and denied.
//!
//! nginx tells nobody how he stands with `limit_req`, so it is compared with ours when that keeps silent, and then with ours
//! as it is unless told otherwise, which adds five headers to every response. All take turns of a second, and of each the
//! upper quartile counts.
//!
//! What rules cost is a small difference of two large numbers, and the machine changes its speed from turn to turn. So it is also
//! measured with both at work at once, by the processor's time that each takes for a request. They push each other out of the
//! caches then, so this is the upper end of what rules cost.

use std::net::SocketAddr;
use std::thread;

use tidegate_bench::report::{Report, Row};
use tidegate_bench::sample::{median, upper_quartile};

use crate::load::requests_a_second;
use crate::servers::{FEW, Headers, NONE, Running, THREE_RULES};

const ROUNDS: usize = 40;
const SECONDS: u32 = 1;
const ROUNDS_AT_ONCE: usize = 20;
const SECONDS_AT_ONCE: u32 = 2;

pub fn measure(report: &mut Report) {
    let upstream = Running::upstream();
    let back = upstream.address;
    let zone = |rate: &str| format!("limit_req_zone $binary_remote_addr zone=z:10m rate={rate}; limit_req_status 429;");
    let servers = [
        Running::ours(back, NONE, Headers::Usual),
        Running::ours(back, THREE_RULES, Headers::None),
        Running::ours(back, THREE_RULES, Headers::Usual),
        Running::ours(back, FEW, Headers::Usual),
        Running::nginx_proxy(back, "", ""),
        Running::nginx_proxy(back, &zone("1000000r/s"), "limit_req zone=z burst=1000000 nodelay;"),
        Running::nginx_proxy(back, &zone("1r/m"), "limit_req zone=z;"),
    ];
    let mut rates: [Vec<f64>; 7] = Default::default();
    for _ in 0..ROUNDS {
        for (number, server) in servers.iter().enumerate() {
            let (rate, refused) = requests_a_second(server.address, SECONDS);
            let denies = number == 3 || number == 6;
            assert!(if denies { refused > 0.99 } else { refused == 0.0 }, "{number}: {refused} were refused");
            rates[number].push(rate);
        }
    }
    let [plain, three, telling, denied, nginx, limit_req, nginx_denied] = rates.map(upper_quartile);
    let row = |what, ours, peer, theirs| Row::larger_is_better(what, ours, peer, theirs, "requests/s");
    report.section(
        "The gateway on one core, 64 connections",
        vec![
            row("forwarded, no rules", plain, "nginx", nginx),
            row("forwarded, three rules", three, "nginx, limit_req", limit_req),
            row("forwarded, three rules, headers", telling, "nginx, limit_req", limit_req),
            row("denied", denied, "nginx, limit_req", nginx_denied),
            row("forwarded, three rules", three, "ours, no rules", plain),
            row("forwarded, three rules, headers", telling, "ours, no rules", plain),
        ],
    );
    drop(servers);
    cost_of_rules(report, back);
}

fn cost_of_rules(report: &mut Report, back: SocketAddr) {
    let servers = [NONE, THREE_RULES].map(|rules| Running::ours(back, rules, Headers::None));
    let rounds: Vec<[f64; 2]> = (0..ROUNDS_AT_ONCE).map(|_| nanoseconds_a_request(&servers)).collect();
    // Round by round, for both had the same speed in each.
    let ratio = median(rounds.iter().map(|[plain, three]| three / plain).collect());
    let plain = median(rounds.iter().map(|[plain, _]| *plain).collect());
    let what = "processor time, three rules";
    let row = Row::smaller_is_better(what, plain * ratio, "ours, no rules", plain, "ns/request");
    report.section("What three rules cost, with both at work at once", vec![row]);
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
