//! Wakes that a task gives itself.
//!
//! The body of a request comes through a channel of hyper's whose two ends wake each other, as is right where each has a task
//! of its own. On an HTTP/1 connection one task has both. Having taken a body, it would run once more for nothing, which is a
//! tenth of what a check costs.

use std::cell::Cell;
use std::sync::Arc;
use std::task::{Wake, Waker};

use tokio::task;

thread_local! {
    /// The task that does not want to hear itself.
    static DEAF: Cell<Option<task::Id>> = const { Cell::new(None) };
    /// Whether it would have heard anything.
    static HAS_MISSED: Cell<bool> = const { Cell::new(false) };
}

/// Wakes a task, unless the task does so itself and does not want to hear it.
#[derive(Debug)]
struct Ear {
    task: Waker,
    id: Option<task::Id>,
}

impl Wake for Ear {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.id.is_some() && self.id == DEAF.get() {
            HAS_MISSED.set(true);
        } else {
            self.task.wake_by_ref();
        }
    }
}

/// The ear of whichever task asks, which is nearly always the same.
#[derive(Debug, Default)]
pub(super) struct Ears(Option<(Arc<Ear>, Waker)>);

impl Ears {
    /// What wakes this task, which must be the one that runs.
    pub(super) fn of(&mut self, task: &Waker) -> &Waker {
        let known = self.0.take().filter(|(ear, _)| ear.task.will_wake(task));
        let (_, waker) = self.0.insert(known.unwrap_or_else(|| {
            let ear = Arc::new(Ear { task: task.clone(), id: task::try_id() });
            (Arc::clone(&ear), ear.into())
        }));
        waker
    }
}

/// Does something of which the task that does it does not hear. Others do. Says whether there was anything to be heard.
pub(super) fn unheard<T>(act: impl FnOnce() -> T) -> (T, bool) {
    struct Done;

    impl Drop for Done {
        fn drop(&mut self) {
            DEAF.set(None);
        }
    }

    HAS_MISSED.set(false);
    DEAF.set(task::try_id());
    let _done = Done;
    (act(), HAS_MISSED.get())
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

    #[tokio::test]
    async fn a_task_does_not_hear_itself_and_hears_everybody_else() {
        let woken = Arc::new(Woken::default());
        let times = || woken.0.load(Ordering::SeqCst);
        let of_task = Waker::from(Arc::clone(&woken));
        let ear = task::spawn(async move {
            let mut ears = Ears::default();
            let ear = ears.of(&of_task).clone();
            assert!(ears.of(&of_task).will_wake(&ear), "the same task has the same ear");
            ear.wake_by_ref();
            assert_eq!(unheard(|| ear.wake_by_ref()), ((), true));
            let (woken, has_missed) = unheard(|| std::thread::scope(|scope| scope.spawn(|| ear.wake_by_ref()).join()));
            assert!(woken.is_ok() && !has_missed);
            ear
        });
        let ear = ear.await.unwrap();
        assert_eq!(times(), 2, "its own that was to be heard, and another thread's");
        let other = task::spawn(async move { unheard(|| ear.wake_by_ref()) }).await;
        assert!(!other.unwrap().1);
        assert_eq!(times(), 3, "another task's");
    }

    #[test]
    fn outside_of_tasks_everything_is_heard() {
        let woken = Arc::new(Woken::default());
        let of_thread = Waker::from(Arc::clone(&woken));
        let mut ears = Ears::default();
        unheard(|| ears.of(&of_thread).wake_by_ref());
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
    }
}
