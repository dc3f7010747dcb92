//! Limit on the open connections of a listener.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::log_throttle::LogThrottle;

/// A limit on open connections, which can change while connections are open.
#[derive(Debug)]
pub(super) struct ConnectionLimit {
    most: AtomicUsize,
    open: AtomicUsize,
    /// Notified when a permit may be available. Only the accepting task waits for it.
    changed: Notify,
    /// Times that the limit was reached.
    full: AtomicU64,
    full_log: LogThrottle,
}

/// Permit for one connection, returned on drop.
#[derive(Debug)]
pub(super) struct ConnectionPermit(Arc<ConnectionLimit>);

impl ConnectionLimit {
    pub(super) fn new(most: usize) -> ConnectionLimit {
        ConnectionLimit {
            most: AtomicUsize::new(most),
            open: AtomicUsize::new(0),
            changed: Notify::new(),
            full: AtomicU64::new(0),
            full_log: LogThrottle::default(),
        }
    }

    /// Waits for a permit.
    pub(super) async fn acquire(self: &Arc<ConnectionLimit>) -> ConnectionPermit {
        let mut is_full = false;
        while self.open.load(Ordering::Acquire) >= self.most() {
            if !std::mem::replace(&mut is_full, true) {
                self.note_full();
            }
            self.changed.notified().await;
        }
        self.open.fetch_add(1, Ordering::AcqRel);
        ConnectionPermit(Arc::clone(self))
    }

    #[cold]
    fn note_full(&self) {
        self.full.fetch_add(1, Ordering::Relaxed);
        if let Some(suppressed) = self.full_log.pass() {
            tracing::warn!(
                connections = self.most(),
                suppressed,
                "connection limit of the listener reached: further connections wait until one ends"
            );
        }
    }

    /// Maximum number of open connections.
    pub(super) fn most(&self) -> usize {
        self.most.load(Ordering::Acquire)
    }

    /// Times that the limit was reached.
    pub(super) fn times_full(&self) -> u64 {
        self.full.load(Ordering::Relaxed)
    }

    /// Changes the maximum. Open connections are kept, even above it.
    pub(super) fn resize(&self, most: usize) {
        self.most.store(most, Ordering::Release);
        self.changed.notify_one();
    }
}

impl Drop for ConnectionPermit {
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

    fn acquire(limit: &Arc<ConnectionLimit>) -> Option<ConnectionPermit> {
        match pin!(limit.acquire()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    #[test]
    fn so_many_may_be_open_and_the_number_may_change() {
        let limit = Arc::new(ConnectionLimit::new(2));
        let (one, two) = (acquire(&limit).unwrap(), acquire(&limit).unwrap());
        assert!(acquire(&limit).is_none());
        drop(one);
        let three = acquire(&limit).unwrap();
        limit.resize(1);
        drop(two);
        assert!(acquire(&limit).is_none(), "one is open, and one may be");
        limit.resize(2);
        assert!(acquire(&limit).is_some());
        limit.resize(1);
        drop(three);
        assert!(acquire(&limit).is_some());
        assert_eq!((limit.most(), limit.times_full()), (1, 2));
    }

    #[tokio::test]
    async fn a_waiting_connection_is_woken_by_a_free_permit_and_by_a_higher_limit() {
        let limit = Arc::new(ConnectionLimit::new(1));
        let first = limit.acquire().await;
        let waiting = tokio::spawn({
            let limit = Arc::clone(&limit);
            async move { limit.acquire().await }
        });
        tokio::task::yield_now().await;
        drop(first);
        let _second = waiting.await.unwrap();
        let waiting = tokio::spawn({
            let limit = Arc::clone(&limit);
            async move { limit.acquire().await }
        });
        tokio::task::yield_now().await;
        limit.resize(2);
        waiting.await.unwrap();
    }
}
