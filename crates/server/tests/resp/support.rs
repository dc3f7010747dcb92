//! A Redis-protocol listener, in a separate runtime.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use redis::{Connection, FromRedisValue, RedisResult};
use tidegate::engine::Engine;
use tidegate::listen::{self, Listener};
use tidegate::resp::{RespServer, Settings};
use tidegate::store::AnyStore;
use tidegate_core::MemoryStore;
use tidegate_rules::{Limiter, RuleSet};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// Long enough for anything that happens at all, on a machine that is busy with other things.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) const RULES: &str = "
rules:
  - { id: api, key: user, match: { path: /api/** }, limit: fixed 3/day }
  - { id: search, key: user, match: { path: /search }, limit: fixed 100/day, cost: hits }
  - { id: dark, match: { path: /search }, limit: fixed 2/day, mode: shadow }
  - { id: slots, key: user, match: { path: /slots }, limit: concurrent 2 ttl 1h }
  - { id: tokens, key: user, match: { path: /chat }, limits: [{ name: tokens, limit: fixed 1000/day, cost: hits, reserve: 1h }] }
  - { id: keyed, key: api_key, match: { path: /keyed }, limit: fixed 5/day, on_missing_key: refuse }
";

/// A server with only a Redis-protocol listener. Stops on drop.
pub(crate) struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    runtime: Option<Runtime>,
}

impl Server {
    pub(crate) fn start() -> Server {
        Server::start_with(Settings::default(), || MemoryStore::new().into())
    }

    pub(crate) fn with(settings: Settings) -> Server {
        Server::start_with(settings, || MemoryStore::new().into())
    }

    /// A server over the store that `open` opens within the server's runtime.
    pub(crate) fn start_with(settings: Settings, open: impl FnOnce() -> AnyStore) -> Server {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let _inside = runtime.enter();
        let service = Arc::new(RespServer::new(Arc::new(engine(open())), settings));
        let listener = Listener::bind(listen::Settings::at("127.0.0.1:0".parse().unwrap())).unwrap();
        let (address, stop) = (listener.listening().address(), CancellationToken::new());
        let inner = stop.clone();
        runtime.spawn(listener.serve(stop.clone(), move |stream, peer| {
            let (service, stop) = (Arc::clone(&service), inner.clone());
            async move { service.serve(stream, peer.address, stop).await }
        }));
        drop(_inside);
        Server { address, stop, runtime: Some(runtime) }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// A connection by the Rust client.
    pub(crate) fn client(&self) -> Connection {
        self.client_at("")
    }

    /// A connection by the Rust client, with this text at the end of its URL.
    pub(crate) fn client_at(&self, rest: &str) -> Connection {
        let client = redis::Client::open(format!("redis://{}/{rest}", self.address)).unwrap();
        let connection = client.get_connection_with_timeout(TIMEOUT).unwrap();
        connection.set_read_timeout(Some(TIMEOUT)).unwrap();
        connection
    }

    /// A raw socket.
    pub(crate) fn raw(&self) -> Raw {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        Raw { stream }
    }

    pub(crate) fn assert_serves(&self) {
        assert_eq!(run::<String>(&mut self.client(), "PING").unwrap(), "PONG");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

pub(crate) fn engine(store: AnyStore) -> Engine {
    let rules = RuleSet::parse("rules.yaml", RULES).unwrap_or_else(|findings| panic!("{findings}")).rules;
    Engine::new(Limiter::new(rules, store))
}

/// Runs a command of words separated by spaces.
pub(crate) fn run<T: FromRedisValue>(connection: &mut Connection, words: &str) -> RedisResult<T> {
    let mut command = redis::Cmd::new();
    words.split(' ').for_each(|word| {
        command.arg(word);
    });
    command.query(connection)
}

pub(crate) fn error(connection: &mut Connection, words: &str) -> String {
    match run::<redis::Value>(connection, words) {
        Ok(answer) => panic!("{words}: {answer:?}"),
        Err(error) => {
            let code = error.code().unwrap_or("ERR").to_owned();
            format!("{code} {}", error.detail().unwrap_or_default())
        }
    }
}

/// A socket, for input that no client would send.
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
}

impl Raw {
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// Reads as many bytes as are expected, and compares them.
    #[track_caller]
    pub(crate) fn expect(&mut self, expected: &str) {
        let mut bytes = vec![0; expected.len()];
        self.stream.read_exact(&mut bytes).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), expected);
    }

    /// Reads to the end. A reset counts as the end too.
    pub(crate) fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        match self.stream.read_to_end(&mut bytes) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Err(error) => panic!("the connection was not closed: {error}"),
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.send(format!("{line}\r\n"));
        self.line()
    }

    /// A line without its line break.
    pub(crate) fn line(&mut self) -> String {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).unwrap();
            bytes.push(byte[0]);
        }
        String::from_utf8_lossy(&bytes[..bytes.len() - 2]).into_owned()
    }
}
