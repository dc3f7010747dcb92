//! The atomics and the cell that the [lock](super::lock) is made of: those of the standard library.
//!
//! Under `--cfg tidegate_loom` they are loom's, which tries every order in which the threads of a test may run and every value
//! that each of their reads may then return. (The plain `--cfg loom` would change dependencies too.)

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

/// How often a waiter looks at a lock before it yields its processor. loom goes on with another thread only when one yields.
pub(super) const SPINS: u32 = if cfg!(all(test, tidegate_loom)) { 0 } else { 64 };

/// loom's cell, with the interface of the standard library's.
#[cfg(all(test, tidegate_loom))]
pub(super) struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

#[cfg(all(test, tidegate_loom))]
impl<T> UnsafeCell<T> {
    pub(super) fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(loom::cell::UnsafeCell::new(value))
    }

    /// Counts as a write: loom fails the test if an access by another thread does not happen before this one or after it.
    pub(super) fn get(&self) -> *mut T {
        self.0.with_mut(|value| value)
    }
}

/// The number of locks that a thread holds. Counted in unit tests only, where [`Arena::maintain`](super::arena::Arena::maintain)
/// asserts that it is zero.
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
