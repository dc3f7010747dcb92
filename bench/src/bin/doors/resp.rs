//! The Redis listener: decisions per second, compared with `throttlecrab-server` and with `GET` on Redis.
//!
//! Each command is for one of 100 000 keys, with a burst of 16 and a rate of 30 a minute: at first all are allowed,
//! then most are denied, on both sides alike.

use memchr::memchr_iter;
use tidegate_bench::report::{Report, Row};
use tidegate_bench::sample::median;

use crate::load::{commands_a_second, run};
use crate::serving::Server;
use crate::single::{Load, compare};
use crate::throttlecrab;

/// Placeholder for a random key.
const KEY: &str = "key:__rand_int__";
const OURS: [&str; 5] = ["CL.THROTTLE", KEY, "15", "30", "60"];
const THROTTLECRAB_COMMANDS: [&str; 5] = ["THROTTLE", KEY, "15", "30", "60"];
const GET: [&str; 2] = ["GET", KEY];
const DEPTHS: [u32; 2] = [16, 64];
const ROUNDS: usize = 3;
const CONNECTIONS: usize = 50;

pub fn measure(report: &mut Report) {
    let (ours, redis) = (Server::resp(), Server::redis());
    run(redis.address, 16, 300_000, &["SET", KEY, "some value"]);
    let throttlecrab = throttlecrab::start().inspect_err(|why| println!("left out: {why}")).ok();
    one_in_flight(report, &ours, &redis, throttlecrab.as_ref());
    for depth in DEPTHS {
        let mut rates: [Vec<f64>; 3] = Default::default();
        for _ in 0..ROUNDS {
            rates[0].push(commands_a_second(ours.address, depth, &OURS));
            rates[1].push(commands_a_second(redis.address, depth, &GET));
            if let Some(throttlecrab) = &throttlecrab {
                rates[2].push(commands_a_second(throttlecrab.address, depth, &THROTTLECRAB_COMMANDS));
            }
        }
        let [ours, get, throttlecrab] = rates.map(|rates| if rates.is_empty() { None } else { Some(median(rates)) });
        let row =
            |peer, theirs: Option<f64>| Some(Row::larger_is_better("CL.THROTTLE", ours?, peer, theirs?, "commands/s"));
        let rows = [row(THROTTLECRAB, throttlecrab), row(REDIS, get).map(|row| row.with_id(&format!("resp/{depth}")))];
        let headline = format!("Redis listener, 50 connections, {depth} commands on their way on each");
        report.section(&headline, rows.into_iter().flatten().collect());
    }
}

const THROTTLECRAB: &str = "throttlecrab-server, THROTTLE";
const REDIS: &str = "redis-server, GET";

/// One command in flight on each connection: the rate, and the server's processor time per command.
fn one_in_flight(report: &mut Report, ours: &Server, redis: &Server, throttlecrab: Option<&Server>) {
    let load = |name, server, words: &[&str]| Load::new(name, server, CONNECTIONS, |key| command(words, key), is_whole);
    let mut loads = vec![load("CL.THROTTLE", ours, &OURS), load(REDIS, redis, &GET)];
    loads.extend(throttlecrab.map(|throttlecrab| load(THROTTLECRAB, throttlecrab, &THROTTLECRAB_COMMANDS)));
    compare(report, "resp/1", "Redis listener, 50 connections, one command on its way on each", "commands/s", loads);
}

/// A command of these words. [`KEY`] is replaced by a key of 16 characters, in the format of `redis-benchmark`.
fn command(words: &[&str], key: u32) -> Vec<u8> {
    let key = format!("key:{key:012}");
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        let word = if *word == KEY { &key } else { *word };
        command += &format!("${}\r\n{word}\r\n", word.len());
    }
    command.into_bytes()
}

/// Whether a response is complete: five integers, or a text of one line, or null.
fn is_whole(came: &[u8]) -> bool {
    let lines = match came {
        [b'*', b'5', ..] => 6,
        [b'$', b'-', ..] => 1,
        [b'$', ..] => 2,
        _ => panic!("{}", String::from_utf8_lossy(came)),
    };
    memchr_iter(b'\n', came).count() == lines
}
