//! A lock for critical sections of a few nanoseconds, and reading without it.
//!
//! A check holds its shard for some ten nanoseconds. Taking and releasing a `std` or `parking_lot` mutex costs two
//! atomic read-modify-write operations, about eighteen nanoseconds where this was measured and a third of the whole
//! check; this lock is released by a plain store and costs half of that. The price is that a waiter cannot be woken: it
//! spins, and soon yields its processor to whoever holds the lock. With thousands of shards waiting is rare.
//!
//! The lock counts how often it was taken. Who reads atomics that only the lock's holder changes may do so without taking
//! it, and ask afterwards whether it was [still](Lock::is_still) the same [`Version`], or take the lock only
//! [if so](Lock::lock_at).
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::sync::{AtomicU64, Ordering, SPINS, UnsafeCell, fence, spin_loop, yield_now};

/// Gives one thread at a time access to a value.
pub(super) struct Lock<T> {
    /// Goes up by one when the lock is taken and by one when it is released, so it is odd while somebody holds it.
    version: AtomicU64,
    value: UnsafeCell<T>,
}

/// A moment at which nobody held a lock.
#[derive(Clone, Copy)]
pub(super) struct Version(u64);

// SAFETY: the value is only reached through a `Guard`, and at most one exists at a time (see `lock` and `lock_at`), so
// sharing the lock only ever moves exclusive access to the value from thread to thread.
unsafe impl<T: Send> Sync for Lock<T> {}

/// Access to a locked value, until dropped.
pub(super) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// What the lock's version was before it was taken.
    before: Version,
    /// A guard stands for an exclusive borrow of the value: threads may share it only if they may share the value. Without
    /// this, the lock alone would decide, and it asks only for `T: Send`.
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
            // Reading alone leaves the cache line with its owner; only a free lock is worth a write.
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

    /// The version to begin reading at. If somebody holds the lock, it is one that never [is still](Lock::is_still) there.
    #[inline]
    pub(super) fn version(&self) -> Version {
        Version(self.version.load(Ordering::Acquire) & !1)
    }

    /// Whether nobody has taken the lock since then: what was read in between belongs together.
    #[inline]
    pub(super) fn is_still(&self, version: Version) -> bool {
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == version.0
    }

    /// Takes the lock, if nobody has taken it since then.
    #[inline]
    pub(super) fn lock_at(&self, version: Version) -> Option<Guard<'_, T>> {
        fence(Ordering::Acquire);
        self.version.compare_exchange(version.0, version.0 + 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // Who sees anything that the holder writes from here on sees that the version is another.
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
        // SAFETY: the version became odd when this guard was made and stays so until it is dropped, and nobody takes a
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

    /// Whether a type is `Sync`, told at compile time: the inherent constant exists only for types that are, and comes before
    /// the trait's.
    struct Ask<T>(PhantomData<T>);

    trait NotSync {
        const IS_SYNC: bool = false;
    }

    impl<T> NotSync for Ask<T> {}

    impl<T: Sync> Ask<T> {
        const IS_SYNC: bool = true;
    }

    const _: () = {
        assert!(Ask::<Lock<Cell<u64>>>::IS_SYNC, "a lock is shared so that one thread at a time has the value");
        assert!(!Ask::<Guard<'static, Cell<u64>>>::IS_SYNC, "a guard that is shared shares the value");
        assert!(Ask::<Guard<'static, u64>>::IS_SYNC);
    };

    #[test]
    fn additions_by_several_threads_are_all_counted() {
        // Miri takes a thousand times as long.
        const ADDITIONS: u64 = if cfg!(miri) { 20 } else { 20_000 };
        let lock = Lock::new((0_u64, 0_u64));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..ADDITIONS {
                        let mut value = lock.lock();
                        // Two halves that only agree if nobody else comes between them.
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
    fn what_is_read_without_the_lock_belongs_together_or_is_known_not_to() {
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

/// Every order in which two or three threads may run, and everything that each may then read.
#[cfg(all(test, tidegate_loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A lock, and two atomics that only its holder writes.
    struct Shared {
        lock: Lock<u64>,
        pair: [AtomicU64; 2],
    }

    impl Shared {
        fn new() -> Arc<Shared> {
            Arc::new(Shared { lock: Lock::new(0), pair: [AtomicU64::new(0), AtomicU64::new(0)] })
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
            let shared = Shared::new();
            let threads = [(); 2].map(|()| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.write(&mut shared.lock.lock()))
            });
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!((*shared.lock.lock(), shared.read()), (2, [2; 2]));
        });
    }

    #[test]
    fn loom_what_is_read_without_the_lock_belongs_together_or_is_known_not_to() {
        loom::model(|| {
            let shared = Shared::new();
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
            let shared = Shared::new();
            let writers = [(); 2].map(|()| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let version = shared.lock.version();
                    let read = shared.read();
                    match shared.lock.lock_at(version) {
                        Some(mut guard) => {
                            // Nobody has written since, so what was read without the lock is what is there.
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
        // Three threads have too many orders to try all.
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = Shared::new();
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
