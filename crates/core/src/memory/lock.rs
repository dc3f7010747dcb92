//! A lock for critical sections of a few nanoseconds.
//!
//! A check holds its shard for some twenty nanoseconds. Taking and releasing a `std` or `parking_lot` mutex costs two
//! atomic read-modify-write operations, about eighteen nanoseconds where this was measured and a third of the whole
//! check; this lock is released by a plain store and costs half of that. The price is that a waiter cannot be woken: it
//! spins, and soon yields its processor to whoever holds the lock. With thousands of shards waiting is rare.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// Gives one thread at a time access to a value.
pub(super) struct Lock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through a `Guard`, and at most one exists at a time (see `lock`), so sharing the
// lock only ever moves exclusive access to the value from thread to thread.
unsafe impl<T: Send> Sync for Lock<T> {}

/// Access to a locked value, until dropped.
pub(super) struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Lock<T> {
    pub(super) const fn new(value: T) -> Lock<T> {
        Lock { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        if self.taken.swap(true, Ordering::Acquire) {
            self.wait();
        }
        Guard { lock: self }
    }

    #[cold]
    fn wait(&self) {
        let mut tries = 0_u32;
        loop {
            // Reading alone leaves the cache line with its owner; only a free lock is worth a write.
            if !self.taken.load(Ordering::Relaxed) && !self.taken.swap(true, Ordering::Acquire) {
                return;
            }
            tries += 1;
            if tries < 64 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `taken` went from false to true when this guard was made and stays true until it is dropped, so no
        // other guard of this lock exists.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`; the guard itself is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_by_several_threads_are_all_counted() {
        let lock = Lock::new((0_u64, 0_u64));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let mut value = lock.lock();
                        // Two halves that only agree if nobody else comes between them.
                        assert_eq!(value.0, value.1);
                        value.0 += 1;
                        value.1 += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), (160_000, 160_000));
    }

    #[test]
    fn a_panic_releases_the_lock() {
        let lock = Lock::new(1);
        let panicked = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let _guard = lock.lock();
                    panic!("while holding the lock");
                })
                .join()
        });
        assert!(panicked.is_err());
        assert_eq!(*lock.lock(), 1);
    }
}
