//! The atomics of the [cell](super::cell): those of the standard library, or loom's in unit tests under `--cfg tidegate_loom`.

#[cfg(not(all(test, tidegate_loom)))]
pub(super) use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(all(test, tidegate_loom))]
pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
