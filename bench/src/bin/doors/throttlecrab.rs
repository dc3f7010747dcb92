//! `throttlecrab-server`, installed from crates.io into a separate folder the first time.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::serving::Server;

const VERSION: &str = "0.4.40";

/// The server, or the reason why it is not available.
pub fn start() -> Result<Server, String> {
    let program = installed()?;
    Ok(Server::peer(program, |port| {
        ["--redis", "--redis-host", "127.0.0.1", "--redis-port", &port, "--log-level", "error"].map(String::from).into()
    }))
}

fn installed() -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/peers");
    let program = root.join("bin/throttlecrab-server");
    if program.is_file() {
        return Ok(program);
    }
    println!("installing throttlecrab-server {VERSION} (once)");
    let status = Command::new("cargo")
        .args(["install", "throttlecrab-server", "--version", VERSION, "--locked", "--quiet", "--root"])
        .arg(&root)
        .status();
    match status {
        Ok(status) if status.success() => Ok(program),
        Ok(_) => Err("throttlecrab-server cannot be built: it needs protoc (apt-get install protobuf-compiler)".into()),
        Err(error) => Err(format!("cargo cannot be run: {error}")),
    }
}
