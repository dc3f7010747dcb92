//! The requests to a host that wait for a shared pace.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex as SyncMutex, MutexGuard as SyncMutexGuard, PoisonError};

use ahash::RandomState;
use tidegate_core::Charge;
use tokio::sync::{Mutex, MutexGuard};

/// Random, so that no server and no caller can choose keys that collide.
static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// A rule and the key that it charges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ChargedKey(u64);

impl ChargedKey {
    pub(super) fn of(charge: &Charge<'_>) -> ChargedKey {
        ChargedKey(HASHES.hash_one((charge.rule, charge.key)))
    }
}

type Queue = Arc<Mutex<()>>;

/// A queue for each key that requests wait for. Those that wait for one key do not hold up those that charge others.
#[derive(Debug, Default)]
pub(crate) struct KeyQueues {
    queues: SyncMutex<HashMap<ChargedKey, Queue>>,
}

impl KeyQueues {
    /// The first of these keys that requests wait for.
    pub(super) fn awaited(&self, keys: &[ChargedKey]) -> Option<ChargedKey> {
        let queues = self.queues();
        keys.iter().copied().find(|key| queues.contains_key(key))
    }

    /// Joins the queue of a key, at its end.
    pub(super) fn join(&self, key: ChargedKey) -> QueuedRequest<'_> {
        let queue = Arc::clone(self.queues().entry(key).or_default());
        QueuedRequest { queues: self, key, queue }
    }

    fn queues(&self) -> SyncMutexGuard<'_, HashMap<ChargedKey, Queue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that waits. It leaves the queue when it is dropped.
pub(super) struct QueuedRequest<'q> {
    queues: &'q KeyQueues,
    key: ChargedKey,
    queue: Queue,
}

impl QueuedRequest<'_> {
    /// Waits until all requests before this one have left the queue.
    pub(super) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.queue.lock().await
    }
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        let mut queues = self.queues.queues();
        // This request is the last one: the other reference is that of the table.
        if Arc::strong_count(&self.queue) == 2 {
            queues.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_queue_lasts_as_long_as_requests_wait_in_it() {
        let (queues, [one, two]) = (KeyQueues::default(), [ChargedKey(1), ChargedKey(2)]);
        let first = queues.join(one);
        let turn = first.turn().await;
        let second = queues.join(one);
        assert_eq!((queues.awaited(&[two]), queues.awaited(&[two, one])), (None, Some(one)));
        drop(turn);
        drop(first);
        assert_eq!(queues.awaited(&[one]), Some(one));
        drop(second);
        assert_eq!(queues.awaited(&[one, two]), None);
        assert!(queues.queues().is_empty());
    }
}
