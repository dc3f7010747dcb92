//! Redis Cluster: routing of calls to the node that serves their slot.
//!
//! A task keeps the slot map up to date. It queries all known nodes every few seconds, and immediately when a node
//! redirects a call or fails. The answer with the highest epoch counts, because every failover and every slot migration
//! raises the epoch. Each node has its own connection, so a failed node does not delay calls to others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::abort_on_drop::AbortOnDrop;
use super::address::Address;
use super::call::{CallDeadline, CallOutcome, SlotRoute};
use super::connection::{Connection, ServerSource};
use super::connection_config::ConnectionConfig;
use super::error::{Cause, LinkError, Unreachable};
use super::resp::{Bound, RespReply};
use super::server_error::{Redirection, ServerError};
use super::session::Commands;
use super::stats::LinkStats;
use super::topology::{TopologyQuery, TopologySource, query_all};
use crate::frame::Frame;
use crate::slots::{SLOTS, slot_of};

const ASK_EVERY: Duration = Duration::from_secs(5);
/// Minimum time between two queries.
const ASK_AT_MOST_EVERY: Duration = Duration::from_millis(50);
/// Delay before a retry while the keys of a call are on two nodes.
const TRY_AGAIN_DELAY: Duration = Duration::from_millis(2);
/// Maximum number of times that a call is sent, each time after a redirection: to the old node of its slot, to the present
/// one, to that one alone, to the node to which the slot is migrating, and there once more.
const MOST_HOPS: usize = 5;

pub(super) struct Cluster {
    map: watch::Receiver<Arc<SlotMap>>,
    connections: Arc<NodeConnections>,
    _task: AbortOnDrop,
}

/// The connection to the node that serves each slot.
#[derive(Default)]
struct SlotMap {
    nodes: Vec<Connection>,
    /// For every slot, one plus the index of its node; 0 if no node serves it. Empty until the first answer.
    slots: Vec<u16>,
    /// Whether nodes were queried, even if without success.
    is_asked: bool,
    /// Why no node has described the cluster.
    topology_failure: Option<String>,
}

impl SlotMap {
    /// The map after queries without an answer.
    const fn none(topology_failure: Option<String>) -> SlotMap {
        SlotMap { nodes: Vec::new(), slots: Vec::new(), is_asked: true, topology_failure }
    }

    fn connection(&self, slot: u16) -> Option<&Connection> {
        let node = *self.slots.get(usize::from(slot))?;
        self.nodes.get(usize::from(node).checked_sub(1)?)
    }
}

/// The connections to all nodes, whether or not they serve a slot.
struct NodeConnections {
    config: ConnectionConfig,
    /// Starts a query of the topology.
    topology_query: Arc<Notify>,
    by_address: Mutex<HashMap<Address, Connection>>,
}

impl NodeConnections {
    fn by_address(&self) -> MutexGuard<'_, HashMap<Address, Connection>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn to(&self, address: &Address) -> Connection {
        let open =
            || Connection::open(&self.config, ServerSource::Fixed(address.clone()), Some(self.topology_query.clone()));
        self.by_address().entry(address.clone()).or_insert_with(open).clone()
    }

    /// Closes connections to nodes that are neither in the map nor connected.
    fn keep(&self, map: &ClusterView) {
        let in_map = |address: &Address| map.ranges.iter().any(|range| range.node == *address);
        self.by_address().retain(|address, connection| in_map(address) || connection.is_connected());
    }
}

impl Cluster {
    pub(super) fn open(config: &ConnectionConfig, seeds: Vec<Address>) -> Cluster {
        let topology_query = Arc::new(Notify::new());
        let connections =
            Arc::new(NodeConnections { config: config.clone(), topology_query, by_address: Mutex::default() });
        let (tell, map) = watch::channel(Arc::new(SlotMap::default()));
        let task = config.runtime.spawn(keep_map(connections.clone(), seeds, tell));
        Cluster { map, connections, _task: AbortOnDrop(task.abort_handle()) }
    }

    pub(super) async fn call(
        &self,
        mut frame: Frame,
        deadline: CallDeadline,
        generation: Option<u64>,
    ) -> Result<Vec<u8>, LinkError> {
        let slot = slot_of_all(&frame.keys).ok_or(LinkError::NotRun(Cause::CrossSlot))?;
        let mut route = SlotRoute { slot, ..SlotRoute::default() };
        let mut connection = self.connection(slot, deadline.at).await?;
        let mut hops = 1;
        loop {
            let fault = match connection.call(frame, route, deadline, generation).await {
                CallOutcome::Answered(answer) => return Ok(answer),
                CallOutcome::Failed(error) => return Err(error),
                CallOutcome::Redirected(fault, unsent) => {
                    frame = unsent;
                    fault
                }
            };
            let host = connection.host();
            let redirection = fault.redirection(host.as_deref()).filter(|_| hops < MOST_HOPS);
            match redirection {
                None => return Err(LinkError::NotRun(Cause::Refused(fault))),
                Some(Redirection::Moved(to)) => {
                    self.connections.topology_query.notify_one();
                    if generation.is_some() {
                        self.connections.config.generation.raise();
                        return Err(LinkError::NotRun(Cause::ServerReplaced));
                    }
                    route.asking = false;
                    connection = self.connections.to(&to);
                }
                // Redis 6 answers a batch with `ASK` if one of its keys has migrated. A key that has not migrated must not
                // be used at the new node, where it would have no state.
                Some(Redirection::Ask(_) | Redirection::Again) if !route.alone => route.alone = true,
                Some(Redirection::Ask(to)) => {
                    route.asking = true;
                    connection = self.connections.to(&to);
                }
                Some(Redirection::Again) => sleep(TRY_AGAIN_DELAY).await,
            }
            hops += 1;
        }
    }

    /// The connection to the node that serves a slot. Waits for the first query, up to the deadline.
    async fn connection(&self, slot: u16, deadline: Instant) -> Result<Connection, LinkError> {
        let is_asked = |map: &Arc<SlotMap>| map.is_asked;
        let connection = self.map.borrow().connection(slot).cloned();
        if let Some(connection) = connection {
            return Ok(connection);
        }
        let mut maps = self.map.clone();
        let map = match timeout_at(deadline, maps.wait_for(is_asked)).await {
            Ok(Ok(map)) => map.clone(),
            Ok(Err(_)) => return Err(LinkError::NotRun(Cause::Closed)),
            Err(_) => return Err(LinkError::NotRun(Cause::Unserved)),
        };
        map.connection(slot).cloned().ok_or(LinkError::NotRun(Cause::Unserved))
    }

    pub(super) fn stats(&self) -> LinkStats {
        LinkStats {
            servers: self.connections.by_address().values().map(Connection::stats).collect(),
            topology_failure: self.map.borrow().topology_failure.clone(),
        }
    }
}

/// The slot of all keys; `None` if they are in several. Without keys, any slot is correct.
fn slot_of_all(keys: &[Vec<u8>]) -> Option<u16> {
    let Some((first, others)) = keys.split_first() else { return Some(0) };
    let slot = slot_of(first);
    others.iter().all(|key| slot_of(key) == slot).then_some(slot)
}

/// Keeps the slot map up to date.
async fn keep_map(connections: Arc<NodeConnections>, seeds: Vec<Address>, tell: watch::Sender<Arc<SlotMap>>) {
    let query = Arc::new(slots_query());
    let mut asked: Vec<TopologySource> = Vec::new();
    let mut known = seeds.clone();
    let mut last: Vec<SlotRange> = Vec::new();
    loop {
        known.extend(seeds.iter().cloned());
        asked.retain(|server| known.contains(&server.address));
        for address in known.drain(..) {
            if !asked.iter().any(|server| server.address == address) {
                asked.push(TopologySource::new(address));
            }
        }
        let views =
            query_all(&mut asked, &query, &connections.config.connector, &connections.config.settings.login).await;
        if let Some(view) = views.into_iter().max_by_key(|view| view.epoch) {
            connections.keep(&view);
            if view.replaces_any(&last) {
                connections.config.generation.raise();
            }
            tell.send_replace(Arc::new(view.map(&connections)));
            known.extend(view.ranges.iter().map(|range| range.node.clone()));
            last = view.ranges;
            let _ = timeout(ASK_EVERY, connections.topology_query.notified()).await;
        } else {
            let failure =
                asked.iter().find_map(|server| Some(format!("{}: {}", server.address, server.last_failure.as_ref()?)));
            // Calls that wait for the first map fail now. An old map is better than none.
            tell.send_if_modified(|map| {
                let is_first = !map.is_asked;
                if map.nodes.is_empty() {
                    *map = Arc::new(SlotMap::none(failure));
                }
                is_first
            });
        }
        // Also the interval of retries until the first answer.
        sleep(ASK_AT_MOST_EVERY).await;
    }
}

/// The cluster as one node describes it.
pub(super) struct ClusterView {
    epoch: i64,
    pub(super) ranges: Vec<SlotRange>,
}

/// Slots with one primary, the last one included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotRange {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) node: Address,
}

impl ClusterView {
    /// Whether another node serves any of the slots of an earlier view.
    fn replaces_any(&self, earlier: &[SlotRange]) -> bool {
        let is_replaced =
            |old: &SlotRange, new: &SlotRange| old.first <= new.last && new.first <= old.last && old.node != new.node;
        earlier.iter().any(|old| self.ranges.iter().any(|new| is_replaced(old, new)))
    }

    fn map(&self, connections: &NodeConnections) -> SlotMap {
        let mut map = SlotMap { slots: vec![0; SLOTS], ..SlotMap::none(None) };
        let mut places: HashMap<&Address, u16> = HashMap::new();
        for range in &self.ranges {
            let place = *places.entry(&range.node).or_insert_with(|| {
                map.nodes.push(connections.to(&range.node));
                u16::try_from(map.nodes.len()).unwrap_or(0)
            });
            if let Some(slots) = map.slots.get_mut(usize::from(range.first)..=usize::from(range.last)) {
                slots.fill(place);
            }
        }
        map
    }
}

pub(super) fn slots_query() -> TopologyQuery<ClusterView> {
    let commands = Commands::new().with(&[b"CLUSTER", b"INFO"], Bound::SMALL);
    TopologyQuery { commands: commands.with(&[b"CLUSTER", b"SLOTS"], Bound::TOPOLOGY), read: view }
}

fn view(asked: &Address, replies: &[RespReply<'_>]) -> Result<ClusterView, Unreachable> {
    let [info, slots] = replies else { return Err(Unreachable::Malformed) };
    if let RespReply::Error(text) = slots {
        if text.ends_with(b"cluster support disabled") {
            return Err(Unreachable::NotClustered);
        }
        return Err(Unreachable::Refused(ServerError::of(text)));
    }
    let epoch = || {
        let info = std::str::from_utf8(info.text()?).ok()?;
        info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:"))?.trim().parse().ok()
    };
    let ranges: Option<Vec<SlotRange>> =
        slots.items().and_then(|items| items.iter().map(|item| range(asked, item)).collect());
    let ranges = ranges.ok_or(Unreachable::Malformed)?;
    // A node that has just started does not know other nodes.
    if ranges.is_empty() {
        return Err(Unreachable::NoPrimary);
    }
    Ok(ClusterView { epoch: epoch().ok_or(Unreachable::Malformed)?, ranges })
}

/// Parses first slot, last slot and primary. The replicas that follow are ignored.
fn range(asked: &Address, item: &RespReply<'_>) -> Option<SlotRange> {
    let slot = |reply: &RespReply<'_>| match reply {
        RespReply::Integer(slot) => u16::try_from(*slot).ok().filter(|&slot| usize::from(slot) < SLOTS),
        _ => None,
    };
    let [first, last, primary, ..] = item.items()? else { return None };
    let [host, RespReply::Integer(port), ..] = primary.items()? else { return None };
    // A node that does not know its own host omits it. In that case, it is the host that was asked.
    let host = match host.text().and_then(|host| std::str::from_utf8(host).ok()) {
        None | Some("" | "?") => asked.host()?,
        Some(host) => host,
    };
    Some(SlotRange { first: slot(first)?, last: slot(last)?, node: Address::tcp(host, u16::try_from(*port).ok()?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Option<SlotRange> {
        let (reply, _) = RespReply::read(bytes, Bound::SMALL).unwrap().unwrap();
        range(&Address::tcp("asked", 1), &reply)
    }

    #[test]
    fn a_range_names_its_primary_first() {
        let range = read(b"*4\r\n:5\r\n:9\r\n*3\r\n$1\r\na\r\n:7\r\n$2\r\nid\r\n*2\r\n$1\r\nb\r\n:8\r\n").unwrap();
        assert_eq!((range.first, range.last, range.node), (5, 9, Address::tcp("a", 7)));
    }

    #[test]
    fn a_slot_with_another_node_has_another_server() {
        let range = |first, last, port| SlotRange { first, last, node: Address::tcp("a", port) };
        let view = |ranges| ClusterView { epoch: 1, ranges };
        let earlier = [range(0, 99, 1), range(100, 199, 2)];
        assert!(!view(vec![range(0, 99, 1), range(100, 199, 2)]).replaces_any(&earlier));
        assert!(
            !view(vec![range(0, 49, 1), range(50, 99, 1), range(100, 150, 2), range(200, 300, 3)])
                .replaces_any(&earlier)
        );
        assert!(view(vec![range(0, 98, 1), range(99, 199, 2)]).replaces_any(&earlier));
        assert!(view(vec![range(0, 99, 3), range(100, 199, 2)]).replaces_any(&earlier));
        assert!(!view(vec![range(0, 99, 3)]).replaces_any(&[]), "the first view replaces nothing");
    }

    #[test]
    fn a_node_without_a_name_is_where_it_was_asked() {
        for host in ["$0\r\n\r\n", "$-1\r\n", "$1\r\n?\r\n"] {
            let range = read(format!("*3\r\n:5\r\n:9\r\n*2\r\n{host}:7\r\n").as_bytes()).unwrap();
            assert_eq!(range.node, Address::tcp("asked", 7), "{host:?}");
        }
    }

    #[test]
    fn malformed_ranges_are_refused() {
        let cases: [&[u8]; 5] = [
            b"*0\r\n",
            b"*2\r\n:5\r\n:9\r\n",
            b"*3\r\n:5\r\n:16384\r\n*2\r\n$1\r\na\r\n:7\r\n",
            b"*3\r\n:5\r\n:9\r\n*2\r\n$1\r\na\r\n:70000\r\n",
            b"+OK\r\n",
        ];
        for bytes in cases {
            assert!(read(bytes).is_none(), "{:?}", String::from_utf8_lossy(bytes));
        }
    }
}
