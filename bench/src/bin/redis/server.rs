//! A server for this benchmark alone.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};
use tidegate_redis::{RedisStore, Settings};

pub struct Server {
    process: Child,
    port: u16,
}

impl Server {
    /// Starts a server on the first core and waits until it answers.
    pub fn start() -> Server {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
        let process = Command::new("taskset")
            .args(["-c", "0", "redis-server", "--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server and taskset are installed");
        let server = Server { process, port };
        let client = Client::open(server.url()).expect("an address");
        for _ in 0..1_000 {
            if client.get_connection().is_ok_and(|mut connection| redis::cmd("PING").exec(&mut connection).is_ok()) {
                return server;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the server does not answer");
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Our store, with deadlines that no call reaches.
    pub fn store(&self) -> RedisStore {
        let mut settings = Settings::standalone(&self.url()).expect("an address");
        settings.deadline = Duration::from_secs(5);
        RedisStore::open(settings).expect("settings")
    }

    /// A connection as most programs have one.
    pub async fn connection(&self) -> MultiplexedConnection {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(5)));
        let client = Client::open(self.url()).expect("an address");
        client.get_multiplexed_async_connection_with_config(&config).await.expect("a connection")
    }

    pub async fn flush(&self) {
        redis::cmd("FLUSHALL").exec_async(&mut self.connection().await).await.expect("a server that can be emptied");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
