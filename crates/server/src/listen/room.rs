//! How many connections a door has room for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::log_throttle::LogThrottle;

/// Room for so many connections at once, which may change while some are open.
#[derive(Debug)]
pub(super) struct Room {
    most: AtomicUsize,
    open: AtomicUsize,
    /// Told when there may be room again. Only one waits for it, the socket that accepts.
    changed: Notify,
    /// How often there was no room.
    full: AtomicU64,
    full_log: LogThrottle,
}

/// The place of one connection, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Place(Arc<Room>);

impl Room {
    pub(super) fn new(most: usize) -> Room {
        Room {
            most: AtomicUsize::new(most),
            open: AtomicUsize::new(0),
            changed: Notify::new(),
            full: AtomicU64::new(0),
            full_log: LogThrottle::default(),
        }
    }

    /// A place, once there is one.
    pub(super) async fn enter(self: &Arc<Room>) -> Place {
        let mut is_full = false;
        while self.open.load(Ordering::Acquire) >= self.most() {
            if !std::mem::replace(&mut is_full, true) {
                self.note_full();
            }
            self.changed.notified().await;
        }
        self.open.fetch_add(1, Ordering::AcqRel);
        Place(Arc::clone(self))
    }

    #[cold]
    fn note_full(&self) {
        self.full.fetch_add(1, Ordering::Relaxed);
        if let Some(suppressed) = self.full_log.pass() {
            tracing::warn!(
                connections = self.most(),
                suppressed,
                "a listener has as many connections as it may: further ones wait until one ends"
            );
        }
    }

    /// The most connections at once.
    pub(super) fn most(&self) -> usize {
        self.most.load(Ordering::Acquire)
    }

    /// How often there was no room for a further connection.
    pub(super) fn times_full(&self) -> u64 {
        self.full.load(Ordering::Relaxed)
    }

    /// Has room for so many from now on. Nobody who is inside has to leave.
    pub(super) fn resize(&self, most: usize) {
        self.most.store(most, Ordering::Release);
        self.changed.notify_one();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn enter(room: &Arc<Room>) -> Option<Place> {
        match pin!(room.enter()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(place) => Some(place),
            Poll::Pending => None,
        }
    }

    #[test]
    fn there_is_room_for_so_many_and_the_number_may_change() {
        let room = Arc::new(Room::new(2));
        let (one, two) = (enter(&room).unwrap(), enter(&room).unwrap());
        assert!(enter(&room).is_none());
        drop(one);
        let three = enter(&room).unwrap();
        room.resize(1);
        drop(two);
        assert!(enter(&room).is_none(), "one is inside, and there is room for one");
        room.resize(2);
        assert!(enter(&room).is_some());
        room.resize(1);
        drop(three);
        assert!(enter(&room).is_some());
        assert_eq!((room.most(), room.times_full()), (1, 2));
    }

    #[tokio::test]
    async fn who_waits_hears_of_a_place_and_of_more_room() {
        let room = Arc::new(Room::new(1));
        let first = room.enter().await;
        let waiting = tokio::spawn({
            let room = Arc::clone(&room);
            async move { room.enter().await }
        });
        tokio::task::yield_now().await;
        drop(first);
        let _second = waiting.await.unwrap();
        let waiting = tokio::spawn({
            let room = Arc::clone(&room);
            async move { room.enter().await }
        });
        tokio::task::yield_now().await;
        room.resize(2);
        waiting.await.unwrap();
    }
}
