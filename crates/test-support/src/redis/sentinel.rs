//! Sentinel: a primary, two replicas, and three sentinels that monitor them.

use crate::redis::{Flavour, Server};
use crate::{free_port, until};

/// The name of the primary.
pub const PRIMARY: &str = "limits";

/// Time without an answer after which a primary counts as down, in milliseconds.
pub const DOWN_AFTER: u32 = 500;

/// Servers and sentinels, which are stopped when this is dropped.
#[derive(Debug)]
pub struct Sentinels {
    /// The primary and its replicas. A failover changes their roles.
    pub servers: Vec<Server>,
    /// The sentinels.
    pub sentinels: Vec<Server>,
}

impl Sentinels {
    /// Starts the servers and sentinels, and waits until a failover would succeed.
    pub fn start() -> Sentinels {
        let primary = Server::launch(Flavour::Redis, "");
        let follow = format!("replicaof 127.0.0.1 {}\nreplica-read-only yes\n", primary.port());
        let mut servers = vec![primary];
        servers.extend((0..2).map(|_| Server::launch(Flavour::Redis, &follow)));
        for server in &servers {
            server.wait_until_ready();
        }
        until("replicas that follow", || {
            let linked = |server: &Server| server.run::<String>(&["INFO", "replication"]).contains("link_status:up");
            servers[1..].iter().all(linked).then_some(())
        });
        let sentinels = launch_sentinels(&servers);
        let set = Sentinels { servers, sentinels };
        set.wait_until_agreed();
        set
    }

    /// The URLs of the sentinels.
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::url).collect()
    }

    /// The port of the primary, according to the first sentinel that answers.
    ///
    /// # Panics
    /// Panics if no sentinel answers.
    pub fn primary_port(&self) -> u16 {
        let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", PRIMARY];
        let answer = |sentinel: &Server| sentinel.try_run::<(String, u16)>(&ask).ok();
        let (_, port) = self.sentinels.iter().find_map(answer).expect("a sentinel that answers");
        port
    }

    /// The index of the primary among the servers.
    ///
    /// # Panics
    /// Panics if no sentinel answers.
    pub fn primary(&self) -> usize {
        let port = self.primary_port();
        self.servers.iter().position(|server| server.port() == port).expect("a primary of ours")
    }

    /// Waits until the sentinels have found each other and the replicas. Before that, a failover would not succeed.
    fn wait_until_agreed(&self) {
        until("sentinels that can fail over", || {
            let usable = |sentinel: &Server| {
                let quorum = sentinel.try_run::<String>(&["SENTINEL", "CKQUORUM", PRIMARY]);
                let replicas = sentinel.try_run::<Vec<redis::Value>>(&["SENTINEL", "REPLICAS", PRIMARY]);
                quorum.is_ok_and(|text| text.starts_with("OK 3")) && replicas.is_ok_and(|list| list.len() == 2)
            };
            self.sentinels.iter().all(usable).then_some(())
        });
    }
}

/// Introduces the sentinels to each other, which saves the seconds that discovery would take.
fn launch_sentinels(servers: &[Server]) -> Vec<Server> {
    let identities: Vec<(u16, String)> =
        (0..3).map(|_| (free_port(), format!("{:040x}", fastrand::u128(..)))).collect();
    let config = |me: usize| {
        let (port, id) = &identities[me];
        let mut lines = format!(
            "port {port}\nbind 127.0.0.1\ndaemonize no\nsentinel myid {id}\n\
             sentinel monitor {PRIMARY} 127.0.0.1 {} 2\nsentinel down-after-milliseconds {PRIMARY} {DOWN_AFTER}\n\
             sentinel failover-timeout {PRIMARY} 3000\nsentinel parallel-syncs {PRIMARY} 2\n",
            servers[0].port()
        );
        for replica in &servers[1..] {
            lines += &format!("sentinel known-replica {PRIMARY} 127.0.0.1 {}\n", replica.port());
        }
        for (other, (port, id)) in identities.iter().enumerate() {
            if other != me {
                lines += &format!("sentinel known-sentinel {PRIMARY} 127.0.0.1 {port} {id}\n");
            }
        }
        lines
    };
    let launch = |me: usize| Server::launch_on(Flavour::Redis, identities[me].0, &["--sentinel"], &config(me));
    let sentinels: Vec<Server> = (0..3).map(launch).collect();
    for sentinel in &sentinels {
        sentinel.wait_until_ready();
    }
    sentinels
}
