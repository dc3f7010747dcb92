//! Servers that are stopped when the program ends.

use std::process::{Command, Stdio};

use crate::redis::Server;

/// Waits for the end of its input, which is closed when the test process ends in any way. Then kills the servers by their
/// ids and removes their folders.
const REAPER: &str = r#"read -r _
for kept in "$@"; do
    case "$kept" in
    /*) rm -rf "$kept" ;;
    *) kill -KILL "$kept" ;;
    esac
done"#;

/// Stops servers when this program ends, because statics are never dropped.
pub fn reap_at_exit(servers: &[Server]) {
    let ids = servers.iter().map(|server| server.process_id().to_string());
    let folders =
        servers.iter().map(|server| server.folder().to_str().expect("a folder whose name is text").to_owned());
    let reaper =
        Command::new("sh").args(["-c", REAPER, "reaper"]).args(ids.chain(folders)).stdin(Stdio::piped()).spawn();
    // The reaper's input stays open as long as this process lives.
    std::mem::forget(reaper.expect("a shell that keeps the servers"));
}
