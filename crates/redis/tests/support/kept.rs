//! Servers that all tests of a program share, and that end with it.

use std::process::{Command, Stdio};

use super::server::Server;

/// Waits until its input ends, which is when the tests do, however they end. Then ends the servers, by their ids, and
/// removes their folders.
const KEEPER: &str = r#"read -r _
for kept in "$@"; do
    case "$kept" in
    /*) rm -rf "$kept" ;;
    *) kill -KILL "$kept" ;;
    esac
done"#;

/// Lets servers end with this program, whose statics are never dropped.
pub(crate) fn until_the_end(servers: &[Server]) {
    let ids = servers.iter().map(|server| server.process_id().to_string());
    let folders =
        servers.iter().map(|server| server.folder().to_str().expect("a folder whose name is text").to_owned());
    let keeper =
        Command::new("sh").args(["-c", KEEPER, "keeper"]).args(ids.chain(folders)).stdin(Stdio::piped()).spawn();
    // The keeper's input stays open for as long as this process lives.
    std::mem::forget(keeper.expect("a shell that keeps the servers"));
}
