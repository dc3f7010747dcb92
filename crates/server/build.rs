//! Tells the program which commit it is built of, and with which profile.

use std::path::{Path, PathBuf};
use std::process::Command;

const VARIABLE: &str = "TIDEGATE_COMMIT";

fn main() {
    println!("cargo:rerun-if-env-changed={VARIABLE}");
    println!("cargo:rerun-if-changed=build.rs");
    let given = std::env::var(VARIABLE).ok().filter(|commit| !commit.is_empty());
    let profile = profile();
    // Other profiles are for tests and for first steps, which would compile the server anew after each commit.
    let commit = given.or_else(|| (profile == "release").then(commit_of_source).flatten()).unwrap_or_default();
    println!("cargo:rustc-env={VARIABLE}={commit}");
    println!("cargo:rustc-env=TIDEGATE_PROFILE={profile}");
}

/// The name of the profile. Cargo's variable `PROFILE` names only `debug` or `release`, from which others inherit, but the
/// folder for output is `…/PROFILE/build/PACKAGE/out`.
fn profile() -> String {
    let inherited = std::env::var("PROFILE").unwrap_or_default();
    let out = std::env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    let names = out.iter().map(|name| name.to_string_lossy().into_owned()).collect::<Vec<_>>();
    let named = names.iter().rposition(|name| name == "build").and_then(|build| names.get(build.checked_sub(1)?));
    named.cloned().unwrap_or(inherited)
}

/// The commit of the repository that this package belongs to; `None` if git does not tell.
fn commit_of_source() -> Option<String> {
    let package = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?).canonicalize().ok()?;
    let root = PathBuf::from(git(&package, &["rev-parse", "--show-toplevel"])?);
    // A published package may lie in a repository of somebody else's.
    if root.join("crates/server").canonicalize().ok()? != package {
        return None;
    }
    // It changes with every commit and every checkout.
    let log = git(&package, &["rev-parse", "--git-path", "logs/HEAD"]).map(|log| package.join(log));
    if let Some(log) = log.filter(|log| log.is_file()) {
        println!("cargo:rerun-if-changed={}", log.display());
    }
    git(&package, &["rev-parse", "--short=8", "HEAD"])
}

fn git(folder: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).current_dir(folder).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned()).filter(|text| !text.is_empty())
}
