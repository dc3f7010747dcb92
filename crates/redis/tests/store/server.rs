//! The one server that all tests of this program share.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::Clock;
use tidegate_redis::{Names, RedisStore, Settings};
use tokio::runtime::Runtime;

/// Ends the server and removes its folder when its standard input ends, which is when the tests do, however they end.
const KEEPER: &str = r#"redis-server --port 0 --unixsocket "$1/socket" --dir "$1" --save "" --appendonly no \
    --enable-debug-command yes --loglevel warning > "$1/log" 2>&1 &
server=$!
read -r _
kill "$server"
wait "$server"
rm -rf "$1""#;

fn socket() -> &'static PathBuf {
    static SOCKET: OnceLock<PathBuf> = OnceLock::new();
    SOCKET.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder for the server").keep();
        let keeper = Command::new("sh").args(["-c", KEEPER, "keeper"]).arg(&folder).stdin(Stdio::piped()).spawn();
        // The keeper's input stays open for as long as this process lives.
        std::mem::forget(keeper.expect("a shell that keeps the server"));
        let socket = folder.join("socket");
        let client = redis::Client::open(url(&socket)).expect("an address");
        for _ in 0..2_000 {
            let answers = client.get_connection().and_then(|mut connection| redis::cmd("PING").exec(&mut connection));
            if answers.is_ok() {
                return socket;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut log = String::new();
        let _ = std::fs::File::open(folder.join("log")).and_then(|mut file| file.read_to_string(&mut log));
        panic!("the server does not answer: {log}");
    })
}

fn url(socket: &std::path::Path) -> String {
    format!("unix://{}", socket.display())
}

/// A runtime that any number of tests wait on.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
    })
}

/// A connection of the test's own.
pub(crate) fn connection() -> redis::Connection {
    redis::Client::open(url(socket())).and_then(|client| client.get_connection()).expect("a connection")
}

/// A prefix that no other test uses.
pub(crate) fn prefix() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("test{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

fn settings() -> Settings {
    let mut settings = Settings::standalone(&url(socket())).expect("an address");
    settings.deadline = Duration::from_secs(10);
    settings
}

/// An empty store that follows `clock`.
pub(crate) fn store(prefix: &str, clock: impl Clock + 'static) -> RedisStore {
    let _context = runtime().enter();
    named(RedisStore::open_with_clock(settings(), clock).expect("settings"), prefix)
}

/// An empty store that follows the server's clock.
pub(crate) fn store_on_server_time(prefix: &str) -> RedisStore {
    let _context = runtime().enter();
    named(RedisStore::open(settings()).expect("settings"), prefix)
}

fn named(store: RedisStore, prefix: &str) -> RedisStore {
    store.with_names(Names::new(prefix).expect("a prefix"))
}
