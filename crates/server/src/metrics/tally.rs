//! How often each limit said what.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use tidegate_core::{Decision, Outcome, RuleId};
use tidegate_rules::{DecidedBy, Mode};

use super::denials::Denial;
use super::spread::Spread;

/// How much there was of each [`Said`].
pub(super) type Counts = [u64; 9];

/// What is counted of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Allowed,
    Denied,
    TooLarge,
    ShadowAllowed,
    ShadowDenied,
    ShadowTooLarge,
    /// Decided without the store; counted besides.
    WithoutStore,
    /// The costs that were admitted; counted besides.
    AdmittedCost,
    /// The rule refused requests that lack a part of its key. Seldom, so that it has no place in the threads' lines.
    Refused,
}

impl Said {
    #[inline]
    pub(super) const fn of(mode: Mode, decision: &Decision) -> Said {
        match (mode, &decision.outcome) {
            (Mode::Enforce, Outcome::Allow { .. }) => Said::Allowed,
            (Mode::Enforce, Outcome::Deny { .. }) => Said::Denied,
            (Mode::Enforce, Outcome::TooLarge { .. }) => Said::TooLarge,
            (Mode::Shadow | Mode::Off, Outcome::Allow { .. }) => Said::ShadowAllowed,
            (Mode::Shadow | Mode::Off, Outcome::Deny { .. }) => Said::ShadowDenied,
            (Mode::Shadow | Mode::Off, Outcome::TooLarge { .. }) => Said::ShadowTooLarge,
        }
    }
}

/// What is known of one limit. A clone counts together with it.
// In three pieces, so that the table has at hand what every decision needs.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    pub(super) id: RuleId,
    counts: Spread<8>,
    rest: Arc<Rest>,
}

#[derive(Debug, Default)]
struct Rest {
    /// The beat in which a denial was last looked at.
    looked: AtomicU64,
    /// [`Said::Refused`].
    refused: AtomicU64,
    /// Whether requests bring the limit, and no file has it.
    is_brought: AtomicBool,
    /// What [`Tally::denied_since`] said last, and the first denial since.
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    denied: u64,
    first: Option<Arc<Denial>>,
}

impl Tally {
    fn new(id: RuleId) -> Tally {
        Tally { id, counts: Spread::new(), rest: Arc::default() }
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        let spread = self.counts.counts();
        counts[..spread.len()].copy_from_slice(&spread);
        counts[Said::Refused as usize] = self.rest.refused.load(Ordering::Relaxed);
        counts
    }

    /// Counts a request that the rule refused.
    pub(super) fn refuse(&self) {
        self.rest.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a decision, which admitted a cost if the request may go ahead. Says whether it is the first denial of the beat.
    #[inline]
    pub(super) fn decided(&self, mode: Mode, decision: &Decision, by: DecidedBy, admitted: u64, beat: u64) -> bool {
        self.counts.add_each([(Said::of(mode, decision) as usize, 1), (Said::AdmittedCost as usize, admitted)]);
        if by != DecidedBy::Store {
            self.counts.add(Said::WithoutStore as usize, 1);
        }
        !decision.is_allowed()
            && self.rest.looked.load(Ordering::Relaxed) != beat
            && self.rest.looked.swap(beat, Ordering::Relaxed) != beat
    }

    /// Notes that requests bring the limit.
    #[inline]
    pub(super) fn is_brought(&self) {
        if !self.rest.is_brought.load(Ordering::Relaxed) {
            self.rest.is_brought.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn keep_first(&self, denial: Arc<Denial>) {
        let mut told = self.rest.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.first.get_or_insert(denial);
    }

    /// How many were denied since this was asked last, in any mode, and the first of them.
    pub(super) fn denied_since(&self) -> (u64, Option<Arc<Denial>>) {
        let counts = self.counts();
        let denied = [Said::Denied, Said::TooLarge, Said::ShadowDenied, Said::ShadowTooLarge];
        let denied: u64 = denied.iter().map(|&said| counts[said as usize]).sum();
        let mut told = self.rest.told.lock().unwrap_or_else(PoisonError::into_inner);
        let since = denied.saturating_sub(std::mem::replace(&mut told.denied, denied));
        (since, told.first.take())
    }
}

/// The most limits that are counted apart. What comes after them is counted together.
pub const MOST_LIMITS: usize = 4_096;
/// Twice as many places as limits, so that few look for the same one.
const SLOTS: usize = 2 * MOST_LIMITS;

/// The tallies of all limits that had anything to say.
///
/// Limits are found by the hash that their ids carry: nothing is hashed, and nobody waits.
pub(super) struct Tallies {
    table: ArcSwap<Table>,
    /// Which table it is, among all that there ever were.
    version: AtomicU64,
    other: Tally,
}

fn next_version() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The table that a thread used last, with its version. Looking whether it is still the right one costs less than asking for
/// the right one.
type Known = (u64, Option<Arc<Table>>);

thread_local! {
    static KNOWN: RefCell<Known> = const { RefCell::new((0, None)) };
}

struct Table {
    slots: Box<[OnceLock<Tally>]>,
    taken: AtomicUsize,
}

impl Table {
    fn new() -> Table {
        Table { slots: (0..SLOTS).map(|_| OnceLock::new()).collect(), taken: AtomicUsize::new(0) }
    }

    /// The tally of this id; `None` if there is none, and no room for it.
    #[inline]
    fn find(&self, id: &RuleId) -> Option<&Tally> {
        let start = first_slot(id);
        for step in 0..SLOTS {
            match self.slots[(start + step) % SLOTS].get() {
                Some(tally) if tally.id == *id => return Some(tally),
                Some(_) => {}
                None => return self.insert(&Tally::new(id.clone())),
            }
        }
        None
    }

    #[cold]
    fn insert(&self, tally: &Tally) -> Option<&Tally> {
        if self.taken.fetch_add(1, Ordering::Relaxed) >= MOST_LIMITS {
            self.taken.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let start = first_slot(&tally.id);
        for step in 0..SLOTS {
            let kept = self.slots[(start + step) % SLOTS].get_or_init(|| tally.clone());
            if kept.id == tally.id {
                if !Arc::ptr_eq(&kept.rest, &tally.rest) {
                    // Another thread was quicker.
                    self.taken.fetch_sub(1, Ordering::Relaxed);
                }
                return Some(kept);
            }
        }
        None
    }
}

/// The tallies of one moment.
#[derive(Clone, Copy)]
pub(super) struct All<'t> {
    table: &'t Table,
    other: &'t Tally,
}

impl<'t> All<'t> {
    /// That of a limit: its own, or that of all others if there is no room for it.
    #[inline]
    pub(super) fn of(self, id: &RuleId) -> &'t Tally {
        self.table.find(id).unwrap_or(self.other)
    }
}

fn first_slot(id: &RuleId) -> usize {
    id.stable_hash() as usize % SLOTS
}

impl Tallies {
    pub(super) fn new() -> Tallies {
        Tallies {
            table: ArcSwap::from_pointee(Table::new()),
            version: AtomicU64::new(next_version()),
            other: Tally::new(RuleId::new(OTHER)),
        }
    }

    /// Does something with the tally of a limit, which must not be to ask for another.
    #[inline]
    pub(super) fn with<T>(&self, id: &RuleId, act: impl Fn(&Tally) -> T) -> T {
        self.with_all(|all| act(all.of(id)))
    }

    /// Does something with the tallies of several limits, which must not be to ask for others.
    #[inline]
    pub(super) fn with_all<T>(&self, act: impl Fn(All<'_>) -> T) -> T {
        let version = self.version.load(Ordering::Acquire);
        let other = &self.other;
        let known = KNOWN.try_with(|known| {
            let mut known = known.try_borrow_mut().ok()?;
            if known.0 != version {
                *known = (version, Some(self.table.load_full()));
            }
            Some(act(All { table: known.1.as_ref()?, other }))
        });
        // A thread that is about to end knows nothing any more.
        known.ok().flatten().unwrap_or_else(|| act(All { table: &self.table.load(), other }))
    }

    /// All tallies, and that of all others if it counted anything.
    pub(super) fn each(&self, mut act: impl FnMut(&Tally)) {
        self.table.load().slots.iter().filter_map(OnceLock::get).for_each(&mut act);
        if self.other.counts() != Counts::default() {
            act(&self.other);
        }
    }

    /// Forgets the limits that `keep` does not want, but for those that requests bring. Counts that come in meanwhile are lost with them, or stay.
    pub(super) fn retain(&self, keep: impl Fn(&RuleId) -> bool) {
        let old = self.table.load();
        let table = Table::new();
        old.slots
            .iter()
            .filter_map(OnceLock::get)
            .filter(|tally| tally.rest.is_brought.load(Ordering::Relaxed) || keep(&tally.id))
            .for_each(|tally| {
                table.insert(tally);
            });
        self.table.store(Arc::new(table));
        self.version.store(next_version(), Ordering::Release);
    }
}

/// What limits that are not counted apart are called. No rule can have this name.
pub const OTHER: &str = "(other)";

#[cfg(test)]
mod tests {
    use super::*;

    fn count(tallies: &Tallies) -> (usize, u64) {
        let (mut apart, mut sum) = (0, 0);
        tallies.each(|tally| {
            apart += 1;
            sum += tally.counts()[Said::Allowed as usize];
        });
        (apart, sum)
    }

    #[test]
    fn limits_are_counted_apart_up_to_a_bound_and_none_is_lost() {
        let tallies = Tallies::new();
        for number in 0..3 * MOST_LIMITS {
            tallies.with(&RuleId::new(&number.to_string()), |tally| tally.counts.add(Said::Allowed as usize, 1));
        }
        assert_eq!(count(&tallies), (MOST_LIMITS + 1, 3 * MOST_LIMITS as u64));
    }

    #[test]
    fn threads_that_meet_over_a_new_limit_count_it_once() {
        let tallies = Tallies::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in 0..1_000 {
                        tallies.with(&RuleId::new(&number.to_string()), |tally| {
                            tally.counts.add(Said::Allowed as usize, 1);
                        });
                    }
                });
            }
        });
        assert_eq!(count(&tallies), (1_000, 4_000));
    }

    #[test]
    fn threads_that_come_and_go_lose_no_count() {
        let (tallies, owners) = (Tallies::new(), super::super::spread::owners());
        let id = RuleId::new("one");
        for _ in 0..20 {
            std::thread::scope(|scope| {
                for _ in 0..2 * owners + 2 {
                    scope.spawn(|| {
                        (0..100).for_each(|_| tallies.with(&id, |tally| tally.counts.add(Said::Allowed as usize, 1)));
                    });
                }
            });
        }
        assert_eq!(count(&tallies), (1, 20 * 100 * (2 * owners as u64 + 2)));
    }

    #[test]
    fn limits_that_are_gone_make_room() {
        let tallies = Tallies::new();
        for number in 0..MOST_LIMITS {
            tallies.with(&RuleId::new(&number.to_string()), |tally| tally.counts.add(Said::Allowed as usize, 1));
        }
        tallies.retain(|id| id.as_str() == "7");
        assert_eq!(count(&tallies), (1, 1));
        tallies.with(&RuleId::new("new"), |tally| tally.counts.add(Said::Allowed as usize, 1));
        assert_eq!(count(&tallies), (2, 2));
    }
}
