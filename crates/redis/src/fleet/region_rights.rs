//! The rights of running windows that move with a share, from the Redis of one region to that of another.
//!
//! All keys of the region that gives the share are looked through once. Those that have spent more of the window than the region still has
//! are charged for it where the share has arrived; after that the rights count there. [`WindowSlice`] has the reasons.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::limit::{Algorithm, FixedWindow, Windows};
use tidegate_core::regions::{SharedWindow, Transfer, TransferId, WindowSlice, window_end};
use tidegate_core::{Limit, Micros, Timestamp};
use tokio::time::{Instant, sleep};

use super::control::FleetControl;
use super::error::FleetError;
use super::region_driver::RegionsControl;
use super::regions_error::RegionsError;
use super::session::FleetSession;
use crate::frame::{self, Frame};
use crate::join_all::join_all;
use crate::link::{Announcements, Bound, Commands, Link, LinkError, Reply};
use crate::reply;
use crate::script::SOURCE;

/// The shortest rest of a window whose rights move. A shorter one is over soon, and the share counts in the next.
const SHORTEST_REST: Micros = Micros::from_secs(60);
/// The number of keys that are looked through at a time.
const PAGE: usize = 256;
/// The longest name of a key that is read.
const LONGEST_NAME: usize = 512;
/// The deadline of reading or charging a key.
const CALL_TIME: Duration = Duration::from_secs(5);
/// The pause after a call that did not run.
const RETRY_AFTER: Duration = Duration::from_millis(20);

impl RegionsControl {
    /// Moves the rights of running windows of these limits with shares from now on, by the names that records use.
    #[must_use]
    pub fn with_windows(self, windows: BTreeMap<String, Vec<SharedWindow>>) -> RegionsControl {
        RegionsControl { windows: Arc::new(windows), ..self }
    }

    /// The limits of a rule whose windows last for a while yet.
    pub(super) fn windows_of(&self, rule: &str, now: Timestamp) -> Vec<SharedWindow> {
        let lasts =
            |window: &&SharedWindow| window_end(&window.limit, now).is_some_and(|end| end.since(now) >= SHORTEST_REST);
        self.windows.get(rule).into_iter().flatten().filter(lasts).cloned().collect()
    }

    /// The step between the third and the last one: the rights of running windows arrive. It can be repeated, which may charge some keys
    /// twice. Call it [`SETTLING_MARGIN`](tidegate_core::regions::SETTLING_MARGIN) after the transfer was seen among the outgoing ones.
    ///
    /// # Errors
    /// If a region does not answer. The rights stay behind then, until the end of their windows.
    pub async fn bring_rights(&self, transfer: &Transfer) -> Result<(), RegionsError> {
        let (from, to) = (self.control(&transfer.from)?, self.control(&transfer.to)?);
        let at_from = |error| RegionsError::Region { region: transfer.from.clone(), error };
        let at_to = |error| RegionsError::Region { region: transfer.to.clone(), error };
        if transfer.slices.is_empty() || !is_wanted(to, transfer).await.map_err(at_to)? {
            return Ok(());
        }
        if from.endpoint.is_cluster() {
            let region = transfer.from.clone();
            return Err(RegionsError::Shares(format!(
                "region `{region}` is a cluster, whose keys cannot be looked through"
            )));
        }
        let mut giver = from.connect(Announcements::Unwanted).await.map_err(at_from)?;
        let mut receiver = to.connect(Announcements::Unwanted).await.map_err(at_to)?;
        let (at_giver, at_receiver) = (giver.time().await.map_err(at_from)?, receiver.time().await.map_err(at_to)?);
        let first = transfer.begun.min(at_giver).min(at_receiver);
        let is_running = |slice: &&WindowSlice| slice.rights(first, at_giver.max(at_receiver)).are_of_one_window();
        let running: Vec<&WindowSlice> = transfer.slices.iter().filter(is_running).collect();
        if running.is_empty() {
            return Ok(());
        }
        let slices = SlicesById::of(&running);
        let (read, charge) = (from.link().map_err(at_from)?, to.link().map_err(at_to)?);
        let mut cursor = "0".to_owned();
        loop {
            let (next, names) = giver.page_of_keys(&cursor, from.keys.prefix()).await.map_err(at_from)?;
            let spent =
                join_all(names.iter().filter_map(|name| slices.of_name(name)).map(|slices| slices.spent(&read)));
            for spent in spent.await {
                let (slices, spent) = spent.map_err(at_from)?;
                slices.charge(&charge, spent).await.map_err(at_to)?;
            }
            if next == "0" {
                break;
            }
            cursor = next;
        }
        let read_until = giver.time().await.map_err(at_from)?;
        let arrived = |now: Timestamp| running.iter().map(|slice| slice.rights(first, read_until.max(now))).collect();
        self.change(&transfer.to, |ledger, now| ledger.bring_rights(transfer, arrived(now))).await.map(drop)
    }
}

/// Whether the share has arrived without its rights.
async fn is_wanted(to: &FleetControl, transfer: &Transfer) -> Result<bool, FleetError> {
    let id = TransferId::of(transfer);
    let ledger = to.region_record().await?.ledger;
    let region = ledger.as_ref().and_then(|ledger| ledger.shares.get(&transfer.rule));
    let mut arrivals = region.into_iter().flat_map(|region| &region.arrivals);
    Ok(arrivals.any(|arrival| arrival.brought_by.as_ref() == Some(&id) && arrival.rights.is_empty()))
}

impl FleetControl {
    fn link(&self) -> Result<Link, FleetError> {
        Link::open((*self.settings).clone(), SOURCE).map_err(FleetError::unreachable)
    }
}

/// The slices of a transfer, by the id that states belong to.
struct SlicesById<'t>(HashMap<&'t str, Vec<&'t WindowSlice>>);

impl<'t> SlicesById<'t> {
    fn of(slices: &[&'t WindowSlice]) -> SlicesById<'t> {
        let mut by_id: HashMap<&str, Vec<&WindowSlice>> = HashMap::new();
        for &slice in slices {
            by_id.entry(&slice.id).or_default().push(slice);
        }
        SlicesById(by_id)
    }

    /// The slices of the state of this name, if any move.
    fn of_name<'n>(&'n self, name: &'n [u8]) -> Option<SlicesOfKey<'n>> {
        let tag_end = name.windows(2).position(|pair| pair == b"}:")?;
        let id = std::str::from_utf8(&name[tag_end + 2..]).ok()?;
        Some(SlicesOfKey { name, slices: self.0.get(id)? })
    }
}

/// The slices of one key. Which of the limits is that of the key depends on its tier, which is not known here.
struct SlicesOfKey<'n> {
    name: &'n [u8],
    slices: &'n [&'n WindowSlice],
}

impl SlicesOfKey<'_> {
    /// Reads the tokens that the key has spent in its window.
    async fn spent(self, link: &Link) -> Result<(Self, u64), FleetError> {
        let Some(probe) = self.slices.first().and_then(|slice| unbounded(&slice.limit)) else { return Ok((self, 0)) };
        let answer = call(link, &frame::peek_named(self.name, &probe)).await?;
        let decision = reply::decision(&answer, &probe).map_err(FleetError::unreachable)?;
        Ok((self, probe.capacity() - decision.remaining))
    }

    /// Charges the key for what is spent of the slice of which most is.
    async fn charge(&self, link: &Link, spent: u64) -> Result<(), FleetError> {
        let cost = self.slices.iter().map(|slice| slice.spent_of(spent)).max().unwrap_or(0);
        let Some(largest) = self.slices.iter().map(|slice| slice.limit).max_by_key(Limit::capacity) else {
            return Ok(());
        };
        if cost == 0 {
            return Ok(());
        }
        let answer = call(link, &frame::penalize_named(self.name, &largest, cost)).await?;
        reply::decision(&answer, &largest).map(drop).map_err(FleetError::unreachable)
    }
}

/// Calls until the call has run, or may have. The link connects in the background.
async fn call(link: &Link, frame: &Frame) -> Result<Vec<u8>, FleetError> {
    let until = Instant::now() + CALL_TIME;
    loop {
        match link.call(frame.clone(), CALL_TIME).await {
            Err(LinkError::NotRun(_)) if Instant::now() < until => sleep(RETRY_AFTER).await,
            called => return called.map_err(FleetError::unreachable),
        }
    }
}

/// A limit with the same windows that admits as much as can be counted.
fn unbounded(limit: &Limit) -> Option<Limit> {
    const MOST: u64 = 1 << 52;
    let Algorithm::FixedWindow(limit) = limit.algorithm() else { return None };
    let unbounded = match limit.windows() {
        Windows::Every(length) => FixedWindow::new(MOST, length),
        Windows::Calendar(calendar) => FixedWindow::calendar(MOST, calendar),
    };
    unbounded.ok().map(Limit::from)
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
}

fn page(reply: &Reply<'_>) -> Option<(String, Vec<Vec<u8>>)> {
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
    fn slices_are_found_by_the_name_of_a_state() {
        let limit = "fixed 10/day".parse().unwrap();
        let slices = [WindowSlice { id: "plan/day".to_owned(), limit, before: 6, after: 4 }];
        let by_id = SlicesById::of(&slices.each_ref());
        let found = |name: &str| by_id.of_name(name.as_bytes()).map(|of_key| of_key.slices.len());
        assert_eq!(found("tidegate:{alice}:plan/day"), Some(1));
        for other in ["tidegate:{alice}:plan", "tidegate:{plan/day}", "tidegate:{a}~1.0", "plan/day", ""] {
            assert_eq!(found(other), None, "{other}");
        }
    }

    #[test]
    fn a_prefix_stands_for_itself_in_a_pattern() {
        assert_eq!(escaped("shop[1]*:eu"), r"shop\[1\]\*:eu");
    }
}
