//! A cluster shared by tests that do not break it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::{Charge, Clock, Key, Store};
use tidegate_redis::slot_of;
use tidegate_redis::{Names, RedisStore, Settings};
use tidegate_test_support::redis::{Cluster, reap_at_exit};
use tokio::runtime::Runtime;

pub(crate) fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let cluster = Cluster::steady();
        reap_at_exit(&cluster.nodes);
        cluster
    })
}

/// A runtime on which any number of tests can wait.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
    })
}

/// A prefix that no other test uses.
pub(crate) fn prefix() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("test{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// An empty store in the shared cluster, under the prefix.
pub(crate) fn store(prefix: &str, clock: impl Clock + 'static) -> RedisStore {
    let mut settings = Settings::cluster(cluster().urls()).unwrap();
    settings.deadline = Duration::from_secs(10);
    let _context = runtime().enter();
    RedisStore::open_with_clock(settings, clock).unwrap().with_names(Names::new(prefix).unwrap())
}

/// The slot of all of a client's keys. Prefixes do not affect it.
pub(crate) fn slot(key: &str) -> u16 {
    slot_of(format!("any:{{{key}}}").as_bytes())
}

/// Waits until all refunds are made.
pub(crate) async fn all_given_back(store: &RedisStore) {
    tidegate_test_support::eventually("nothing left to give back", async || {
        (store.refunds().waiting == 0).then_some(())
    })
    .await;
}

/// The amount that a key has spent.
pub(crate) async fn spent(store: &RedisStore, charge: Charge<'_>) -> u64 {
    let left = tidegate_test_support::eventually("a peek", async || store.peek(&[charge.cost(0)]).await.ok());
    charge.limit.capacity() - left.await[0].remaining
}

/// Clients whose keys are in slots of these nodes, one client for each node.
pub(crate) fn clients(nodes: &[usize]) -> Vec<Key<'static>> {
    let mut names = (0..).map(|number| format!("client{number}"));
    let mut on = |node: usize| names.find(|name| Cluster::first_owner(slot(name)) == node).unwrap();
    nodes.iter().map(|&node| Key::of([on(node)])).collect()
}
