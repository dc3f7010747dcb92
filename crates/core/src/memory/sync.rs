//! The atomics and the cell of the [lock](super::lock): those of the standard library.
//!
//! In unit tests under `--cfg tidegate_loom` they are loom's, which tries every interleaving of the threads of a test and
//! every value that each atomic read may return. (The usual `--cfg loom` would also change dependencies.)

#[cfg(not(all(test, tidegate_loom)))]
pub(super) use std::{
    cell::UnsafeCell,
    hint::spin_loop,
    sync::atomic::{AtomicU64, Ordering, fence},
    thread::yield_now,
};

#[cfg(all(test, tidegate_loom))]
pub(super) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, Ordering, fence},
    thread::yield_now,
};

/// Number of times that a waiter reads a lock before it yields its processor. Zero for loom, which switches threads on a yield.
pub(super) const SPINS: u32 = if cfg!(all(test, tidegate_loom)) { 0 } else { 64 };

/// loom's cell with the standard library's interface.
#[cfg(all(test, tidegate_loom))]
pub(super) struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

#[cfg(all(test, tidegate_loom))]
impl<T> UnsafeCell<T> {
    pub(super) fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(loom::cell::UnsafeCell::new(value))
    }

    /// Counts as a write: loom fails the test if it races with an access by another thread.
    pub(super) fn get(&self) -> *mut T {
        self.0.with_mut(|value| value)
    }
}

/// The number of locks that a thread holds. Counted only in unit tests, where
/// [`Arena::maintain`](super::arena::Arena::maintain) asserts that it is zero.
#[cfg(all(test, not(tidegate_loom)))]
pub(super) mod held_locks {
    use std::cell::Cell;

    thread_local! {
        static COUNT: Cell<u32> = const { Cell::new(0) };
    }

    pub(in super::super) fn add() {
        COUNT.set(COUNT.get() + 1);
    }

    pub(in super::super) fn remove() {
        COUNT.set(COUNT.get() - 1);
    }

    pub(in super::super) fn count() -> u32 {
        COUNT.get()
    }
}
