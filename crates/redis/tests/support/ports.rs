//! Ports that nobody uses.
//!
//! They lie below those that the system gives to outgoing connections, so that a server which is killed finds its port
//! free when it comes back. A cluster's nodes talk among themselves on a second port, [`BUS`] higher.

use std::net::TcpListener;
use std::ops::Range;
use std::sync::Mutex;

/// How far above a node's port its bus lies. This is what servers do unless told otherwise.
pub(crate) const BUS: u16 = 10_000;

const RANGE: Range<u16> = 11_000..21_000;

static TAKEN: Mutex<Vec<u16>> = Mutex::new(Vec::new());

/// A port that is free, together with the one for its bus, and that this process has not given out before.
pub(crate) fn free() -> u16 {
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
