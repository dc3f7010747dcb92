//! Calls to a cluster: each to the node that serves its slot.
//!
//! A task keeps the map of slots. It asks all known nodes, every few seconds and at once when a node redirects a call or is
//! in trouble, and believes the one with the highest epoch: every failover and every slot that moves raises it. Each node
//! has a line of its own, so what is wrong with one holds up no calls to the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::address::Address;
use super::call::{Berth, Deadline, Outcome};
use super::error::{Cause, LinkError, Unreachable};
use super::fault::{Fault, Redirection};
use super::line::{Line, Plan, Task, Way};
use super::resp::{Bound, Reply};
use super::session::Commands;
use super::slots::{SLOTS, slot_of};
use super::stats::ServerStats;
use super::topology::{TopologyQuery, TopologySource, query_all};
use crate::frame::Frame;

const ASK_EVERY: Duration = Duration::from_secs(5);
/// However much trouble there is, nodes are not asked more often than this.
const ASK_AT_MOST_EVERY: Duration = Duration::from_millis(50);
/// How long to wait for half a slot to follow the other half.
const AGAIN_AFTER: Duration = Duration::from_millis(2);
/// A call is sent at most so many times, each time after the cluster said that it did not run: to where its slot was, to
/// where it is, and to where it is about to be, or there once more.
const MOST_HOPS: usize = 4;

pub(super) struct Cluster {
    map: watch::Receiver<Arc<Map>>,
    lines: Arc<Lines>,
    _task: Task,
}

/// Which line leads to the node that serves a slot.
#[derive(Default)]
struct Map {
    nodes: Vec<Line>,
    /// For every slot, one more than the place of its node; 0 if nobody serves it. Empty until the first answer.
    slots: Vec<u16>,
    /// Whether nodes were asked at all, successfully or not.
    is_asked: bool,
}

impl Map {
    /// Nobody has answered.
    const fn none() -> Map {
        Map { nodes: Vec::new(), slots: Vec::new(), is_asked: true }
    }

    fn line(&self, slot: u16) -> Option<&Line> {
        let node = *self.slots.get(usize::from(slot))?;
        self.nodes.get(usize::from(node).checked_sub(1)?)
    }
}

/// The lines to all nodes, whether or not they serve a slot.
struct Lines {
    plan: Plan,
    trouble: Arc<Notify>,
    by_address: Mutex<HashMap<Address, Line>>,
}

impl Lines {
    fn by_address(&self) -> MutexGuard<'_, HashMap<Address, Line>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn to(&self, address: &Address) -> Line {
        let open = || Line::open(&self.plan, Way::Fixed(address.clone()), Some(self.trouble.clone()));
        self.by_address().entry(address.clone()).or_insert_with(open).clone()
    }

    /// Closes lines that lead to nobody: neither to a node of the map nor to one that answers.
    fn keep(&self, map: &View) {
        let in_map = |address: &Address| map.ranges.iter().any(|range| range.node == *address);
        self.by_address().retain(|address, line| in_map(address) || line.is_connected());
    }
}

impl Cluster {
    pub(super) fn open(plan: &Plan, seeds: Vec<Address>) -> Cluster {
        let trouble = Arc::new(Notify::new());
        let lines = Arc::new(Lines { plan: plan.clone(), trouble, by_address: Mutex::default() });
        let (tell, map) = watch::channel(Arc::new(Map::default()));
        let task = plan.runtime.spawn(keep_map(lines.clone(), seeds, tell));
        Cluster { map, lines, _task: Task(task.abort_handle()) }
    }

    pub(super) async fn call(&self, mut frame: Frame, deadline: Deadline) -> Result<Vec<u8>, LinkError> {
        let slot = slot_of_all(&frame.keys).ok_or(LinkError::NotRun(Cause::CrossSlot))?;
        let mut berth = Berth { slot, ..Berth::default() };
        let mut line = self.line(slot, deadline.at).await?;
        let mut hops = 1;
        loop {
            let fault = match line.call(frame, berth, deadline).await {
                Outcome::Answered(answer) => return Ok(answer),
                Outcome::Failed(error) => return Err(error),
                Outcome::Redirected(fault, unsent) => {
                    frame = unsent;
                    fault
                }
            };
            let host = line.host();
            let redirection = fault.redirection(host.as_deref()).filter(|_| hops < MOST_HOPS);
            match redirection {
                None => return Err(LinkError::NotRun(Cause::Refused(fault))),
                Some(Redirection::Moved(to)) => {
                    self.lines.trouble.notify_one();
                    berth.asking = false;
                    line = self.lines.to(&to);
                }
                Some(Redirection::Ask(to)) => {
                    (berth.asking, berth.alone) = (true, true);
                    line = self.lines.to(&to);
                }
                Some(Redirection::Again) if !berth.alone => berth.alone = true,
                Some(Redirection::Again) => sleep(AGAIN_AFTER).await,
            }
            hops += 1;
        }
    }

    /// The line to the node that serves a slot. Waits until nodes were asked for the first time, but not past the deadline.
    async fn line(&self, slot: u16, deadline: Instant) -> Result<Line, LinkError> {
        let is_asked = |map: &Arc<Map>| map.is_asked;
        let line = self.map.borrow().line(slot).cloned();
        if let Some(line) = line {
            return Ok(line);
        }
        let mut maps = self.map.clone();
        let map = match timeout_at(deadline, maps.wait_for(is_asked)).await {
            Ok(Ok(map)) => map.clone(),
            Ok(Err(_)) => return Err(LinkError::NotRun(Cause::Closed)),
            Err(_) => return Err(LinkError::NotRun(Cause::Unserved)),
        };
        map.line(slot).cloned().ok_or(LinkError::NotRun(Cause::Unserved))
    }

    pub(super) fn stats(&self) -> Vec<ServerStats> {
        self.lines.by_address().values().map(Line::stats).collect()
    }
}

/// The slot that all keys lie in; `None` if there are several. Without keys it may be any.
fn slot_of_all(keys: &[Vec<u8>]) -> Option<u16> {
    let Some((first, others)) = keys.split_first() else { return Some(0) };
    let slot = slot_of(first);
    others.iter().all(|key| slot_of(key) == slot).then_some(slot)
}

/// Asks the nodes which slots they serve, again and again.
async fn keep_map(lines: Arc<Lines>, seeds: Vec<Address>, tell: watch::Sender<Arc<Map>>) {
    let query = Arc::new(slots_query());
    let mut asked: Vec<TopologySource> = Vec::new();
    let mut known = seeds.clone();
    loop {
        known.extend(seeds.iter().cloned());
        asked.retain(|server| known.contains(&server.address));
        for address in known.drain(..) {
            if !asked.iter().any(|server| server.address == address) {
                asked.push(TopologySource::new(address));
            }
        }
        let views = query_all(&mut asked, &query, &lines.plan.connector, &lines.plan.settings.login).await;
        if let Some(view) = views.into_iter().max_by_key(|view| view.epoch) {
            lines.keep(&view);
            tell.send_replace(Arc::new(view.map(&lines)));
            known.extend(view.ranges.into_iter().map(|range| range.node));
            let _ = timeout(ASK_EVERY, lines.trouble.notified()).await;
        } else {
            // Whoever waits for a first map has waited long enough. An old one is better than none.
            tell.send_if_modified(|map| {
                let is_first = !map.is_asked;
                if is_first {
                    *map = Arc::new(Map::none());
                }
                is_first
            });
        }
        // Until there is an answer, this is also how often it is tried.
        sleep(ASK_AT_MOST_EVERY).await;
    }
}

/// How one node sees the cluster.
struct View {
    epoch: i64,
    ranges: Vec<Range>,
}

struct Range {
    first: u16,
    last: u16,
    node: Address,
}

impl View {
    fn map(&self, lines: &Lines) -> Map {
        let mut map = Map { slots: vec![0; SLOTS], ..Map::none() };
        let mut places: HashMap<&Address, u16> = HashMap::new();
        for range in &self.ranges {
            let place = *places.entry(&range.node).or_insert_with(|| {
                map.nodes.push(lines.to(&range.node));
                u16::try_from(map.nodes.len()).unwrap_or(0)
            });
            if let Some(slots) = map.slots.get_mut(usize::from(range.first)..=usize::from(range.last)) {
                slots.fill(place);
            }
        }
        map
    }
}

fn slots_query() -> TopologyQuery<View> {
    let commands = Commands::new().with(&[b"CLUSTER", b"INFO"], Bound::SMALL);
    TopologyQuery { commands: commands.with(&[b"CLUSTER", b"SLOTS"], Bound::TOPOLOGY), read: view }
}

fn view(asked: &Address, replies: &[Reply<'_>]) -> Result<View, Unreachable> {
    let [info, slots] = replies else { return Err(Unreachable::Malformed) };
    if let Reply::Error(text) = slots {
        return Err(Unreachable::Refused(Fault::of(text)));
    }
    let epoch = || {
        let info = std::str::from_utf8(info.text()?).ok()?;
        info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:"))?.trim().parse().ok()
    };
    let ranges: Option<Vec<Range>> =
        slots.items().and_then(|items| items.iter().map(|item| range(asked, item)).collect());
    let ranges = ranges.ok_or(Unreachable::Malformed)?;
    // A node that has just been started knows of nobody.
    if ranges.is_empty() {
        return Err(Unreachable::NoPrimary);
    }
    Ok(View { epoch: epoch().ok_or(Unreachable::Malformed)?, ranges })
}

/// First slot, last slot, the primary, and replicas that do not matter here.
fn range(asked: &Address, item: &Reply<'_>) -> Option<Range> {
    let slot = |reply: &Reply<'_>| match reply {
        Reply::Integer(slot) => u16::try_from(*slot).ok().filter(|&slot| usize::from(slot) < SLOTS),
        _ => None,
    };
    let [first, last, primary, ..] = item.items()? else { return None };
    let [host, Reply::Integer(port), ..] = primary.items()? else { return None };
    // A node that does not know its own name leaves it out: then it is the one that was asked.
    let host = match host.text().and_then(|host| std::str::from_utf8(host).ok()) {
        None | Some("" | "?") => asked.host()?,
        Some(host) => host,
    };
    Some(Range { first: slot(first)?, last: slot(last)?, node: Address::tcp(host, u16::try_from(*port).ok()?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Option<Range> {
        let (reply, _) = Reply::read(bytes, Bound::SMALL).unwrap().unwrap();
        range(&Address::tcp("asked", 1), &reply)
    }

    #[test]
    fn a_range_names_its_primary_first() {
        let range = read(b"*4\r\n:5\r\n:9\r\n*3\r\n$1\r\na\r\n:7\r\n$2\r\nid\r\n*2\r\n$1\r\nb\r\n:8\r\n").unwrap();
        assert_eq!((range.first, range.last, range.node), (5, 9, Address::tcp("a", 7)));
    }

    #[test]
    fn a_node_without_a_name_is_where_it_was_asked() {
        for host in ["$0\r\n\r\n", "$-1\r\n", "$1\r\n?\r\n"] {
            let range = read(format!("*3\r\n:5\r\n:9\r\n*2\r\n{host}:7\r\n").as_bytes()).unwrap();
            assert_eq!(range.node, Address::tcp("asked", 7), "{host:?}");
        }
    }

    #[test]
    fn what_is_not_a_range_is_refused() {
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
