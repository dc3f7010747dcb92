//! The Redis door: decisions a second beside `throttlecrab-server`, and beside what Redis does for `GET`.
//!
//! Each command is for one of 100 000 keys, which have 16 at once and 30 a minute: at first all pass, then most are
//! limited, here and there alike.

use tidegate_bench::machine::pin_to_core;
use tidegate_bench::report::{Report, Row};
use tidegate_bench::sample::median;

use crate::crab;
use crate::load::{commands_a_second, run};
use crate::serving::Server;
use crate::single::{Load, Turn};

/// Stands for a random key.
pub const KEY: &str = "key:__rand_int__";
const OURS: [&str; 5] = ["CL.THROTTLE", KEY, "15", "30", "60"];
const CRABS: [&str; 5] = ["THROTTLE", KEY, "15", "30", "60"];
const GET: [&str; 2] = ["GET", KEY];
const DEPTHS: [u32; 2] = [16, 64];
const ROUNDS: usize = 3;
/// Short ones, because the machine is not the same from one second to the next.
const TURNS: usize = 15;

pub fn measure(report: &mut Report) {
    let (ours, redis) = (Server::resp(), Server::redis());
    run(redis.address, 16, 300_000, &["SET", KEY, "some value"]);
    let crab = crab::start().inspect_err(|why| println!("left out: {why}")).ok();
    one_on_its_way(report, &ours, &redis, crab.as_ref());
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
        let rows = [row(CRAB, crab), row(REDIS, get)];
        let headline = format!("Redis door, 50 connections, {depth} commands on their way on each");
        report.section(&headline, rows.into_iter().flatten().collect());
    }
}

const CRAB: &str = "throttlecrab-server, THROTTLE";
const REDIS: &str = "redis-server, GET";

/// One command on its way on each connection: how many are answered, and what one costs the server.
fn one_on_its_way(report: &mut Report, ours: &Server, redis: &Server, crab: Option<&Server>) {
    let mut all = vec![("CL.THROTTLE", Load::new(ours, &OURS)), (REDIS, Load::new(redis, &GET))];
    all.extend(crab.map(|crab| (CRAB, Load::new(crab, &CRABS))));
    let turns = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            pin_to_core(1);
            let mut turns = vec![Vec::new(); all.len()];
            for _ in 0..TURNS {
                for (turns, (_, load)) in turns.iter_mut().zip(&mut all) {
                    turns.push(load.turn());
                }
            }
            turns
        });
        load.join().expect("the load runs to its end")
    });
    let middle = |turns: &[Turn], of: fn(&Turn) -> f64| median(turns.iter().map(of).collect());
    let rows = |row: &dyn Fn(&str, f64, f64) -> Row, of: fn(&Turn) -> f64| -> Vec<Row> {
        let peers = all.iter().zip(&turns).skip(1);
        peers.map(|((peer, _), theirs)| row(peer, middle(&turns[0], of), middle(theirs, of))).collect()
    };
    let rate = |peer: &str, ours, theirs| Row::larger_is_better("CL.THROTTLE", ours, peer, theirs, "commands/s");
    report.section(
        "Redis door, 50 connections, one command on its way on each",
        rows(&rate, |turn| turn.commands_a_second),
    );
    for ((name, _), turns) in all.iter().zip(&turns) {
        let (server, load) = (middle(turns, |turn| turn.server), middle(turns, |turn| turn.load));
        println!("  {name}: the server ran {:.0} % of the time, the load {:.0} %", server * 100.0, load * 100.0);
    }
    let cost = |peer: &str, ours, theirs| Row::smaller_is_better("CL.THROTTLE", ours, peer, theirs, "us");
    report.section("Redis door, the server's processor time for one command of these", rows(&cost, |turn| turn.cost));
}
