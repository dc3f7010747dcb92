//! Counters of each limit's decisions.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use tidegate_core::{Decision, Outcome, RuleId};
use tidegate_rules::{DecidedBy, Mode};

use super::denials::Denial;
use super::thread_counters::ThreadCounters;

/// Counts by [`LimitEvent`].
pub(super) type LimitEventCounts = [u64; 9];

/// Event that is counted for a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitEvent {
    Allowed,
    Denied,
    TooLarge,
    ShadowAllowed,
    ShadowDenied,
    ShadowTooLarge,
    /// Decided without the store; counted in addition to the outcome.
    WithoutStore,
    /// Admitted cost; counted in addition to the outcome.
    AdmittedCost,
    /// The rule refused a request without a part of its key. Too rare for a place in the per-thread counters.
    Refused,
}

impl LimitEvent {
    #[inline]
    pub(super) const fn of(mode: Mode, decision: &Decision) -> LimitEvent {
        match (mode, &decision.outcome) {
            (Mode::Enforce, Outcome::Allow { .. }) => LimitEvent::Allowed,
            (Mode::Enforce, Outcome::Deny { .. }) => LimitEvent::Denied,
            (Mode::Enforce, Outcome::TooLarge { .. }) => LimitEvent::TooLarge,
            (Mode::Shadow | Mode::Off, Outcome::Allow { .. }) => LimitEvent::ShadowAllowed,
            (Mode::Shadow | Mode::Off, Outcome::Deny { .. }) => LimitEvent::ShadowDenied,
            (Mode::Shadow | Mode::Off, Outcome::TooLarge { .. }) => LimitEvent::ShadowTooLarge,
        }
    }
}

/// Counters of one limit. Clones share them.
// In three parts, so that the table itself contains what every decision needs.
#[derive(Clone, Debug)]
pub(super) struct LimitCounters {
    pub(super) id: RuleId,
    counts: ThreadCounters<8>,
    cold: Arc<ColdCounters>,
}

#[derive(Debug, Default)]
struct ColdCounters {
    /// Epoch in which a denial was last inspected.
    inspected_in: AtomicU64,
    /// Count of [`LimitEvent::Refused`].
    refused: AtomicU64,
    /// Whether the limit comes with requests, and not from a file.
    is_inline: AtomicBool,
    /// Denials reported by [`LimitCounters::denied_since`] so far, and the first one since.
    reported: Mutex<DenialReport>,
}

#[derive(Debug, Default)]
struct DenialReport {
    denied: u64,
    first: Option<Arc<Denial>>,
}

impl LimitCounters {
    fn new(id: RuleId) -> LimitCounters {
        LimitCounters { id, counts: ThreadCounters::new(), cold: Arc::default() }
    }

    pub(super) fn counts(&self) -> LimitEventCounts {
        let mut counts = LimitEventCounts::default();
        let spread = self.counts.counts();
        counts[..spread.len()].copy_from_slice(&spread);
        counts[LimitEvent::Refused as usize] = self.cold.refused.load(Ordering::Relaxed);
        counts
    }

    /// Counts a request that the rule refused.
    pub(super) fn refuse(&self) {
        self.cold.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a decision, and the admitted cost. Returns whether it is the first denial of the epoch.
    #[inline]
    pub(super) fn decided(&self, mode: Mode, decision: &Decision, by: DecidedBy, admitted: u64, epoch: u64) -> bool {
        self.counts
            .add_each([(LimitEvent::of(mode, decision) as usize, 1), (LimitEvent::AdmittedCost as usize, admitted)]);
        if by != DecidedBy::Store {
            self.counts.add(LimitEvent::WithoutStore as usize, 1);
        }
        !decision.is_allowed()
            && self.cold.inspected_in.load(Ordering::Relaxed) != epoch
            && self.cold.inspected_in.swap(epoch, Ordering::Relaxed) != epoch
    }

    /// Marks the limit as one that comes with requests.
    #[inline]
    pub(super) fn mark_inline(&self) {
        if !self.cold.is_inline.load(Ordering::Relaxed) {
            self.cold.is_inline.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn keep_first(&self, denial: Arc<Denial>) {
        let mut reported = self.cold.reported.lock().unwrap_or_else(PoisonError::into_inner);
        reported.first.get_or_insert(denial);
    }

    /// Number of denials in any mode since the last call, and the first of them.
    pub(super) fn denied_since(&self) -> (u64, Option<Arc<Denial>>) {
        let counts = self.counts();
        let denied = [LimitEvent::Denied, LimitEvent::TooLarge, LimitEvent::ShadowDenied, LimitEvent::ShadowTooLarge];
        let denied: u64 = denied.iter().map(|&event| counts[event as usize]).sum();
        let mut reported = self.cold.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let since = denied.saturating_sub(std::mem::replace(&mut reported.denied, denied));
        (since, reported.first.take())
    }
}

/// Maximum number of limits with their own counters. Further limits share counters.
pub const MOST_LIMITS: usize = 4_096;
/// Twice as many slots as limits, so that probe sequences stay short.
const SLOTS: usize = 2 * MOST_LIMITS;

/// Counters of all limits that have decided a request.
///
/// Limits are found by the hash stored in their ids, without hashing or locks.
pub(super) struct LimitTable {
    table: ArcSwap<SlotTable>,
    /// Version of the table, unique in the process.
    version: AtomicU64,
    other: LimitCounters,
}

fn next_version() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Table that a thread used last, with its version. Comparing the version is cheaper than loading the table.
type CachedTable = (u64, Option<Arc<SlotTable>>);

thread_local! {
    static CACHED: RefCell<CachedTable> = const { RefCell::new((0, None)) };
}

struct SlotTable {
    slots: Box<[OnceLock<LimitCounters>]>,
    taken: AtomicUsize,
}

impl SlotTable {
    fn new() -> SlotTable {
        SlotTable { slots: (0..SLOTS).map(|_| OnceLock::new()).collect(), taken: AtomicUsize::new(0) }
    }

    /// Counters of this id, created if necessary; `None` if the table is full.
    #[inline]
    fn find(&self, id: &RuleId) -> Option<&LimitCounters> {
        let start = first_slot(id);
        for step in 0..SLOTS {
            match self.slots[(start + step) % SLOTS].get() {
                Some(counters) if counters.id == *id => return Some(counters),
                Some(_) => {}
                None => return self.insert(&LimitCounters::new(id.clone())),
            }
        }
        None
    }

    #[cold]
    fn insert(&self, counters: &LimitCounters) -> Option<&LimitCounters> {
        if self.taken.fetch_add(1, Ordering::Relaxed) >= MOST_LIMITS {
            self.taken.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let start = first_slot(&counters.id);
        for step in 0..SLOTS {
            let kept = self.slots[(start + step) % SLOTS].get_or_init(|| counters.clone());
            if kept.id == counters.id {
                if !Arc::ptr_eq(&kept.cold, &counters.cold) {
                    // Another thread has inserted the limit meanwhile.
                    self.taken.fetch_sub(1, Ordering::Relaxed);
                }
                return Some(kept);
            }
        }
        None
    }
}

/// Borrowed table of counters.
#[derive(Clone, Copy)]
pub(super) struct LimitTableRef<'t> {
    table: &'t SlotTable,
    other: &'t LimitCounters,
}

impl<'t> LimitTableRef<'t> {
    /// Counters of a limit: its own, or the shared ones if the table is full.
    #[inline]
    pub(super) fn of(self, id: &RuleId) -> &'t LimitCounters {
        self.table.find(id).unwrap_or(self.other)
    }
}

fn first_slot(id: &RuleId) -> usize {
    id.stable_hash() as usize % SLOTS
}

impl LimitTable {
    pub(super) fn new() -> LimitTable {
        LimitTable {
            table: ArcSwap::from_pointee(SlotTable::new()),
            version: AtomicU64::new(next_version()),
            other: LimitCounters::new(RuleId::new(OTHER)),
        }
    }

    /// Runs `act` on the counters of a limit. `act` must not access the table again.
    #[inline]
    pub(super) fn with<T>(&self, id: &RuleId, act: impl Fn(&LimitCounters) -> T) -> T {
        self.with_all(|all| act(all.of(id)))
    }

    /// Runs `act` on the counters of several limits. `act` must not access the table again.
    #[inline]
    pub(super) fn with_all<T>(&self, act: impl Fn(LimitTableRef<'_>) -> T) -> T {
        let version = self.version.load(Ordering::Acquire);
        let other = &self.other;
        let cached = CACHED.try_with(|cached| {
            let mut cached = cached.try_borrow_mut().ok()?;
            if cached.0 != version {
                *cached = (version, Some(self.table.load_full()));
            }
            Some(act(LimitTableRef { table: cached.1.as_ref()?, other }))
        });
        // The thread-local of a terminating thread has been destroyed.
        cached.ok().flatten().unwrap_or_else(|| act(LimitTableRef { table: &self.table.load(), other }))
    }

    /// Visits all counters, and the shared ones if they are not zero.
    pub(super) fn each(&self, mut act: impl FnMut(&LimitCounters)) {
        self.table.load().slots.iter().filter_map(OnceLock::get).for_each(&mut act);
        if self.other.counts() != LimitEventCounts::default() {
            act(&self.other);
        }
    }

    /// Removes the limits that `keep` rejects, except those that come with requests. Counts added meanwhile may be
    /// lost.
    pub(super) fn retain(&self, keep: impl Fn(&RuleId) -> bool) {
        let old = self.table.load();
        let table = SlotTable::new();
        old.slots
            .iter()
            .filter_map(OnceLock::get)
            .filter(|counters| counters.cold.is_inline.load(Ordering::Relaxed) || keep(&counters.id))
            .for_each(|counters| {
                table.insert(counters);
            });
        self.table.store(Arc::new(table));
        self.version.store(next_version(), Ordering::Release);
    }
}

/// Name for limits without their own counters. No rule can have this name.
pub const OTHER: &str = "(other)";

#[cfg(test)]
mod tests {
    use super::*;

    fn count(limits: &LimitTable) -> (usize, u64) {
        let (mut separate, mut sum) = (0, 0);
        limits.each(|counters| {
            separate += 1;
            sum += counters.counts()[LimitEvent::Allowed as usize];
        });
        (separate, sum)
    }

    #[test]
    fn limits_are_counted_apart_up_to_a_bound_and_none_is_lost() {
        let limits = LimitTable::new();
        for number in 0..3 * MOST_LIMITS {
            limits.with(&RuleId::new(&number.to_string()), |counters| {
                counters.counts.add(LimitEvent::Allowed as usize, 1);
            });
        }
        assert_eq!(count(&limits), (MOST_LIMITS + 1, 3 * MOST_LIMITS as u64));
    }

    #[test]
    fn threads_that_meet_over_a_new_limit_count_it_once() {
        let limits = LimitTable::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in 0..1_000 {
                        limits.with(&RuleId::new(&number.to_string()), |counters| {
                            counters.counts.add(LimitEvent::Allowed as usize, 1);
                        });
                    }
                });
            }
        });
        assert_eq!(count(&limits), (1_000, 4_000));
    }

    #[test]
    fn threads_that_come_and_go_lose_no_count() {
        let (limits, owners) = (LimitTable::new(), super::super::thread_counters::owners());
        let id = RuleId::new("one");
        for _ in 0..20 {
            std::thread::scope(|scope| {
                for _ in 0..2 * owners + 2 {
                    scope.spawn(|| {
                        (0..100).for_each(|_| {
                            limits.with(&id, |counters| counters.counts.add(LimitEvent::Allowed as usize, 1));
                        });
                    });
                }
            });
        }
        assert_eq!(count(&limits), (1, 20 * 100 * (2 * owners as u64 + 2)));
    }

    #[test]
    fn limits_that_are_gone_make_room() {
        let limits = LimitTable::new();
        for number in 0..MOST_LIMITS {
            limits.with(&RuleId::new(&number.to_string()), |counters| {
                counters.counts.add(LimitEvent::Allowed as usize, 1);
            });
        }
        limits.retain(|id| id.as_str() == "7");
        assert_eq!(count(&limits), (1, 1));
        limits.with(&RuleId::new("new"), |counters| counters.counts.add(LimitEvent::Allowed as usize, 1));
        assert_eq!(count(&limits), (2, 2));
    }
}
