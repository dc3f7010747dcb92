//! The one server that the tests of this program share.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::Clock;
use tidegate_redis::{Names, RedisStore, Settings};
use tidegate_test_redis::{Server, reap_at_exit};
use tokio::runtime::Runtime;

fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let server = Server::start();
        reap_at_exit(std::slice::from_ref(&server));
        server
    })
}

/// A runtime that any number of tests wait on.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
    })
}

/// An empty store that follows `clock`.
pub(crate) fn store(clock: impl Clock + 'static) -> RedisStore {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut settings = Settings::standalone(&server().url()).unwrap();
    settings.deadline = Duration::from_secs(10);
    let names = Names::new(&format!("test{}", COUNT.fetch_add(1, Ordering::Relaxed))).unwrap();
    let _context = runtime().enter();
    RedisStore::open_with_clock(settings, clock).unwrap().with_names(names)
}
