//! A Redis server for this benchmark only.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};
use tidegate_redis::{RedisStore, Settings};

pub struct Server(tidegate_test_support::redis::Server);

impl Server {
    /// Starts a server on the first core, and waits until it responds.
    pub fn start() -> Server {
        Server(tidegate_test_support::redis::Server::start_pinned())
    }

    fn url(&self) -> String {
        self.0.url()
    }

    /// Tidegate's store, with deadlines that no call reaches.
    pub fn store(&self) -> RedisStore {
        let mut settings = Settings::standalone(&self.url()).expect("an address");
        settings.deadline = Duration::from_secs(5);
        RedisStore::open(settings).expect("settings")
    }

    /// A connection as most programs use it.
    pub async fn connection(&self) -> MultiplexedConnection {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(5)));
        let client = Client::open(self.url()).expect("an address");
        client.get_multiplexed_async_connection_with_config(&config).await.expect("a connection")
    }

    pub async fn flush(&self) {
        redis::cmd("FLUSHALL").exec_async(&mut self.connection().await).await.expect("a server that can be emptied");
    }
}
