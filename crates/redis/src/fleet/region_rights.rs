//! Rights in running windows that move with a share, from the Redis of one region to that of another.
//!
//! All keys of the giving region are scanned once. Keys that have spent more of the window than the region still has are
//! charged for the excess in the receiving region. After that, the rights count there. [`WindowSlice`] gives the proof.

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
use crate::frame::{self, ChargedOnce, Frame};
use crate::join_all::join_all;
use crate::link::{Announcements, Link, LinkError};
use crate::reply;
use crate::script::SOURCE;

/// Minimum remaining time of a window whose rights move. With less, the share counts in the next window soon enough.
const SHORTEST_REMAINDER: Micros = Micros::from_secs(60);
/// The deadline of reading or charging a key.
const CALL_TIME: Duration = Duration::from_secs(5);
/// Delay after a call that did not run.
const RETRY_AFTER: Duration = Duration::from_millis(20);
/// The time for which marks of charged keys outlast their window.
const MARKS_OUTLAST: Micros = Micros::from_secs(3_600);

impl RegionsControl {
    /// Moves the rights in running windows of these limits with shares from now on. The keys are the names of shares in
    /// records.
    #[must_use]
    pub fn with_windows(self, windows: BTreeMap<String, Vec<SharedWindow>>) -> RegionsControl {
        RegionsControl { windows: Arc::new(windows), ..self }
    }

    /// The limits of a rule whose windows last long enough.
    pub(super) fn windows_of(&self, rule: &str, now: Timestamp) -> Vec<SharedWindow> {
        let lasts = |window: &&SharedWindow| {
            window_end(&window.limit, now).is_some_and(|end| end.since(now) >= SHORTEST_REMAINDER)
        };
        self.windows.get(rule).into_iter().flatten().filter(lasts).cloned().collect()
    }

    /// The step between the third and the last one: the rights in running windows arrive. It can be repeated: each key is charged once,
    /// because the receiving region marks those that were. Must be called [`SETTLING_MARGIN`](tidegate_core::regions::SETTLING_MARGIN) after the
    /// transfer was seen among the outgoing ones, or later.
    ///
    /// # Errors
    /// If a region does not answer, or refuses.
    pub async fn bring_rights(&self, transfer: &Transfer) -> Result<(), RegionsError> {
        let (from, to) = (self.control(&transfer.from)?, self.control(&transfer.to)?);
        let at_from = |error| RegionsError::Region { region: transfer.from.clone(), error };
        let at_to = |error| RegionsError::Region { region: transfer.to.clone(), error };
        if transfer.slices.is_empty() || !is_wanted(to, transfer).await.map_err(at_to)? {
            return Ok(());
        }
        let mut keys = from.state_keys().await.map_err(at_from)?;
        let mut receiver = to.connect(Announcements::Unwanted).await.map_err(at_to)?;
        let (first, last) = keys.clocks().await.map_err(at_from)?;
        let at_receiver = receiver.time().await.map_err(at_to)?;
        let (first, last) = (transfer.begun.min(first).min(at_receiver), last.max(at_receiver));
        let is_running = |slice: &&WindowSlice| slice.rights(first, last).are_of_one_window();
        let running: Vec<&WindowSlice> = transfer.slices.iter().filter(is_running).collect();
        if running.is_empty() {
            return Ok(());
        }
        let slices = SlicesById::of(&running);
        let end = running.iter().filter_map(|slice| window_end(&slice.limit, at_receiver)).max().unwrap_or(at_receiver);
        let marks = ChargeMarks { transfer, last: (end + MARKS_OUTLAST).since(at_receiver) };
        let (read, charge) = (from.link().map_err(at_from)?, to.link().map_err(at_to)?);
        while let Some(names) = keys.next_page().await.map_err(at_from)? {
            let spent =
                join_all(names.iter().filter_map(|name| slices.of_name(name)).map(|slices| slices.spent(&read)));
            for spent in spent.await {
                let (slices, spent) = spent.map_err(at_from)?;
                slices.charge(&charge, spent, &marks).await.map_err(at_to)?;
            }
        }
        let (_, read_until) = keys.clocks().await.map_err(at_from)?;
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

/// The marks of the keys that were charged for a transfer, in the Redis of the receiving region.
struct ChargeMarks<'t> {
    transfer: &'t Transfer,
    /// Their lifetime.
    last: Micros,
}

impl ChargeMarks<'_> {
    /// The mark of the state with this name. It has the state's hash tag, so that both are in one slot.
    fn of(&self, name: &[u8]) -> ChargedOnce {
        let Transfer { from, born, number, .. } = self.transfer;
        let (tagged, id) = name.split_at(tag_end(name).unwrap_or(name.len()));
        let moved = format!("~{from}.{}.{number}", born.as_micros());
        ChargedOnce { mark: [tagged, moved.as_bytes(), id].concat(), lasts: self.last }
    }
}

/// The end of the hash tag in the name of a state; the id of its limit follows after a colon.
fn tag_end(name: &[u8]) -> Option<usize> {
    name.windows(2).position(|pair| pair == b"}:").map(|brace| brace + 1)
}

/// The slices of a transfer, by the id of their states.
struct SlicesById<'t>(HashMap<&'t str, Vec<&'t WindowSlice>>);

impl<'t> SlicesById<'t> {
    fn of(slices: &[&'t WindowSlice]) -> SlicesById<'t> {
        let mut by_id: HashMap<&str, Vec<&WindowSlice>> = HashMap::new();
        for &slice in slices {
            by_id.entry(&slice.id).or_default().push(slice);
        }
        SlicesById(by_id)
    }

    /// The slices for the state with this name, if it has any.
    fn of_name<'n>(&'n self, name: &'n [u8]) -> Option<SlicesOfKey<'n>> {
        let id = std::str::from_utf8(&name[tag_end(name)? + 1..]).ok()?;
        Some(SlicesOfKey { name, slices: self.0.get(id)? })
    }
}

/// The slices of one key. The key's limit depends on its tier, which is unknown here.
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

    /// Charges the key for its most-spent slice, unless it was charged for the transfer before.
    async fn charge(&self, link: &Link, spent: u64, marks: &ChargeMarks<'_>) -> Result<(), FleetError> {
        let cost = self.slices.iter().map(|slice| slice.spent_of(spent)).max().unwrap_or(0);
        let Some(largest) = self.slices.iter().map(|slice| slice.limit).max_by_key(Limit::capacity) else {
            return Ok(());
        };
        if cost == 0 {
            return Ok(());
        }
        let answer = call(link, &frame::penalize_once(self.name, &largest, cost, marks.of(self.name))).await?;
        reply::decision(&answer, &largest).map(drop).map_err(FleetError::unreachable)
    }
}

/// Repeats the call until it has run, or may have. The link connects in the background.
async fn call(link: &Link, frame: &Frame) -> Result<Vec<u8>, FleetError> {
    let until = Instant::now() + CALL_TIME;
    loop {
        match link.call(frame.clone(), CALL_TIME).await {
            Err(LinkError::NotRun(_)) if Instant::now() < until => sleep(RETRY_AFTER).await,
            called => return called.map_err(FleetError::from),
        }
    }
}

/// A limit with the same windows and the largest count that is exact.
fn unbounded(limit: &Limit) -> Option<Limit> {
    const MOST: u64 = 1 << 52;
    let Algorithm::FixedWindow(limit) = limit.algorithm() else { return None };
    let unbounded = match limit.windows() {
        Windows::Every(length) => FixedWindow::new(MOST, length),
        Windows::Calendar(calendar) => FixedWindow::calendar(MOST, calendar),
    };
    unbounded.ok().map(Limit::from)
}

#[cfg(test)]
mod tests {
    use tidegate_core::regions::{RegionShare, Share, ShareLedger};

    use super::*;
    use crate::slots::slot_of;

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
    fn a_mark_lies_in_the_slot_of_its_state_and_is_no_state() {
        let share = RegionShare::new(Share::percent(50), Share::NONE);
        let mut eu = ShareLedger::new("eu", [(String::new(), share)].into(), Timestamp::from_secs(7));
        let mut begin = || eu.begin("us", "", Share::POINT, Timestamp::from_secs(8)).unwrap();
        let (first, second) = (begin(), begin());
        let marks = |transfer| ChargeMarks { transfer, last: Micros::from_secs(60) };
        let name = b"tidegate:{acme,alice}:plan/day".as_slice();
        let mark = marks(&first).of(name).mark;
        assert_eq!(String::from_utf8_lossy(&mark), "tidegate:{acme,alice}~eu.7000000.1:plan/day");
        assert_eq!(slot_of(&mark), slot_of(name));
        assert_ne!(marks(&second).of(name).mark, mark);
        assert_ne!(marks(&first).of(b"tidegate:{acme,alice}:plan/month").mark, mark);
        assert_eq!(tag_end(&mark), None);
    }
}
