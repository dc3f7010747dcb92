//! Sliding window log: exact, with an entry for every admission.
//!
//! There is one entry for each instant at which requests were admitted. Entries contain the running total instead of their
//! own cost. So binary search finds the sum over any range, and the moment at which enough of it has left the window.

use std::collections::VecDeque;

use super::charge_mark::ChargeMark;
use super::error::LimitError;
use super::fixed_window::window_length;
use crate::decision::{Decision, Outcome};
use crate::time::{Micros, Timestamp};

/// The largest limit of a log. Each unit may need its own entry.
pub const LONGEST_LOG: u64 = 1_000_000;

const LEAST_ENTRIES: usize = 8;

/// At most `limit` in any window, exactly: for every instant `t`, the costs admitted in `(t − window, t]` sum to at most `limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    limit: u64,
    window: Micros,
}

/// The admissions of a key, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    entries: VecDeque<LogEntry>,
    /// The running total of the last entry dropped from the front.
    dropped: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogEntry {
    at: Timestamp,
    /// The running total, including this entry.
    total: u64,
}

impl Log {
    /// The bytes of the smallest log.
    pub(super) const LEAST_BYTES: usize = LEAST_ENTRIES * size_of::<LogEntry>();

    pub(super) fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<LogEntry>()
    }

    /// Resizes the memory of the log to `heap_bytes`, or to as much as its entries need.
    pub(crate) fn resize(&mut self, heap_bytes: usize) {
        let entries = heap_bytes / size_of::<LogEntry>();
        if entries > self.entries.capacity() {
            self.entries.reserve_exact(entries - self.entries.len());
        } else if entries < self.entries.capacity() {
            self.entries.shrink_to(entries);
        }
    }

    /// Merges every two entries into one with the date of the later one, so that half of the entries remain. All spending
    /// still counts, and for at least as long, so the log admits nothing more than before.
    pub(crate) fn coarsen(&mut self) {
        let last = self.entries.len().saturating_sub(1);
        let mut index = 0;
        // Entries carry running totals, so the later of two has the sum of both.
        self.entries.retain(|_| {
            index += 1;
            index % 2 == 0 || index > last
        });
    }

    /// The running total before the first entry, and the instant and running total of each.
    pub(crate) fn totals(&self) -> (u64, impl ExactSizeIterator<Item = (u64, u64)> + '_) {
        (self.dropped, self.entries.iter().map(|entry| (entry.at.as_micros(), entry.total)))
    }

    /// A log of these [totals](Log::totals). `None` if they do not rise, or instants are not in order.
    pub(crate) fn from_totals(dropped: u64, totals: Vec<(u64, u64)>) -> Option<Log> {
        let is_rising = totals.is_sorted_by(|one, next| one.0 <= next.0 && one.1 < next.1);
        let begins = totals.first().is_none_or(|(_, total)| *total > dropped);
        let entry = |(at, total)| LogEntry { at: Timestamp::from_micros(at), total };
        (is_rising && begins).then(|| Log { entries: totals.into_iter().map(entry).collect(), dropped })
    }

    /// The entries, oldest first, as instants and costs.
    pub fn entries(&self) -> impl Iterator<Item = (Timestamp, u64)> + '_ {
        let before = std::iter::once(self.dropped).chain(self.entries.iter().map(|entry| entry.total));
        self.entries.iter().zip(before).map(|(entry, before)| (entry.at, entry.total - before))
    }

    fn total(&self) -> u64 {
        self.entries.back().map_or(self.dropped, |last| last.total)
    }

    /// The running total just before the entry at `index`.
    fn total_before(&self, index: usize) -> u64 {
        index.checked_sub(1).map_or(self.dropped, |index| self.entries[index].total)
    }

    /// Refunds up to `cost` from the entry at `index`, and returns the amount.
    fn take_off(&mut self, index: usize, cost: u64) -> u64 {
        let given = cost.min(self.entries[index].total - self.total_before(index));
        for entry in self.entries.range_mut(index..) {
            entry.total -= given;
        }
        if self.entries[index].total == self.total_before(index) {
            self.entries.remove(index);
        }
        given
    }
}

impl SlidingLog {
    /// At most `limit` in any `window`. A limit of zero admits nothing.
    ///
    /// # Errors
    /// A window shorter than a millisecond or longer than 366 days, or a limit above [`LONGEST_LOG`].
    pub fn new(limit: u64, window: impl Into<Micros>) -> Result<SlidingLog, LimitError> {
        let window = window_length(window.into())?;
        if limit > LONGEST_LOG {
            let instead = "use a sliding window counter, which needs no log".to_owned();
            return Err(LimitError::CountTooLarge { limit, most: LONGEST_LOG, what: "a sliding log", instead });
        }
        Ok(SlidingLog { limit, window })
    }

    /// The most that any window admits.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The length of the window.
    #[must_use]
    pub const fn window(&self) -> Micros {
        self.window
    }

    /// The index of the first entry in the window that ends at `now`.
    fn first_held(&self, log: &Log, now: Timestamp) -> usize {
        log.entries.partition_point(|entry| entry.at.as_micros() + self.window.get() <= now.as_micros())
    }

    pub(super) fn evaluate(&self, log: &Log, cost: u64, now: Timestamp) -> Decision {
        let left_the_window = log.total_before(self.first_held(log, now));
        let spent = log.total() - left_the_window;
        let room = self.limit.saturating_sub(spent);
        let (outcome, remaining) = if cost > self.limit {
            (Outcome::TooLarge { max: self.limit }, room)
        } else if cost > room || spent > self.limit {
            let must_leave = left_the_window + (spent + cost - self.limit);
            let last_to_leave = log.entries.partition_point(|entry| entry.total < must_leave);
            (Outcome::Deny { retry_after: self.until_it_leaves(log, last_to_leave, now) }, room)
        } else {
            (Outcome::Allow { delay: Micros::ZERO }, room - cost)
        };
        let last = log.entries.back().map_or(now, |last| last.at);
        let reset_after = if cost > 0 && matches!(outcome, Outcome::Allow { .. }) {
            Micros::new(last.max(now).since(now).get() + self.window.get())
        } else if spent > 0 {
            self.until_it_leaves(log, log.entries.len() - 1, now)
        } else {
            Micros::ZERO
        };
        Decision { outcome, limit: self.limit, remaining, reset_after }
    }

    fn until_it_leaves(&self, log: &Log, index: usize, now: Timestamp) -> Micros {
        Micros::new((log.entries[index].at.as_micros() + self.window.get()).saturating_sub(now.as_micros()))
    }

    fn drop_expired(&self, log: &mut Log, now: Timestamp) {
        let held = self.first_held(log, now);
        log.dropped = log.total_before(held);
        log.entries.drain(..held);
    }

    /// The size of the log with room for one more entry, in bytes: half as many entries more if it is full, half as many if
    /// three quarters of it are vacant.
    pub(super) fn heap_bytes_for_another(&self, log: &Log, now: Timestamp) -> usize {
        // A charge drops expired entries before it adds one.
        let (entries, room) = (log.entries.len() - self.first_held(log, now), log.entries.capacity());
        let wanted = if entries == room {
            room + room / 2
        } else if entries < room / 4 {
            room / 2
        } else {
            room
        };
        wanted.max(LEAST_ENTRIES) * size_of::<LogEntry>()
    }

    pub(super) fn chargeable(&self, log: &Log, now: Timestamp) -> u64 {
        (2 * self.limit).saturating_sub(self.spent(log, now))
    }

    pub(super) fn charge(&self, log: &mut Log, cost: u64, now: Timestamp) -> ChargeMark {
        self.drop_expired(log, now);
        // The debt is at most one limit; this also bounds the length of the log.
        let cost = cost.min((2 * self.limit).saturating_sub(log.total() - log.dropped));
        let total = log.total() + cost;
        match log.entries.back_mut() {
            // Entries stay in order even if the clock steps back.
            Some(last) if last.at >= now => last.total = total,
            _ if cost > 0 => log.entries.push_back(LogEntry { at: now, total }),
            _ => {}
        }
        ChargeMark(log.entries.back().map_or(now, |last| last.at).as_micros(), 0)
    }

    /// A charge that has left the window is not refunded.
    pub(super) fn refund(&self, log: &mut Log, cost: u64, mark: ChargeMark, now: Timestamp) -> u64 {
        self.drop_expired(log, now);
        match log.entries.binary_search_by_key(&mark.0, |entry| entry.at.as_micros()) {
            Ok(index) => log.take_off(index, cost),
            Err(_) => 0,
        }
    }

    /// Refunds the youngest entry first, because it would count for longest.
    pub(super) fn credit(&self, log: &mut Log, cost: u64, now: Timestamp) -> u64 {
        self.drop_expired(log, now);
        let mut left = cost;
        while left > 0 && !log.entries.is_empty() {
            left -= log.take_off(log.entries.len() - 1, left);
        }
        cost - left
    }

    /// Whether entries lie more than a window ahead.
    pub(super) fn is_ahead(&self, log: &Log, now: Timestamp) -> bool {
        log.entries.back().is_some_and(|last| last.at > now + self.window)
    }

    /// Moves entries in the future to the present.
    pub(super) fn resync(&self, log: &mut Log, now: Timestamp) {
        let total = log.total();
        log.entries.truncate(log.entries.partition_point(|entry| entry.at < now));
        log.entries.push_back(LogEntry { at: now, total });
    }

    pub(super) fn is_recovered(&self, log: &Log, now: Timestamp) -> bool {
        self.first_held(log, now) == log.entries.len()
    }

    pub(super) fn spent(&self, log: &Log, now: Timestamp) -> u64 {
        log.total() - log.total_before(self.first_held(log, now))
    }
}
