//! Resident memory per key, with 10 M live keys.
//!
//! Compared with governor and throttlecrab, which own their keys as strings. Each number is the growth of a process
//! that only fills one store, with two threads. Keys are generated on the fly, so no set of keys is counted.

use std::process::Command;

use tidegate_bench::keys::for_each_key;
use tidegate_bench::machine::resident_bytes;
use tidegate_bench::report::{Report, Row, lowest_of};
use tidegate_bench::threads::together;
use tidegate_core::Gate;

use crate::contestants::{Contestant, Terms, governor, limit, throttlecrab};
use crate::scale::Scale;

const TERMS: Terms = Terms { burst: 1_000 };
const OURS: [(&str, &str); 5] = [
    ("token bucket", "1/h burst 1_000"),
    ("gcra", "gcra 1/h burst 1_000"),
    ("leaky bucket", "meter 1/h burst 1_000"),
    ("fixed window", "fixed 1_000/year"),
    ("sliding window", "sliding 1_000/week"),
];
const PEERS: [&str; 2] = ["governor", "throttlecrab"];

pub fn measure(report: &mut Report, scale: &Scale) {
    let theirs = PEERS.map(|peer| in_own_process(peer, scale.most));
    let mut rows = Vec::new();
    for (name, _) in OURS {
        let ours = in_own_process(name, scale.most);
        for (peer, theirs) in PEERS.into_iter().zip(theirs) {
            rows.push(Row::smaller_is_better(name, ours, peer, theirs, "bytes/key"));
        }
    }
    let rows = lowest_of("inproc/bytes-per-key", rows, |row| row.peer == PEERS[0]);
    report.section(&format!("Resident memory per key, {} M keys", scale.most / 1_000_000), rows);
}

fn in_own_process(who: &str, keys: u64) -> f64 {
    let program = std::env::current_exe().expect("this program has a path");
    let output = Command::new(program).args(["fill", who, &keys.to_string()]).output().expect("it starts again");
    let printed = String::from_utf8_lossy(&output.stdout);
    printed.trim().parse().unwrap_or_else(|_| panic!("{who}: {printed}{}", String::from_utf8_lossy(&output.stderr)))
}

/// Runs in the process of [`in_own_process`]: fills one store, and prints the bytes per key.
pub fn fill_and_print(who: &str, keys: u64) {
    let before = resident_bytes();
    let (after, held) = match who {
        "governor" => {
            let limiter = governor(TERMS);
            (filled(&limiter, keys), limiter.len())
        }
        "throttlecrab" => {
            let limiter = throttlecrab(TERMS, keys as usize);
            (filled(&limiter, keys), keys as usize)
        }
        ours => {
            let (_, notation) = OURS.iter().find(|(name, _)| *name == ours).expect("a known limit");
            let gate = Gate::new(limit(notation));
            (filled(&gate, keys), gate.store().stats().keys)
        }
    };
    assert!(held as u64 == keys, "{who} holds {held} of {keys} keys");
    println!("{:.2}", (after - before) as f64 / keys as f64);
}

fn filled(contestant: &impl Contestant, keys: u64) -> u64 {
    together(2, |half| {
        let numbers = if half == 0 { 0..keys / 2 } else { keys / 2..keys };
        for_each_key(numbers, |key| assert!(contestant.check(key), "a first check is allowed"));
    });
    resident_bytes()
}
