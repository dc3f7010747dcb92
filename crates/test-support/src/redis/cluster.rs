//! Clusters: three primaries, each with a replica or with a proxy in front of it.

use crate::ports::BUS;
use crate::redis::{Flavour, Proxy, Server};
use crate::{free_port, until};

/// Time without an answer after which a node counts as down, in milliseconds.
pub const NODE_TIMEOUT: u32 = 1_000;

const PRIMARIES: usize = 3;
const SLOTS: usize = 16_384;

/// A cluster. Its nodes are stopped when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    /// The primaries, followed by their replicas, if any, in the same order. Roles are those at the start.
    pub nodes: Vec<Server>,
}

fn config() -> String {
    format!(
        "cluster-enabled yes\ncluster-config-file nodes.conf\ncluster-node-timeout {NODE_TIMEOUT}\n\
         cluster-replica-validity-factor 0\ncluster-require-full-coverage no\ncluster-replica-no-failover yes\n"
    )
}

impl Cluster {
    /// Starts a cluster and waits until it is complete: every slot is served, every replica follows its primary, and every
    /// node knows the whole cluster.
    pub fn start() -> Cluster {
        Cluster::start_as(Flavour::Redis)
    }

    /// Like [`start`](Self::start), with servers of this kind.
    pub fn start_as(flavour: Flavour) -> Cluster {
        let cluster = Cluster::of((0..2 * PRIMARIES).map(|_| Server::launch(flavour, &config())).collect());
        cluster.let_replicas_take_over();
        cluster
    }

    /// Starts a cluster in which no node ever counts as down, even on a busy machine, and no replica takes over.
    pub fn steady() -> Cluster {
        let config = config() + "cluster-node-timeout 60000\n";
        Cluster::of((0..2 * PRIMARIES).map(|_| Server::launch(Flavour::Redis, &config)).collect())
    }

    /// Starts a cluster of primaries without replicas, with a proxy in front of each for clients. The nodes do not
    /// communicate through the proxies.
    ///
    /// # Panics
    /// Panics if the cluster does not start.
    pub async fn start_behind_proxies() -> (Cluster, Vec<Proxy>) {
        let (mut nodes, mut proxies) = (Vec::new(), Vec::new());
        for _ in 0..PRIMARIES {
            let port = free_port();
            let proxy = Proxy::start(port).await;
            let announce =
                format!("cluster-announce-port {}\ncluster-announce-bus-port {}\n", proxy.port(), port + BUS);
            // There is no replica that could take over, so a suspended node must not count as down.
            let config = config() + &announce + "cluster-node-timeout 15000\n";
            nodes.push(Server::launch_at(Flavour::Redis, port, &config));
            proxies.push(proxy);
        }
        (tokio::task::spawn_blocking(|| Cluster::of(nodes)).await.expect("a cluster"), proxies)
    }

    fn of(nodes: Vec<Server>) -> Cluster {
        for node in &nodes {
            node.wait_until_ready();
        }
        let cluster = Cluster { nodes };
        cluster.introduce();
        cluster.wait_until_whole();
        cluster
    }

    /// The URLs of all nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    /// The id of a node.
    pub fn id(&self, node: usize) -> String {
        self.nodes[node].run(&["CLUSTER", "MYID"])
    }

    /// The node that owns the slot at the start.
    pub const fn first_owner(slot: u16) -> usize {
        slot as usize * PRIMARIES / SLOTS
    }

    fn introduce(&self) {
        for (place, node) in self.nodes.iter().enumerate() {
            node.run::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(place + 1).to_string()]);
        }
        for place in 0..PRIMARIES {
            // The first slot that belongs to a node, rounded as `first_owner` does.
            let first = |place: usize| (place * SLOTS).div_ceil(PRIMARIES);
            // Redis only supports the shorter `ADDSLOTSRANGE` since version 7.
            let slots: Vec<String> = (first(place)..first(place + 1)).map(|slot| slot.to_string()).collect();
            let command: Vec<&str> =
                ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str)).collect();
            self.nodes[place].run::<()>(&command);
        }
        // Introduces every node to every other one, because gossip would take a second or two.
        for one in &self.nodes {
            for other in &self.nodes {
                let (port, bus) = (other.port().to_string(), (other.port() + BUS).to_string());
                one.run::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
            }
        }
        for (primary, replica) in self.nodes[PRIMARIES..].iter().enumerate() {
            let id = self.id(primary);
            until("a replica that knows its primary", || replica.try_run::<()>(&["CLUSTER", "REPLICATE", &id]).ok());
        }
    }

    fn wait_until_whole(&self) {
        until("a cluster that is whole", || {
            let whole = |(place, node): (usize, &Server)| {
                let all_served = node.run::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
                let follows =
                    place < PRIMARIES || node.run::<String>(&["INFO", "replication"]).contains("link_status:up");
                let ranges = node.run::<Vec<Vec<redis::Value>>>(&["CLUSTER", "SLOTS"]);
                // First slot, last slot, the primary and its replica.
                let words = 2 + self.nodes.len() / PRIMARIES;
                all_served && follows && ranges.len() == PRIMARIES && ranges.iter().all(|range| range.len() == words)
            };
            self.nodes.iter().enumerate().all(whole).then_some(())
        });
    }

    /// Called once the cluster is complete: on a busy machine, a primary may be silent long enough during startup that its
    /// replica would take over permanently.
    fn let_replicas_take_over(&self) {
        for node in &self.nodes {
            node.run::<()>(&["CONFIG", "SET", "cluster-replica-no-failover", "no"]);
        }
    }

    /// Begins to migrate a slot from one node to another. From now on, its keys may be on either node.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        self.nodes[to].run::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.id(from)]);
        self.nodes[from].run::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.id(to)]);
    }

    /// Migrates one key of a migrating slot. Returns whether there was one.
    pub fn move_key(&self, slot: u16, from: usize, to: usize) -> bool {
        let keys: Vec<String> = self.nodes[from].run(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "1"]);
        let Some(key) = keys.first() else { return false };
        let port = self.nodes[to].port().to_string();
        self.nodes[from].run::<String>(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        true
    }

    /// Ends the migration of a slot.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        let (slot, id) = (slot.to_string(), self.id(to));
        for node in [to, from] {
            self.nodes[node].run::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        }
    }
}
