//! The mutex that a [call](super::call) and its caller share: that of the standard library.
//!
//! Under `--cfg tidegate_loom` it is loom's, which tries every order in which the threads of a test may run. (The plain
//! `--cfg loom` would change dependencies too: tokio does without the network then.)

#[cfg(not(all(test, tidegate_loom)))]
pub(super) use std::sync::{Arc, Mutex, MutexGuard};

#[cfg(all(test, tidegate_loom))]
pub(super) use loom::sync::{Arc, Mutex, MutexGuard};
