//! Suppresses wake-ups that a task causes itself.
//!
//! hyper connects the two halves of a connection by channels: one half drives the socket, the other sends requests or
//! reads bodies. Each half wakes the other, as necessary if they run in different tasks. If one task runs both, using
//! one half makes the executor poll the task once more for nothing, which is a tenth of the cost of a check.
//!
//! Therefore such a task polls the connection with the waker of a [`SelfWakeFilter`], and uses the other half within
//! [`suppressing`] with that waker. A wake-up from within, on the same thread, only sets a flag. All other wake-ups
//! pass.

use std::cell::Cell;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

thread_local! {
    /// The filter whose wake-ups this thread suppresses, identified by the address of its shared state.
    static SUPPRESSED: Cell<*const ()> = const { Cell::new(ptr::null()) };
    /// Whether a wake-up was suppressed.
    static WAS_SUPPRESSED: Cell<bool> = const { Cell::new(false) };
}

/// Forwards wake-ups to a task, except those that [`suppressing`] suppresses.
#[derive(Debug)]
pub(crate) struct SelfWakeFilter {
    shared: Arc<WakeState>,
    /// The waker to poll with. It does not change with the task: if the waker changed, hyper would wake the previous
    /// one.
    waker: Waker,
    /// A copy of the waker in `shared`, for comparison without the lock.
    task: Waker,
}

#[derive(Debug)]
struct WakeState {
    task: Mutex<Waker>,
}

impl Default for SelfWakeFilter {
    fn default() -> SelfWakeFilter {
        let task = Waker::noop().clone();
        let shared = Arc::new(WakeState { task: Mutex::new(task.clone()) });
        SelfWakeFilter { waker: Arc::clone(&shared).into(), shared, task }
    }
}

impl SelfWakeFilter {
    /// Forwards wake-ups to `task` from now on. Returns the waker to poll with.
    ///
    /// Must be called before each poll. A wake-up sent to the previous task is not lost, because the poll sees its
    /// cause.
    #[inline]
    pub(crate) fn arm(&mut self, task: &Waker) -> &Waker {
        if !self.task.will_wake(task) {
            self.task.clone_from(task);
            self.shared.lock().clone_from(task);
        }
        &self.waker
    }

    /// The waker that [`SelfWakeFilter::arm`] returns.
    pub(crate) const fn waker(&self) -> &Waker {
        &self.waker
    }
}

impl WakeState {
    fn lock(&self) -> MutexGuard<'_, Waker> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for WakeState {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if ptr::eq(SUPPRESSED.get(), Arc::as_ptr(self).cast()) {
            WAS_SUPPRESSED.set(true);
        } else {
            // Waking schedules the task without running it, so nothing can request the lock meanwhile.
            self.lock().wake_by_ref();
        }
    }
}

/// Runs `act`. Suppresses the wake-ups of `waker` that it causes on this thread, if `waker` belongs to a
/// [`SelfWakeFilter`]. Other wakers are unaffected. Also returns whether a wake-up was suppressed.
///
/// # Correctness
/// A suppressed wake-up is lost. Therefore the caller must run in the task that polls the connection with `waker`, and
/// must poll the connection once more before that task waits for it. A caller that cannot guarantee this must wake
/// `waker` if this function returns `true`.
#[inline]
pub(crate) fn suppressing<T>(waker: &Waker, act: impl FnOnce() -> T) -> (T, bool) {
    /// Ends the suppression, even if `act` panics.
    struct Restore(*const ());

    impl Drop for Restore {
        fn drop(&mut self) {
            SUPPRESSED.set(self.0);
        }
    }

    WAS_SUPPRESSED.set(false);
    let _restore = Restore(SUPPRESSED.replace(waker.data()));
    (act(), WAS_SUPPRESSED.get())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn counted() -> (Waker, impl Fn() -> u32) {
        let woken = Arc::new(Woken::default());
        (Waker::from(Arc::clone(&woken)), move || woken.0.load(Ordering::SeqCst))
    }

    #[test]
    fn wakes_are_suppressed_only_inside_and_only_on_the_same_thread() {
        let ((task, times), mut filter) = (counted(), SelfWakeFilter::default());
        filter.waker().wake_by_ref();
        assert_eq!(times(), 0, "it is not armed yet");
        let waker = filter.arm(&task).clone();
        waker.wake_by_ref();
        assert_eq!(times(), 1);
        assert_eq!(suppressing(&waker, || waker.wake_by_ref()), ((), true));
        assert_eq!(times(), 1, "its own wake");
        let (joined, was_suppressed) =
            suppressing(&waker, || std::thread::scope(|scope| scope.spawn(|| waker.wake_by_ref()).join()));
        assert!(joined.is_ok() && !was_suppressed);
        assert_eq!(times(), 2, "the wake of another thread");
        waker.wake_by_ref();
        assert_eq!(times(), 3, "the suppression has ended");
    }

    #[test]
    fn other_wakers_are_left_alone() {
        let ((task, times), (plain, plain_times)) = (counted(), counted());
        let (mut filter, other) = (SelfWakeFilter::default(), SelfWakeFilter::default());
        let waker = filter.arm(&task);
        assert_eq!(suppressing(other.waker(), || waker.wake_by_ref()), ((), false));
        assert_eq!(suppressing(&plain, || plain.wake_by_ref()), ((), false));
        assert_eq!((times(), plain_times()), (1, 1));
    }

    #[test]
    fn the_task_that_armed_it_last_is_woken_by_the_same_waker() {
        let ((first, first_times), (second, second_times)) = (counted(), counted());
        let mut filter = SelfWakeFilter::default();
        let waker = filter.arm(&first).clone();
        assert!(filter.arm(&second).will_wake(&waker));
        waker.wake_by_ref();
        assert_eq!((first_times(), second_times()), (0, 1));
    }
}
