//! Load from `wrk`, on the second core.

use std::net::SocketAddr;

use crate::servers::pinned;

/// Requests per second over 64 connections for this many seconds, and the fraction of responses with a status other
/// than 2xx or 3xx.
pub fn requests_a_second(server: SocketAddr, seconds: u32) -> (f64, f64) {
    requests_with(server, seconds, None)
}

/// Like [`requests_a_second`], with this header in each request.
pub fn requests_with(server: SocketAddr, seconds: u32, header: Option<&str>) -> (f64, f64) {
    let output = pinned(1, "wrk")
        .args(["-t", "1", "-c", "64", "-d", &format!("{seconds}s")])
        .args(header.iter().flat_map(|header| ["-H", header]))
        .arg(format!("http://{server}/"))
        .output()
        .expect("wrk is installed");
    let text = String::from_utf8_lossy(&output.stdout);
    let number = |name: &str| -> Option<f64> {
        text.lines().find_map(|line| line.trim().strip_prefix(name)?.trim().parse().ok())
    };
    let rate = number("Requests/sec:").unwrap_or_else(|| panic!("{text}"));
    let refused = number("Non-2xx or 3xx responses:").unwrap_or(0.0);
    assert!(!text.contains("Socket errors"), "{text}");
    (rate, refused / (rate * f64::from(seconds)))
}
