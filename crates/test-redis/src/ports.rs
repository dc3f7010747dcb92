//! Free ports.
//!
//! The ports are below those that the system assigns to outgoing connections, so that the port of a killed server is still
//! free when it is restarted. The nodes of a cluster communicate on a second port, [`BUS`] higher.

use std::net::TcpListener;
use std::ops::Range;
use std::sync::Mutex;

/// Distance from a node's port to its bus port: the default of Redis.
pub(crate) const BUS: u16 = 10_000;

const RANGE: Range<u16> = 11_000..21_000;

static TAKEN: Mutex<Vec<u16>> = Mutex::new(Vec::new());

/// A free port whose bus port is also free. Never returns the same port twice in a process.
pub fn free_port() -> u16 {
    let mut taken = TAKEN.lock().expect("nobody panics while holding it");
    loop {
        let port = fastrand::u16(RANGE);
        if !taken.contains(&port) && is_free(port) && is_free(port + BUS) {
            taken.push(port);
            return port;
        }
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}
