//! The version of the program, and how it was built.

use std::env::consts::{ARCH, OS};
use std::sync::LazyLock;

/// The commit, if the build was told: `TIDEGATE_COMMIT=$(git rev-parse --short HEAD) cargo build`.
const COMMIT: Option<&str> = option_env!("TIDEGATE_COMMIT");

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
    format!("{}\ncommit: {commit}\ntarget: {ARCH}-{OS}{libc}\nfeatures: {traces}", env!("CARGO_PKG_VERSION"))
});

/// The version and, if it is known, the commit: `0.1.0 (1a2b3c4)`.
pub(crate) fn short() -> &'static str {
    &SHORT
}

/// The version, the commit, the target and the features, one on each line.
pub(crate) fn long() -> &'static str {
    &LONG
}
