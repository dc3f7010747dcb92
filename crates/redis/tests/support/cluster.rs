//! Three primaries with a replica each.

use super::ports::BUS;
use super::server::{Flavour, Server};
use super::wait::until;

/// How long a node must be silent before the others think that it is down, in milliseconds.
pub(crate) const NODE_TIMEOUT: u32 = 1_000;

const PRIMARIES: usize = 3;
const SLOTS: usize = 16_384;

pub(crate) struct Cluster {
    /// First the primaries, then their replicas in the same order, as it was in the beginning.
    pub(crate) nodes: Vec<Server>,
}

impl Cluster {
    /// A cluster that is whole: every slot is served, every replica follows, every node knows it.
    pub(crate) fn start() -> Cluster {
        Cluster::start_as(Flavour::Redis)
    }

    pub(crate) fn start_as(flavour: Flavour) -> Cluster {
        let config = format!(
            "cluster-enabled yes\ncluster-config-file nodes.conf\ncluster-node-timeout {NODE_TIMEOUT}\n\
             cluster-replica-validity-factor 0\ncluster-require-full-coverage no\n"
        );
        let nodes: Vec<Server> = (0..2 * PRIMARIES).map(|_| Server::launch(flavour, &config)).collect();
        for node in &nodes {
            node.wait_until_ready();
        }
        let cluster = Cluster { nodes };
        cluster.introduce();
        cluster.wait_until_whole();
        cluster
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    pub(crate) fn id(&self, node: usize) -> String {
        self.nodes[node].run(&["CLUSTER", "MYID"])
    }

    /// The node that owned the slot in the beginning.
    pub(crate) const fn first_owner(slot: u16) -> usize {
        slot as usize * PRIMARIES / SLOTS
    }

    fn introduce(&self) {
        for (place, node) in self.nodes.iter().enumerate() {
            node.run::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(place + 1).to_string()]);
        }
        for place in 0..PRIMARIES {
            // The first slot that belongs to a node, rounded as `first_owner` does.
            let first = |place: usize| (place * SLOTS).div_ceil(PRIMARIES);
            let (from, to) = (first(place).to_string(), (first(place + 1) - 1).to_string());
            self.nodes[place].run::<()>(&["CLUSTER", "ADDSLOTSRANGE", &from, &to]);
        }
        // Everyone meets everyone, because hearsay would take a second or two.
        for one in &self.nodes {
            for other in &self.nodes {
                let (port, bus) = (other.port().to_string(), (other.port() + BUS).to_string());
                one.run::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
            }
        }
        for primary in 0..PRIMARIES {
            let id = self.id(primary);
            let replica = &self.nodes[primary + PRIMARIES];
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
                // From, to, the primary and its replica.
                all_served && follows && ranges.len() == PRIMARIES && ranges.iter().all(|range| range.len() == 4)
            };
            self.nodes.iter().enumerate().all(whole).then_some(())
        });
    }

    /// Opens the way for a slot from one node to another: from now on its keys may lie on either.
    pub(crate) fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        self.nodes[to].run::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.id(from)]);
        self.nodes[from].run::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.id(to)]);
    }

    /// Moves one key of a slot on its way. Says whether there was one.
    pub(crate) fn move_key(&self, slot: u16, from: usize, to: usize) -> bool {
        let keys: Vec<String> = self.nodes[from].run(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "1"]);
        let Some(key) = keys.first() else { return false };
        let port = self.nodes[to].port().to_string();
        self.nodes[from].run::<String>(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        true
    }

    /// Says that the slot has moved.
    pub(crate) fn end_move(&self, slot: u16, from: usize, to: usize) {
        let (slot, id) = (slot.to_string(), self.id(to));
        for node in [to, from] {
            self.nodes[node].run::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        }
    }
}
