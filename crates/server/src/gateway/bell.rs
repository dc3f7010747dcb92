//! Who is woken when a connection to an upstream can go on.
//!
//! The two ends of a hyper connection, the one that holds the socket and the one that sends requests and takes bodies, wake
//! each other, as is right where each has a task of its own. Here one task has both. A wake that it gives itself would have
//! it run once more for nothing.

use std::cell::Cell;
use std::sync::Arc;
use std::task::{Wake, Waker};

use futures_util::task::AtomicWaker;

thread_local! {
    static IN_HAND: Cell<bool> = const { Cell::new(false) };
}

/// Wakes the task that uses a connection, whichever that is at the time.
#[derive(Debug, Default)]
pub(super) struct Bell(AtomicWaker);

impl Bell {
    /// Wakes this from now on.
    pub(super) fn wakes(&self, task: &Waker) {
        self.0.register(task);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !IN_HAND.get() {
            self.0.wake();
        }
    }
}

/// Hands something to a connection, or takes something from it, and does not hear its bell meanwhile. Whoever does so lets the
/// connection go on by itself. What other threads have to say is heard.
pub(super) fn quietly<T>(handle: impl FnOnce() -> T) -> T {
    struct Done;

    impl Drop for Done {
        fn drop(&mut self) {
            IN_HAND.set(false);
        }
    }

    IN_HAND.set(true);
    let _done = Done;
    handle()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Default)]
    struct Heard(AtomicU32);

    impl Wake for Heard {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_bell_is_heard_by_whom_it_wakes_but_for_what_one_does_oneself() {
        let (heard, bell) = (Arc::new(Heard::default()), Arc::new(Bell::default()));
        let (task, rope) = (Waker::from(Arc::clone(&heard)), Waker::from(Arc::clone(&bell)));
        let times = || heard.0.load(Ordering::SeqCst);
        rope.wake_by_ref();
        assert_eq!(times(), 0, "nobody listens yet");
        bell.wakes(&task);
        quietly(|| rope.wake_by_ref());
        assert_eq!(times(), 0, "it was oneself");
        quietly(|| std::thread::scope(|scope| scope.spawn(|| rope.wake_by_ref()).join())).unwrap();
        assert_eq!(times(), 1, "it was another thread");
        bell.wakes(&task);
        rope.wake_by_ref();
        assert_eq!(times(), 2);
    }
}
