//! Reports of nodes.

use serde::{Deserialize, Serialize};
use tidegate_core::{Micros, Timestamp};

use super::applied::AppliedState;
use super::control::FleetControl;
use super::error::FleetError;
use super::published::{Head, read_json};
use super::session::{FleetSession, get_range, string};
use super::signature::{Signature, read_instant, write_instant};
use crate::link::{Announcements, Bound, Commands, RespReply};

/// Lifetime of a report.
pub(super) const REMEMBERED: Micros = Micros::from_secs(10);
/// Maximum time that the id of a node is kept after its last report.
const KEPT: Micros = Micros::from_secs(100);

const LARGEST_REPORT: usize = 16 << 10;
const MOST_NODES: usize = 10_000;
/// Number of reports that are read at once.
const AT_ONCE: usize = 500;
/// Maximum number of ids of unknown rules in a report.
const MOST_UNKNOWN: usize = 20;
const LONGEST_NAME: usize = 64;

/// The identity of a follower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeIdentity {
    id: String,
    host: String,
    name: String,
}

/// The error for an invalid name of a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` cannot name a node: write 1 to {LONGEST_NAME} letters, digits, `-`, `_` or `.`")]
pub struct NodeError(String);

impl NodeIdentity {
    /// A node by its id, which must be unique, and the name of its machine.
    ///
    /// # Errors
    /// If one of them is invalid.
    pub fn new(id: &str, host: &str) -> Result<NodeIdentity, NodeError> {
        Ok(NodeIdentity { id: node_name(id)?, host: node_name(host)?, name: id.to_owned() })
    }

    /// This process on this machine, with a random id.
    #[must_use]
    pub fn here() -> NodeIdentity {
        let host = node_name(&host_name()).unwrap_or_else(|_| "unknown".to_owned());
        let id = format!("{:08x}", fastrand::u32(..));
        let name = format!("{host}-{id}");
        NodeIdentity { id, host, name }
    }

    /// Sets the display name, which need not be unique.
    ///
    /// # Errors
    /// If it is invalid.
    pub fn named(self, name: &str) -> Result<NodeIdentity, NodeError> {
        Ok(NodeIdentity { name: node_name(name)?, ..self })
    }

    /// The display name. The default consists of host name and id.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The node's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The name of its machine.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }
}

fn node_name(name: &str) -> Result<String, NodeError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_name = !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(fits);
    if is_name { Ok(name.to_owned()) } else { Err(NodeError(name.chars().take(LONGEST_NAME).collect())) }
}

#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

/// The report of a node. Times are by the clock of Redis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The node's id.
    pub node: String,
    /// The name of its machine.
    pub host: String,
    /// The display name. Nodes of earlier versions do not report one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The version of Tidegate.
    pub build: String,
    /// The published version that the node applied last; 0 if none.
    pub version: u64,
    /// The published version of its rules; 0 if the rules are its own.
    pub rules: u64,
    /// The generation of its limiter.
    pub generation: u64,
    /// When the node applied the version.
    #[serde(serialize_with = "write_instant", deserialize_with = "read_instant")]
    pub since: Timestamp,
    /// The time of the report.
    #[serde(serialize_with = "write_instant", deserialize_with = "read_instant")]
    pub seen: Timestamp,
    /// Why the node refuses the published rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Ids of switched rules that do not exist on the node: at most twenty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
    /// The edition of the version, which distinguishes it from others with the same number.
    edition: Option<super::published::Edition>,
}

/// A node's state compared with what is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeState {
    /// The node has applied the published version.
    Current,
    /// The node has not applied the published version yet.
    Behind,
    /// The node refuses the published rules, and keeps its own.
    Refused,
    /// The node keeps a version that Redis has lost.
    Kept,
}

impl NodeReport {
    pub(super) fn new(
        node: &NodeIdentity,
        applied: &AppliedState,
        unreadable: Option<&str>,
        now: Timestamp,
    ) -> NodeReport {
        NodeReport {
            node: node.id.clone(),
            host: node.host.clone(),
            name: node.name.clone(),
            build: env!("CARGO_PKG_VERSION").to_owned(),
            version: applied.edition.as_ref().map_or(0, |edition| edition.version),
            rules: applied.rules_version(),
            generation: 0,
            since: applied.since,
            seen: now,
            refused: applied.refused().or(unreadable).map(str::to_owned),
            unknown: Vec::new(),
            edition: applied.edition.clone(),
        }
    }

    /// The node's display name, or its id if it reports none.
    #[must_use]
    pub fn called(&self) -> &str {
        if self.name.is_empty() { &self.node } else { &self.name }
    }

    /// Adds the state of its limiter.
    pub(super) fn with_rules(self, generation: u64, unknown: &[&str]) -> NodeReport {
        let unknown = unknown.iter().take(MOST_UNKNOWN).map(|&id| id.to_owned()).collect();
        NodeReport { generation, unknown, ..self }
    }

    fn state(&self, head: Option<&Head>) -> NodeState {
        match (&self.refused, head, &self.edition) {
            (Some(_), _, _) => NodeState::Refused,
            (None, None, None) => NodeState::Current,
            (None, None, Some(_)) => NodeState::Kept,
            (None, Some(head), Some(edition)) if head.edition == *edition => NodeState::Current,
            (None, Some(_), _) => NodeState::Behind,
        }
    }
}

/// The nodes that have reported recently, compared with what is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// The version that is published; 0 if nothing is.
    pub version: u64,
    /// The signature of the last change.
    pub signed: Option<Signature>,
    /// The present time, by the clock of Redis.
    pub now: Timestamp,
    /// The reports and states of the nodes, ordered by host and id.
    pub nodes: Vec<(NodeReport, NodeState)>,
    /// The ids of nodes whose reports cannot be read.
    pub unreadable: Vec<String>,
}

impl Fleet {
    /// Returns `true` if there are nodes and all of them have applied the published version.
    #[must_use]
    pub fn is_current(&self) -> bool {
        let current = |(_, state): &(NodeReport, NodeState)| *state == NodeState::Current;
        self.unreadable.is_empty() && !self.nodes.is_empty() && self.nodes.iter().all(current)
    }
}

impl FleetSession {
    /// Writes the report of a node.
    pub(super) async fn report(&mut self, report: &NodeReport) -> Result<(), FleetError> {
        let (nodes, key, now) = (self.keys.nodes(), self.keys.node(&report.node), report.seen);
        let text = serde_json::to_string(report).map_err(|error| FleetError::unreadable(key.clone(), error))?;
        let number = |number: u64| number.to_string().into_bytes();
        let (key, nodes, id) = (key.as_bytes(), nodes.as_bytes(), report.node.as_bytes());
        let remembered = number(REMEMBERED.as_millis_ceil());
        let mut commands = Commands::new();
        for words in [
            &[b"SET", key, text.as_bytes(), b"PX", &remembered][..],
            &[b"ZADD", nodes, &number(now.as_micros()), id],
            &[b"ZREMRANGEBYSCORE", nodes, b"-inf", &number((now - KEPT).as_micros())],
            &[b"PEXPIRE", nodes, &number(KEPT.as_millis_ceil())],
        ] {
            commands.add(words, Bound::string(0));
        }
        self.write(commands).await.map(drop)
    }

    /// Removes the report of a node.
    pub(super) async fn remove_report(&mut self, node: &NodeIdentity) -> Result<(), FleetError> {
        let commands = Commands::new()
            .with(&[b"DEL", self.keys.node(&node.id).as_bytes()], Bound::string(0))
            .with(&[b"ZREM", self.keys.nodes().as_bytes(), node.id.as_bytes()], Bound::string(0));
        self.write(commands).await.map(drop)
    }

    /// The reports of these nodes; empty for nodes without one.
    async fn reports(&mut self, ids: &[String]) -> Result<Vec<Vec<u8>>, FleetError> {
        let mut commands = Commands::new();
        for id in ids {
            get_range(&mut commands, &self.keys.node(id), LARGEST_REPORT);
        }
        Ok(self.values(&commands, string).await?.map_err(|(_, fault)| fault)?)
    }

    /// The ids of the nodes that have reported.
    async fn node_ids(&mut self) -> Result<Vec<String>, FleetError> {
        let (nodes, last) = (self.keys.nodes(), (MOST_NODES - 1).to_string());
        let bound = Bound::strings(MOST_NODES, MOST_NODES * LONGEST_NAME);
        let commands = Commands::new().with(&[b"ZRANGE", nodes.as_bytes(), b"0", last.as_bytes()], bound);
        let ids = self.values(&commands, |reply| Some(reply.items()?.iter().filter_map(text).collect())).await?;
        Ok(ids.map_err(|(_, fault)| fault)?.pop().unwrap_or_default())
    }
}

fn text(reply: &RespReply<'_>) -> Option<String> {
    String::from_utf8(reply.text()?.to_vec()).ok()
}

impl FleetControl {
    /// The nodes that follow. A node that crashed is listed for another ten seconds.
    ///
    /// # Errors
    /// Fails if Redis does not answer.
    pub async fn fleet(&self) -> Result<Fleet, FleetError> {
        let mut session = self.connect(Announcements::Unwanted).await?;
        let ids = session.node_ids().await?;
        let mut reports = Vec::with_capacity(ids.len());
        for ids in ids.chunks(AT_ONCE) {
            reports.extend(session.reports(ids).await?);
        }
        // Read last, so that no report has a later version or time.
        let (head, now) = (session.head().await?, session.time().await?);
        let mut fleet = Fleet {
            version: head.as_ref().map_or(0, |head| head.edition.version),
            signed: head.as_ref().map(|head| head.signed.clone()),
            now,
            nodes: Vec::new(),
            unreadable: Vec::new(),
        };
        for (id, bytes) in ids.iter().zip(reports) {
            match read_json::<NodeReport>(&self.keys.node(id), &bytes, LARGEST_REPORT) {
                _ if bytes.is_empty() => {}
                Ok(report) => {
                    let state = report.state(head.as_ref());
                    fleet.nodes.push((report, state));
                }
                Err(_) => fleet.unreadable.push(id.clone()),
            }
        }
        fleet.nodes.sort_by(|(one, _), (other, _)| (&one.host, &one.node).cmp(&(&other.host, &other.node)));
        Ok(fleet)
    }
}

#[cfg(test)]
mod tests {
    use super::super::published::Edition;
    use super::*;

    #[test]
    fn nodes_have_names_that_can_be_shown() {
        assert!(NodeIdentity::new("gw-1.a_b", "host").is_ok());
        for wrong in ["", "a b", "a:b", "ü", &"x".repeat(65)] {
            assert!(NodeIdentity::new(wrong, "host").is_err() && NodeIdentity::new("id", wrong).is_err(), "{wrong}");
        }
        let here = NodeIdentity::here();
        assert!(NodeIdentity::new(here.id(), here.host()).is_ok(), "{here:?}");
        assert_ne!(here, NodeIdentity::here());
    }

    #[test]
    fn a_report_is_compared_with_what_is_published() {
        let signed = Signature { who: "ann".to_owned(), at: Timestamp::EPOCH };
        let head = Head::new(Edition::new(2), signed, None);
        let applied = |edition: Option<Edition>| {
            let mut applied = AppliedState::default();
            applied.edition = edition;
            applied
        };
        let state = |applied: &AppliedState, unreadable, head: Option<&Head>| {
            NodeReport::new(&NodeIdentity::here(), applied, unreadable, Timestamp::EPOCH).state(head)
        };
        let (none, same) = (applied(None), applied(Some(head.edition.clone())));
        assert_eq!(state(&none, None, None), NodeState::Current);
        assert_eq!(state(&none, None, Some(&head)), NodeState::Behind);
        assert_eq!(state(&same, None, Some(&head)), NodeState::Current);
        assert_eq!(state(&same, None, None), NodeState::Kept);
        assert_eq!(state(&same, Some("unreadable"), Some(&head)), NodeState::Refused);
        // The same number, but published after Redis had lost the first version.
        assert_eq!(state(&applied(Some(Edition::new(2))), None, Some(&head)), NodeState::Behind);
    }
}
