//! The Redis door: decisions a second beside `throttlecrab-server`, and beside what Redis does for `GET`.
//!
//! Each command is for one of 100 000 random keys, which have 16 at once and 30 a minute: at first all pass, then most are
//! limited, here and there alike.

use tidegate_bench::report::{Report, Row};
use tidegate_bench::sample::median;

use crate::crab;
use crate::load::{commands_a_second, run};
use crate::serving::Server;

const KEY: &str = "key:__rand_int__";
const OURS: [&str; 5] = ["CL.THROTTLE", KEY, "15", "30", "60"];
const CRABS: [&str; 5] = ["THROTTLE", KEY, "15", "30", "60"];
const GET: [&str; 2] = ["GET", KEY];
const DEPTHS: [u32; 3] = [1, 16, 64];
const ROUNDS: usize = 3;

pub fn measure(report: &mut Report) {
    let (ours, redis) = (Server::resp(), Server::redis());
    run(redis.address, 16, 300_000, &["SET", KEY, "some value"]);
    let crab = crab::start().inspect_err(|why| println!("left out: {why}")).ok();
    for depth in DEPTHS {
        let mut rates: [Vec<f64>; 3] = Default::default();
        for _ in 0..ROUNDS {
            rates[0].push(commands_a_second(ours.address, depth, &OURS));
            rates[1].push(commands_a_second(redis.address, depth, &GET));
            if let Some(crab) = &crab {
                rates[2].push(commands_a_second(crab.address, depth, &CRABS));
            }
        }
        let [ours, get, crab] = rates.map(|rates| if rates.is_empty() { None } else { Some(median(rates)) });
        let row =
            |peer, theirs: Option<f64>| Some(Row::larger_is_better("CL.THROTTLE", ours?, peer, theirs?, "commands/s"));
        let rows = [row("throttlecrab-server, THROTTLE", crab), row("redis-server, GET", get)];
        let headline = match depth {
            1 => "Redis door, 50 connections, one command on its way on each".to_owned(),
            depth => format!("Redis door, 50 connections, {depth} commands on their way on each"),
        };
        report.section(&headline, rows.into_iter().flatten().collect());
    }
}
