//! The mutex shared by a [call](super::call) and its caller: that of the standard library.
//!
//! Under `--cfg tidegate_loom` it is loom's, which tries every order in which the threads of a test may run. (The plain
//! `--cfg loom` would also change dependencies: tokio would be built without networking.)

#[cfg(not(all(test, tidegate_loom)))]
pub(super) use std::sync::{Arc, Mutex, MutexGuard};

#[cfg(all(test, tidegate_loom))]
pub(super) use loom::sync::{Arc, Mutex, MutexGuard};
