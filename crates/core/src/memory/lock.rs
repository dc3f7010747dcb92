//! A spin lock with a version: a sequence lock for critical sections of a few nanoseconds.
//!
//! A check holds its shard for about ten nanoseconds. Taking and releasing a `std` or `parking_lot` mutex costs two
//! atomic read-modify-write operations: 18 ns on the machine of `docs/benchmarks.md`, a third of the whole check. This lock is
//! released by a plain store and costs half of that (`make bench ONLY=inproc` prints it). The price is that a waiter cannot be
//! woken: it spins, and soon yields its processor. With thousands of shards, waiting is rare.
//!
//! The version increases whenever the lock is taken or released. Without taking the lock, a reader may load atomics that
//! only the holder writes, and then check whether the [`Version`] is [still](Lock::is_still) the same, or take the lock
//! only [if it is](Lock::lock_at).
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::sync::{AtomicU64, Ordering, SPINS, UnsafeCell, fence, spin_loop, yield_now};

/// A lock around a value.
pub(super) struct Lock<T> {
    /// Increases by one when the lock is taken and by one when it is released, so it is odd while the lock is held.
    version: AtomicU64,
    value: UnsafeCell<T>,
}

/// The version of a lock that is not held.
#[derive(Clone, Copy)]
pub(super) struct Version(u64);

// SAFETY: the value is only reached through a `Guard`, and at most one exists at a time (see `lock` and `lock_at`), so
// sharing the lock only ever moves exclusive access to the value from thread to thread.
unsafe impl<T: Send> Sync for Lock<T> {}

/// Access to a locked value, until dropped.
pub(super) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// The version of the lock before it was taken.
    before: Version,
    /// Makes the guard `Sync` only if `T` is, as an exclusive borrow of the value would be. Without this field the guard would be
    /// `Sync` whenever the lock is, which requires only `T: Send`.
    borrow: PhantomData<&'a mut T>,
}

impl<T> Lock<T> {
    pub(super) fn new(value: T) -> Lock<T> {
        Lock { version: AtomicU64::new(0), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        self.lock_at(self.version()).unwrap_or_else(|| self.wait())
    }

    #[cold]
    fn wait(&self) -> Guard<'_, T> {
        let mut tries = 0_u32;
        loop {
            // A load leaves the cache line shared. Only a free lock is worth the write that takes the line exclusively.
            let version = self.version();
            if self.is_still(version)
                && let Some(guard) = self.lock_at(version)
            {
                return guard;
            }
            tries += 1;
            if tries < SPINS {
                spin_loop();
            } else {
                yield_now();
            }
        }
    }

    /// The version at the start of a read. If the lock is held, [`Lock::is_still`] and [`Lock::lock_at`] fail for it.
    #[inline]
    pub(super) fn version(&self) -> Version {
        Version(self.version.load(Ordering::Acquire) & !1)
    }

    /// Whether the lock has not been taken since `version`. If so, everything read in between is consistent.
    #[inline]
    pub(super) fn is_still(&self, version: Version) -> bool {
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == version.0
    }

    /// Takes the lock if it has not been taken since `version`. Never waits.
    #[inline]
    pub(super) fn lock_at(&self, version: Version) -> Option<Guard<'_, T>> {
        fence(Ordering::Acquire);
        self.version.compare_exchange(version.0, version.0 + 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // Pairs with the fence in `is_still`: a reader that sees a write of the holder also sees the new version.
        fence(Ordering::Release);
        #[cfg(all(test, not(tidegate_loom)))]
        super::sync::held_locks::add();
        Some(Guard { lock: self, before: version, borrow: PhantomData })
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the version became odd when this guard was created, and stays odd until it is dropped. No thread takes a
        // lock whose version is odd, so no other guard of this lock exists.
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
        self.lock.version.store(self.before.0 + 2, Ordering::Release);
        #[cfg(all(test, not(tidegate_loom)))]
        super::sync::held_locks::remove();
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Whether a type is `Sync`, as a constant. The inherent constant exists only for types that are `Sync`, and shadows
    /// the trait's.
    struct SyncProbe<T>(PhantomData<T>);

    trait NotSync {
        const IS_SYNC: bool = false;
    }

    impl<T> NotSync for SyncProbe<T> {}

    impl<T: Sync> SyncProbe<T> {
        const IS_SYNC: bool = true;
    }

    const _: () = {
        assert!(SyncProbe::<Lock<Cell<u64>>>::IS_SYNC, "a lock is shared so that one thread at a time has the value");
        assert!(!SyncProbe::<Guard<'static, Cell<u64>>>::IS_SYNC, "a guard that is shared shares the value");
        assert!(SyncProbe::<Guard<'static, u64>>::IS_SYNC);
    };

    #[test]
    fn additions_by_several_threads_are_all_counted() {
        // Miri is a thousand times as slow.
        const ADDITIONS: u64 = if cfg!(miri) { 20 } else { 20_000 };
        let lock = Lock::new((0_u64, 0_u64));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..ADDITIONS {
                        let mut value = lock.lock();
                        // The two halves agree only if no other thread writes in between.
                        assert_eq!(value.0, value.1);
                        value.0 += 1;
                        value.1 += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), (8 * ADDITIONS, 8 * ADDITIONS));
    }

    #[test]
    fn a_read_without_the_lock_is_consistent_or_known_not_to_be() {
        const WRITES: u64 = if cfg!(miri) { 50 } else { 50_000 };
        let lock = Lock::new(());
        let pair = [AtomicU64::new(0), AtomicU64::new(0)];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=WRITES {
                    let _guard = lock.lock();
                    pair.iter().for_each(|half| half.store(number, Ordering::Relaxed));
                }
            });
            loop {
                let version = lock.version();
                let [one, other] = pair.each_ref().map(|half| half.load(Ordering::Relaxed));
                if lock.is_still(version) {
                    assert_eq!(one, other);
                    if one == WRITES {
                        break;
                    }
                }
            }
        });
    }

    #[test]
    fn a_lock_that_was_taken_meanwhile_is_not_taken_at_an_earlier_version() {
        let lock = Lock::new(1);
        let version = lock.version();
        assert!(lock.is_still(version));
        let guard = lock.lock();
        assert!(!lock.is_still(version) && !lock.is_still(lock.version()));
        assert!(lock.lock_at(version).is_none() && lock.lock_at(lock.version()).is_none());
        drop(guard);
        assert!(!lock.is_still(version) && lock.lock_at(version).is_none());
        assert!(lock.lock_at(lock.version()).is_some());
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

/// Tests of every interleaving of two or three threads, and of every value that each read may return.
#[cfg(all(test, tidegate_loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A lock, and two atomics that only its holder writes.
    struct LockedPair {
        lock: Lock<u64>,
        pair: [AtomicU64; 2],
    }

    impl LockedPair {
        fn new() -> Arc<LockedPair> {
            Arc::new(LockedPair { lock: Lock::new(0), pair: [AtomicU64::new(0), AtomicU64::new(0)] })
        }

        fn read(&self) -> [u64; 2] {
            self.pair.each_ref().map(|half| half.load(Ordering::Relaxed))
        }

        fn write(&self, guard: &mut Guard<'_, u64>) {
            let number = **guard + 1;
            **guard = number;
            self.pair.iter().for_each(|half| half.store(number, Ordering::Relaxed));
        }
    }

    #[test]
    fn loom_one_thread_at_a_time_holds_the_lock() {
        loom::model(|| {
            let shared = LockedPair::new();
            let threads = [(); 2].map(|()| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.write(&mut shared.lock.lock()))
            });
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!((*shared.lock.lock(), shared.read()), (2, [2; 2]));
        });
    }

    #[test]
    fn loom_a_read_without_the_lock_is_consistent_or_known_not_to_be() {
        loom::model(|| {
            let shared = LockedPair::new();
            let writer = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    shared.write(&mut shared.lock.lock());
                    shared.write(&mut shared.lock.lock());
                })
            };
            let version = shared.lock.version();
            let [one, other] = shared.read();
            if shared.lock.is_still(version) {
                assert_eq!(one, other);
            }
            writer.join().unwrap();
        });
    }

    #[test]
    fn loom_a_lock_taken_at_a_version_finds_what_was_read_at_it() {
        loom::model(|| {
            let shared = LockedPair::new();
            let writers = [(); 2].map(|()| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let version = shared.lock.version();
                    let read = shared.read();
                    match shared.lock.lock_at(version) {
                        Some(mut guard) => {
                            // No thread has written since, so the values read without the lock are current.
                            assert_eq!((read, shared.read()), ([*guard; 2], [*guard; 2]));
                            shared.write(&mut guard);
                            1
                        }
                        None => 0,
                    }
                })
            });
            let written: u64 = writers.map(|writer| writer.join().unwrap()).iter().sum();
            assert!(written >= 1, "one of them is the first");
            assert_eq!((*shared.lock.lock(), shared.read()), (written, [written; 2]));
        });
    }

    #[test]
    fn loom_a_reader_beside_two_writers_is_never_misled() {
        let mut model = loom::model::Builder::new();
        // Three threads have too many interleavings to try all of them.
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = LockedPair::new();
            let writers = [(); 2].map(|()| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.write(&mut shared.lock.lock()))
            });
            let version = shared.lock.version();
            let [one, other] = shared.read();
            if shared.lock.is_still(version) {
                assert_eq!(one, other);
            }
            writers.into_iter().for_each(|writer| writer.join().unwrap());
        });
    }
}
