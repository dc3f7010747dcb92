//! Costs that this process has admitted without the store, until they are reported to the store.
//!
//! Each key has its own state here, under the whole limit, which is charged only for admissions without the store. When the
//! store recovers, the spending that still counts is reported to it. This is less than the sum of all admissions, most of which
//! have recovered after a long outage.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ahash::RandomState;

use tidegate_core::limit::{Limit, State};
use tidegate_core::receipt::ReceiptId;
use tidegate_core::{Charge, Key, Receipt, RuleId, Timestamp};

/// Maximum number of keys with unreported costs.
const MOST_KEYS: usize = 1 << 16;
const PAGES: usize = 16;

type LedgerPage = HashMap<(RuleId, Key<'static>), Debt, RandomState>;

/// The cost admitted to one key, and its limit.
#[derive(Clone, Debug)]
struct Debt {
    limit: Limit,
    state: State,
}

impl Debt {
    fn owed(&self, now: Timestamp) -> u64 {
        let standing = self.limit.evaluate(&self.state, 0, now);
        standing.limit - standing.remaining.min(standing.limit)
    }
}

/// The report to the store about one key.
#[derive(Debug)]
pub(super) struct Owed {
    pub(super) rule: RuleId,
    pub(super) key: Key<'static>,
    debt: Debt,
}

impl Owed {
    pub(super) const fn limit(&self) -> &Limit {
        &self.debt.limit
    }

    /// The cost that still counts.
    pub(super) fn cost(&self, now: Timestamp) -> u64 {
        self.debt.owed(now)
    }
}

/// Costs admitted by this process alone, key by key.
pub(super) struct OutageLedger {
    pages: [Mutex<LedgerPage>; PAGES],
    hasher: RandomState,
    /// Keys that are about to be reported.
    outbox: Mutex<VecDeque<Owed>>,
    /// Number of admissions that were not recorded, because there was no room.
    unwritten: AtomicU64,
}

impl OutageLedger {
    pub(super) fn new() -> OutageLedger {
        OutageLedger {
            pages: std::array::from_fn(|_| Mutex::new(LedgerPage::default())),
            hasher: RandomState::new(),
            outbox: Mutex::new(VecDeque::new()),
            unwritten: AtomicU64::new(0),
        }
    }

    fn page(&self, of: &(RuleId, Key<'static>)) -> MutexGuard<'_, LedgerPage> {
        let number = usize::try_from(self.hasher.hash_one(of) % PAGES as u64).unwrap_or_default();
        lock(&self.pages[number])
    }

    /// Records a charge that was made without the store. Slots are not recorded: they are released in this process, and
    /// that release would not reach the store.
    pub(super) fn note(&self, charge: &Charge<'_>, now: Timestamp) {
        if charge.cost == 0 || charge.limit.holds_slots() {
            return;
        }
        let of = (charge.rule.clone(), charge.key.owned());
        let mut page = self.page(&of);
        if page.len() >= MOST_KEYS / PAGES && !page.contains_key(&of) {
            page.retain(|_, debt| debt.owed(now) > 0);
            if page.len() >= MOST_KEYS / PAGES {
                self.unwritten.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        let debt = page.entry(of).or_insert_with(|| Debt { limit: *charge.limit, state: charge.limit.fresh() });
        if debt.limit != *charge.limit {
            *debt = Debt { limit: *charge.limit, state: charge.limit.carry(&debt.limit, &debt.state, now) };
        }
        debt.limit.resync(&mut debt.state, now);
        debt.limit.charge(&mut debt.state, charge.cost, now, ReceiptId::ANONYMOUS);
    }

    /// Replaces recorded estimates by actual costs. Costs that were already reported, or wait in the outbox, do not change.
    pub(super) fn settle(&self, receipt: &Receipt, actual: &[u64], now: Timestamp) {
        for (held, &actual) in receipt.held.iter().zip(actual) {
            let of = (held.rule.clone(), held.key.clone());
            if let Entry::Occupied(mut debt) = self.page(&of).entry(of) {
                let Debt { limit, state } = debt.get_mut();
                limit.credit(state, held.taken.saturating_sub(actual), now);
                limit.charge(state, actual.saturating_sub(held.taken), now, ReceiptId::ANONYMOUS);
            }
        }
    }

    /// The next key to report. It is not reported again unless it is [put back](OutageLedger::put_back).
    pub(super) fn next(&self) -> Option<Owed> {
        let mut outbox = lock(&self.outbox);
        if outbox.is_empty() {
            let page = self.pages.iter().map(|page| std::mem::take(&mut *lock(page))).find(|page| !page.is_empty())?;
            outbox.extend(page.into_iter().map(|((rule, key), debt)| Owed { rule, key, debt }));
        }
        outbox.pop_front()
    }

    pub(super) fn put_back(&self, owed: Owed) {
        lock(&self.outbox).push_front(owed);
    }

    /// The number of keys to report.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.outbox).len() + self.pages.iter().map(|page| lock(page).len()).sum::<usize>()
    }

    pub(super) fn unwritten(&self) -> u64 {
        self.unwritten.load(Ordering::Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Micros;

    fn told(ledger: &OutageLedger, now: Timestamp) -> Vec<(String, u64)> {
        let mut told: Vec<_> = std::iter::from_fn(|| ledger.next())
            .map(|owed| (format!("{} {:?}", owed.rule, owed.key), owed.cost(now)))
            .collect();
        told.sort();
        told
    }

    #[test]
    fn recovered_charges_are_not_owed() {
        let (ledger, rule, key) = (OutageLedger::new(), RuleId::new("r"), Key::from("alice"));
        let limit: Limit = "10/s".parse().unwrap();
        let start = Timestamp::from_secs(1_000);
        for tenth in 0..100 {
            ledger.note(&Charge::new(&rule, &key, &limit), start + Micros::from_millis(100 * tenth));
        }
        assert_eq!(ledger.waiting(), 1);
        assert_eq!(told(&ledger, start + Micros::from_millis(9_900)), [("r Key[\"alice\"]".to_owned(), 1)]);
        assert_eq!((ledger.waiting(), told(&ledger, start)), (0, Vec::new()));
    }

    #[test]
    fn keys_are_told_of_once_and_apart() {
        let (ledger, rule) = (OutageLedger::new(), RuleId::new("r"));
        let limit: Limit = "fixed 10/h".parse().unwrap();
        let now = Timestamp::from_secs(1_000);
        for (name, cost) in [("a", 2), ("b", 3), ("a", 4)] {
            ledger.note(&Charge::new(&rule, &Key::from(name), &limit).cost(cost), now);
        }
        let owed = ledger.next().unwrap();
        ledger.put_back(owed);
        assert_eq!(told(&ledger, now), [("r Key[\"a\"]".to_owned(), 6), ("r Key[\"b\"]".to_owned(), 3)]);
    }

    #[test]
    fn a_flood_of_keys_fills_the_ledger_and_no_more() {
        let (ledger, rule) = (OutageLedger::new(), RuleId::new("r"));
        let limit: Limit = "fixed 10/h".parse().unwrap();
        let charge = |number: usize, now| {
            ledger.note(&Charge::new(&rule, &Key::of([number.to_string()]), &limit), Timestamp::from_secs(now));
        };
        (0..MOST_KEYS + 10_000).for_each(|number| charge(number, 1_000));
        assert!(ledger.waiting() <= MOST_KEYS && ledger.unwritten() >= 10_000);
        // An hour later no recorded cost counts any longer, so there is room again.
        charge(usize::MAX, 5_000);
        assert!(ledger.waiting() < MOST_KEYS);
    }

    #[test]
    fn slots_are_not_written_down() {
        let (ledger, rule, key) = (OutageLedger::new(), RuleId::new("r"), Key::from("alice"));
        ledger.note(&Charge::new(&rule, &key, &"concurrent 5".parse().unwrap()), Timestamp::from_secs(1));
        assert_eq!(ledger.waiting(), 0);
    }
}
