//! The number of nodes in a fleet, as a node knows it.

use std::time::Duration;

use tokio::time::Instant;

use super::error::FleetError;
use super::session::FleetSession;
use crate::link::{Bound, Commands, RespReply};

/// The time for which a smaller number must be counted before the number of nodes falls.
const FALLS_AFTER: Duration = Duration::from_secs(60);
/// Number of reports of a node after which other nodes have counted it.
const REPORTS_UNTIL_COUNTED: u32 = 3;

/// The number of nodes by which shares are computed. Rises immediately and falls late, because shares that are too small
/// are safe.
#[derive(Debug, Default)]
pub(super) struct FleetSize {
    reports: u32,
    nodes: u32,
    /// The largest number counted since counts have been lower, and when that began.
    lower: Option<(u32, Instant)>,
}

impl FleetSize {
    /// Records a count after a report of this node. Returns the number if it has changed, but not before other nodes have
    /// counted this node.
    pub(super) fn record(&mut self, counted: u32, now: Instant) -> Option<u32> {
        let before = if self.is_known() { self.nodes } else { 0 };
        self.reports = self.reports.saturating_add(1);
        // Counts this node, even if Redis has lost its report.
        let counted = counted.max(1);
        if counted >= self.nodes {
            (self.nodes, self.lower) = (counted, None);
        } else {
            let (most, since) = self.lower.map_or((counted, now), |(most, since)| (most.max(counted), since));
            self.lower = Some((most, since));
            if now.duration_since(since) >= FALLS_AFTER {
                (self.nodes, self.lower) = (most, None);
            }
        }
        (self.is_known() && self.nodes != before).then_some(self.nodes)
    }

    const fn is_known(&self) -> bool {
        self.reports >= REPORTS_UNTIL_COUNTED
    }
}

impl FleetSession {
    /// The number of nodes that have reported within the last 100 seconds and have not stopped.
    pub(super) async fn count_nodes(&mut self) -> Result<u32, FleetError> {
        let nodes = self.keys.nodes();
        let commands = Commands::new().with(&[b"ZCARD", nodes.as_bytes()], Bound::string(0));
        let counted = self.values(&commands, number).await?.map_err(|(_, fault)| fault)?;
        Ok(counted.first().copied().unwrap_or(0))
    }
}

fn number(reply: &RespReply<'_>) -> Option<u32> {
    match reply {
        RespReply::Integer(number) => u32::try_from(*number).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_known_once_the_others_have_counted_this_node() {
        let (mut size, now) = (FleetSize::default(), Instant::now());
        assert_eq!([4, 4, 4, 4].map(|counted| size.record(counted, now)), [None, None, Some(4), None]);
    }

    #[test]
    fn the_number_rises_at_once_and_falls_a_minute_later() {
        let (mut size, start) = (FleetSize::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        for _ in 0..3 {
            size.record(5, start);
        }
        assert_eq!(size.record(6, at(3)), Some(6));
        // Redis has lost its data, and nodes report one after the other.
        assert_eq!(size.record(1, at(6)), None);
        assert_eq!(size.record(4, at(9)), None);
        assert_eq!(size.record(6, at(12)), None);
        // Two nodes have stopped.
        assert_eq!(size.record(4, at(15)), None);
        assert_eq!(size.record(4, at(74)), None);
        assert_eq!(size.record(3, at(75)), Some(4));
        assert_eq!(size.record(0, at(200)), None);
        assert_eq!(size.record(0, at(261)), Some(1));
    }
}
