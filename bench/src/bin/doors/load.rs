//! Load from `redis-benchmark`, on the second core.

use std::net::SocketAddr;
use std::process::Command;

/// Length of a run in seconds.
const SECONDS: f64 = 1.5;
/// The number of keys.
const KEYS: &str = "100000";

/// Commands per second that a server answers on 50 connections, each with `depth` of them in flight.
pub fn commands_a_second(server: SocketAddr, depth: u32, command: &[&str]) -> f64 {
    // A short run determines the number of commands for a long one.
    let about = run(server, depth, 2_000 * u64::from(depth).min(10), command);
    run(server, depth, (about * SECONDS) as u64, command)
}

/// Runs a command once for each of `count` random keys.
pub fn run(server: SocketAddr, depth: u32, count: u64, command: &[&str]) -> f64 {
    let output = Command::new("taskset")
        .args(["-c", "1", "redis-benchmark", "--csv", "-c", "50", "-r", KEYS])
        .args(["-h", "127.0.0.1", "-p", &server.port().to_string()])
        .args(["-P", &depth.to_string(), "-n", &count.max(1_000).to_string()])
        .args(command)
        .output()
        .expect("redis-benchmark comes with redis-server");
    let text = String::from_utf8_lossy(&output.stdout);
    let rate = text.lines().filter_map(rate).next_back();
    rate.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// The second field of a line such as `"GET key","168000.00","0.2",…`.
fn rate(line: &str) -> Option<f64> {
    line.split("\",\"").nth(1)?.parse().ok()
}
