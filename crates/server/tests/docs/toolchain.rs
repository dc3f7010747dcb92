//! `tools/toolchain` says what is missing before anything is compiled.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A folder with the system's basic programs, and these scripts.
fn machine(scripts: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for program in ["bash", "cut", "dirname", "env", "sed", "sort", "tail"] {
        let path = ["/usr/bin", "/bin"].map(|bin| Path::new(bin).join(program)).into_iter().find(|path| path.exists());
        symlink(path.unwrap(), folder.path().join(program)).unwrap();
    }
    for (name, script) in scripts {
        let path = folder.path().join(name);
        fs::write(&path, format!("#!/usr/bin/env bash\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

/// The message about this machine; empty if it has everything.
fn missing(scripts: &[(&str, &str)], components: &[&str]) -> String {
    let machine = machine(scripts);
    let tool = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/toolchain");
    let output = Command::new(tool).args(components).env_clear().env("PATH", machine.path()).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.success(), message.is_empty(), "{message}");
    assert!(message.lines().count() <= 1, "{message}");
    message
}

const CC: (&str, &str) = ("cc", "true");
const CARGO: (&str, &str) = ("cargo", "true");
const NEW: (&str, &str) = ("rustc", "echo 'rustc 1.120.0 (abc 2030-01-01)'");
const OLD: (&str, &str) = ("rustc", "echo 'rustc 1.63.0 (4b91a6ea7 2022-08-08)'");

#[test]
fn a_missing_rust_is_named_with_how_to_get_it() {
    let message = missing(&[CC], &[]);
    assert!(message.contains("Rust is missing") && message.contains("https://rustup.rs"), "{message}");
}

#[test]
fn an_old_rust_is_named_with_how_to_update_it() {
    let message = missing(&[CC, CARGO, OLD], &[]);
    assert!(message.contains("Rust 1.63.0 is too old") && message.contains("https://rustup.rs"), "{message}");
    let message = missing(&[CC, CARGO, OLD, ("rustup", "true")], &[]);
    assert!(message.contains("needs 1.95 or later") && message.contains("rustup update stable"), "{message}");
}

#[test]
fn a_missing_c_compiler_is_named_with_how_to_get_it() {
    let message = missing(&[CARGO, NEW], &[]);
    assert!(message.contains("C compiler is missing") && message.contains("apt-get install gcc"), "{message}");
}

#[test]
fn a_missing_component_is_named_with_how_to_add_it() {
    let cargo = ("cargo", "[ \"$1\" = fmt ]");
    let message = missing(&[CC, cargo, NEW], &["rustfmt", "clippy"]);
    assert!(message.contains("rustup component add clippy"), "{message}");
}

#[test]
fn nothing_is_said_if_nothing_is_missing() {
    assert_eq!(missing(&[CC, CARGO, NEW], &["rustfmt", "clippy"]), "");
}
