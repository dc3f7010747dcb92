//! Version of the program, and build information.

use std::env::consts::{ARCH, OS};
use std::sync::LazyLock;

/// The commit, if `build.rs` found it: that of the repository in a release build, or the variable `TIDEGATE_COMMIT`.
const COMMIT: Option<&str> = {
    let commit = env!("TIDEGATE_COMMIT");
    if commit.is_empty() { None } else { Some(commit) }
};

/// Cargo's profile of this build: `release`, `quick` for `make run`, or `debug`.
pub(crate) const PROFILE: &str = env!("TIDEGATE_PROFILE");

static SHORT: LazyLock<String> = LazyLock::new(|| {
    let commit = COMMIT.map(|commit| format!(" ({commit})")).unwrap_or_default();
    format!("{}{commit}", env!("CARGO_PKG_VERSION"))
});

static LONG: LazyLock<String> = LazyLock::new(|| {
    let libc = match () {
        () if cfg!(target_env = "gnu") => "-gnu",
        () if cfg!(target_env = "musl") => "-musl",
        () => "",
    };
    let traces = if cfg!(feature = "otel") { "otel" } else { "none" };
    let commit = COMMIT.unwrap_or("unknown");
    format!(
        "{}\ncommit: {commit}\ntarget: {ARCH}-{OS}{libc}\nprofile: {PROFILE}\nfeatures: {traces}",
        env!("CARGO_PKG_VERSION")
    )
});

/// A remark on the speed of this build; `None` for a release.
pub(crate) fn slowness() -> Option<&'static str> {
    match PROFILE {
        "release" => None,
        "debug" => Some("not optimised: measure the speed of profile release"),
        "quick" => Some("compiled to start soon, and about half as fast as with make run PROFILE=release"),
        _ => Some("whose speed was not compared with that of profile release"),
    }
}

/// The version and, if known, the commit: `0.1.0 (1a2b3c4)`.
pub(crate) fn short() -> &'static str {
    &SHORT
}

/// The version, the commit, the target, the profile and the features, one per line.
pub(crate) fn long() -> &'static str {
    &LONG
}
