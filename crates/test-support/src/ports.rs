//! Free ports.
//!
//! The ports are below those that the system assigns to outgoing connections, so that the port of a killed server is still
//! free when it is restarted. The nodes of a cluster communicate on a second port, [`BUS`] higher.

use std::fs::{self, File};
use std::net::TcpListener;
use std::ops::Range;
use std::sync::Mutex;

/// Distance from a node's port to its bus port: the default of Redis.
#[cfg(feature = "redis")]
pub(crate) const BUS: u16 = OFFSET;
const OFFSET: u16 = 10_000;

const RANGE: Range<u16> = 11_000..21_000;

/// Locked files, one for each port that this process uses. Other test programs run at the same time.
static TAKEN: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// A free port whose bus port is also free. Never returns the same port twice in a process, nor one that another running
/// process has from here.
pub fn free_port() -> u16 {
    let folder = std::env::temp_dir().join("tidegate-test-ports");
    fs::create_dir_all(&folder).expect("a folder for temporary files");
    loop {
        let port = fastrand::u16(RANGE);
        let file = File::options().create(true).append(true).open(folder.join(port.to_string())).expect("a lock file");
        if file.try_lock().is_ok() && is_free(port) && is_free(port + OFFSET) {
            TAKEN.lock().expect("nobody panics while holding it").push(file);
            return port;
        }
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}
