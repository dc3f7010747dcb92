//! The single server shared by all tests of this program.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::Clock;
use tidegate_redis::{Names, RedisStore, Settings};
use tidegate_test_support::redis::{Server, reap_at_exit};
use tokio::runtime::Runtime;

fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let server = Server::start();
        reap_at_exit(std::slice::from_ref(&server));
        server
    })
}

/// A runtime on which any number of tests can wait.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
    })
}

/// A connection for the test itself.
pub(crate) fn connection() -> redis::Connection {
    redis::Client::open(server().unix_url()).and_then(|client| client.get_connection()).expect("a connection")
}

/// A prefix that no other test uses.
pub(crate) fn prefix() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("test{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

fn settings() -> Settings {
    let mut settings = Settings::standalone(&server().unix_url()).expect("an address");
    settings.deadline = Duration::from_secs(10);
    settings
}

/// An empty store that uses `clock`.
pub(crate) fn store(prefix: &str, clock: impl Clock + 'static) -> RedisStore {
    let _context = runtime().enter();
    named(RedisStore::open_with_clock(settings(), clock).expect("settings"), prefix)
}

/// An empty store that uses the server's clock.
pub(crate) fn store_on_server_time(prefix: &str) -> RedisStore {
    let _context = runtime().enter();
    named(RedisStore::open(settings()).expect("settings"), prefix)
}

fn named(store: RedisStore, prefix: &str) -> RedisStore {
    store.with_names(Names::new(prefix).expect("a prefix"))
}
