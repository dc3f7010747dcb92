//! Requests per second: plainly forwarded, under limits that allow them, and denied.
//!
//! nginx sends no rate-limit headers, so it is compared with Tidegate's gateway without these headers, and then with
//! the default, which adds five headers to every response. All contestants take turns of a second, and the result of
//! each is the upper quartile of its turns.

use tidegate_bench::report::{Report, Row};
use tidegate_bench::sample::upper_quartile;

use crate::load::requests_a_second;
use crate::servers::{FEW, Headers, NONE, Running, THREE_RULES};

const ROUNDS: usize = 40;
const SECONDS: u32 = 1;

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
            row("forwarded, no rules", plain, "nginx", nginx).with_id("gateway/no-rules"),
            row("forwarded, three rules", three, "nginx, limit_req", limit_req).with_id("gateway/three-rules"),
            row("forwarded, three rules, headers", telling, "nginx, limit_req", limit_req),
            row("denied", denied, "nginx, limit_req", nginx_denied).with_id("gateway/denied"),
        ],
    );
}
