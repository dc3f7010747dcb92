//! The names of all states in a Redis, page by page.
//!
//! In a cluster each primary is scanned. That finds all keys unless some move from one primary to another meanwhile, which is noticed.

use tidegate_core::Timestamp;

use super::control::FleetControl;
use super::error::FleetError;
use super::session::FleetSession;
use crate::link::{Bound, Commands, RespReply, SlotOwners};

/// The number of keys scanned at a time.
const PAGE: usize = 256;
/// The longest name of a key that is read.
const LONGEST_NAME: usize = 512;
/// The largest description of a cluster's nodes.
const LARGEST_DESCRIPTION: usize = 4 << 20;

/// The names of all states, from the first page to the last.
pub(super) struct StateKeys<'c> {
    control: &'c FleetControl,
    /// The primaries of a cluster as they were in the beginning.
    owners: Option<SlotOwners>,
    servers: Vec<FleetSession>,
    /// The server that is scanned, and the cursor of its next page.
    place: usize,
    cursor: String,
}

impl FleetControl {
    /// Begins a scan of all states.
    pub(super) async fn state_keys(&self) -> Result<StateKeys<'_>, FleetError> {
        let owners = self.slot_owners().await?;
        let mut servers = Vec::new();
        match &owners {
            None => servers.push(self.connect(crate::link::Announcements::Unwanted).await?),
            Some(owners) => {
                for address in owners.primaries() {
                    servers.push(self.connect_to(&address).await?);
                }
            }
        }
        let mut keys = StateKeys { control: self, owners, servers, place: 0, cursor: "0".to_owned() };
        keys.are_at_rest().await?;
        Ok(keys)
    }

    async fn slot_owners(&self) -> Result<Option<SlotOwners>, FleetError> {
        if !self.endpoint.is_cluster() {
            return Ok(None);
        }
        let owners = self.endpoint.slot_owners(self.timeout).await?;
        if !owners.are_complete() {
            return Err(FleetError::unreachable("some slots of the cluster have no primary"));
        }
        Ok(Some(owners))
    }
}

impl StateKeys<'_> {
    /// The next page of names; `None` after the last one.
    ///
    /// # Errors
    /// If a server does not answer, or if keys may have moved in the cluster since the first page. Begin again then.
    pub(super) async fn next_page(&mut self) -> Result<Option<Vec<Vec<u8>>>, FleetError> {
        let Some(server) = self.servers.get_mut(self.place) else { return Ok(None) };
        let (next, names) = server.page_of_keys(&self.cursor, self.control.keys.prefix()).await?;
        if next == "0" {
            self.place += 1;
            if self.place == self.servers.len() {
                self.have_stayed().await?;
            }
        }
        self.cursor = next;
        Ok(Some(names))
    }

    /// The earliest and the latest of the servers' clocks.
    pub(super) async fn clocks(&mut self) -> Result<(Timestamp, Timestamp), FleetError> {
        let (mut first, mut last) = (Timestamp::MAX, Timestamp::EPOCH);
        for server in &mut self.servers {
            let now = server.time().await?;
            (first, last) = (first.min(now), last.max(now));
        }
        Ok((first, last))
    }

    async fn have_stayed(&mut self) -> Result<(), FleetError> {
        self.are_at_rest().await?;
        if self.control.slot_owners().await? == self.owners {
            return Ok(());
        }
        Err(FleetError::busy("slots of the cluster moved during the search"))
    }

    /// Whether no slot of a cluster is on its way to another primary.
    async fn are_at_rest(&mut self) -> Result<(), FleetError> {
        for server in self.servers.iter_mut().filter(|_| self.owners.is_some()) {
            if server.has_moving_slots().await? {
                return Err(FleetError::busy("slots of the cluster are moving"));
            }
        }
        Ok(())
    }
}

impl FleetSession {
    /// A page of the names of states, and the cursor of the next one.
    async fn page_of_keys(&mut self, cursor: &str, prefix: &str) -> Result<(String, Vec<Vec<u8>>), FleetError> {
        let (pattern, count) = (format!("{}:{{*}}:*", escaped(prefix)), PAGE.to_string());
        let words: [&[u8]; 6] = [b"SCAN", cursor.as_bytes(), b"MATCH", pattern.as_bytes(), b"COUNT", count.as_bytes()];
        // A page may have more than was asked for, while the server grows its table.
        let bound = Bound::strings(64 * PAGE, 64 * PAGE * LONGEST_NAME);
        let pages = self.values(&Commands::new().with(&words, bound), page).await?.map_err(|(_, fault)| fault)?;
        pages.into_iter().next().ok_or_else(|| FleetError::unreachable("the reply to SCAN cannot be read"))
    }

    /// Whether slots are on their way from or to this node of a cluster.
    async fn has_moving_slots(&mut self) -> Result<bool, FleetError> {
        let commands = Commands::new().with(&[b"CLUSTER", b"NODES"], Bound::string(LARGEST_DESCRIPTION));
        let described = self.values(&commands, |reply| Some(has_moving_slots(reply.text()?)));
        Ok(described.await?.map_err(|(_, fault)| fault)?.contains(&true))
    }
}

/// A node lists slots that are moving in brackets, in its own line only.
fn has_moving_slots(nodes: &[u8]) -> bool {
    String::from_utf8_lossy(nodes).lines().any(|line| line.split(' ').any(|word| word.starts_with('[')))
}

fn page(reply: &RespReply<'_>) -> Option<(String, Vec<Vec<u8>>)> {
    let [cursor, names] = reply.items()? else { return None };
    let cursor = String::from_utf8(cursor.text()?.to_vec()).ok()?;
    let names = names.items()?.iter().map(|name| name.text().map(<[u8]>::to_vec)).collect::<Option<_>>()?;
    Some((cursor, names))
}

/// A text in a pattern of Redis that stands for itself.
fn escaped(text: &str) -> String {
    let escape = |c: char| if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^') { vec!['\\', c] } else { vec![c] };
    text.chars().flat_map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_stands_for_itself_in_a_pattern() {
        assert_eq!(escaped("shop[1]*:eu"), r"shop\[1\]\*:eu");
    }

    #[test]
    fn slots_that_are_moving_are_told() {
        let own = "07c3 127.0.0.1:30004@31004,host myself,master - 0 0 1 connected 0-5460";
        let other = "67ed 127.0.0.1:30002@31002,host master - 0 1426238316232 2 connected 5461-10922";
        assert!(!has_moving_slots(format!("{own}\n{other}\n").as_bytes()));
        for moving in
            ["[93->-292f8b365bb7edb5e285caf0b7e6ddc7265d2f4f]", "[77-<-e7d1eecce10fd6bb5eb35b9f99a514335d9ba9ca]"]
        {
            assert!(has_moving_slots(format!("{other}\n{own} {moving}\n").as_bytes()));
        }
    }
}
