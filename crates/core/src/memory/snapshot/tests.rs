use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use proptest::prelude::*;

use super::*;
use crate::charge::Charge;
use crate::clock::{Clock, ManualClock};
use crate::contract::Subject;
use crate::decision::Decision;
use crate::key::{Key, RuleId};
use crate::lease;
use crate::limit::Limit;
use crate::memory::MemoryStore;
use crate::now_or_later::{NowOrLater, now_or_never};
use crate::question::Question;
use crate::receipt::{Receipt, Settlement};
use crate::store::{Adjustment, Answer, Decisions, Store, StoreError};
use crate::time::{Micros, Timestamp};

const KEYS: usize = 100_000;

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_700_000_000))
}

fn saved<C: Clock>(store: &MemoryStore<C>) -> Vec<u8> {
    let mut bytes = Vec::new();
    store.save(&mut bytes, b"a note").unwrap();
    bytes
}

fn restored(clock: &ManualClock, keys: usize, mut bytes: &[u8]) -> Restored<ManualClock> {
    MemoryStore::restore(clock.clone(), keys, &mut bytes).unwrap()
}

/// A store that is saved and restored before every call.
struct Reloading {
    store: Mutex<MemoryStore<ManualClock>>,
    clock: ManualClock,
    /// Calls that found keys in the store, and those of them before which it was replaced.
    calls: AtomicUsize,
    replacements: AtomicUsize,
}

impl Reloading {
    fn new() -> Reloading {
        let clock = clock();
        let store = Mutex::new(MemoryStore::with_clock_and_cap(clock.clone(), KEYS));
        Reloading { store, clock, calls: AtomicUsize::new(0), replacements: AtomicUsize::new(0) }
    }

    fn reloaded(&self) -> MutexGuard<'_, MemoryStore<ManualClock>> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        // Saved and restored as of long ago, so that recovered keys are kept: the traces of the contract also turn the
        // clock back and change limits, which distinguishes recovered keys from new ones. If a key is left out
        // nevertheless, the store is not replaced.
        let now = self.clock.now();
        self.clock.set(Timestamp::from_secs(1));
        let Restored { store: next, dropped, .. } = restored(&self.clock, KEYS, &saved(&store));
        self.clock.set(now);
        assert_eq!(dropped, 0);
        let (keys, kept) = (store.stats().keys, next.stats().keys);
        self.calls.fetch_add(usize::from(keys > 0), Ordering::Relaxed);
        if kept == keys {
            *store = next;
            self.replacements.fetch_add(usize::from(keys > 0), Ordering::Relaxed);
        }
        store
    }
}

impl Drop for Reloading {
    fn drop(&mut self) {
        let (calls, replacements) = (*self.calls.get_mut(), *self.replacements.get_mut());
        let is_tested = calls == 0 || replacements > calls / 2;
        assert!(is_tested || std::thread::panicking(), "replaced before {replacements} of {calls} calls");
    }
}

impl Store for Reloading {
    fn decide_into(
        &self,
        question: Question<'_>,
        answer: &mut Answer,
    ) -> NowOrLater<Result<(), StoreError>, impl Future<Output = Result<(), StoreError>> + Send> {
        NowOrLater::ready(self.reloaded().decide_into(question, answer))
    }

    async fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Result<Settlement, StoreError> {
        Ok(self.reloaded().settle(receipt, actual))
    }

    async fn renew(&self, receipt: &Receipt) -> Result<bool, StoreError> {
        Ok(self.reloaded().renew(receipt))
    }

    async fn peek(&self, charges: &[Charge<'_>]) -> Result<Decisions, StoreError> {
        Ok(self.reloaded().peek(charges))
    }

    async fn adjust(&self, charge: &Charge<'_>, adjustment: Adjustment) -> Result<Decision, StoreError> {
        Ok(self.reloaded().adjust(charge, adjustment))
    }

    async fn reset(&self, rule: &RuleId, key: &Key<'_>) -> Result<bool, StoreError> {
        Ok(self.reloaded().reset(rule, key))
    }

    async fn lease(&self, requests: &[lease::LeaseRequest<'_>]) -> Result<lease::Grants, StoreError> {
        Ok(self.reloaded().lease(requests))
    }
}

struct ReloadingSubject(Reloading);

impl Subject for ReloadingSubject {
    type Store = Reloading;

    fn store(&self) -> &Reloading {
        &self.0
    }

    fn clock(&self) -> &ManualClock {
        &self.0.clock
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        now_or_never(future).expect("a store in memory never waits")
    }
}

mod contract_through_snapshots {
    use super::{Reloading, ReloadingSubject};

    crate::store_contract!(ReloadingSubject(Reloading::new()));
}

const LIMITS: [&str; 9] = [
    "20/s burst 50",
    "gcra 5/s burst 12",
    "meter 50/min",
    "shaper 5/s queue 9",
    "fixed 70/min",
    "fixed 900/month calendar",
    "sliding 60/min",
    "sliding 60/min parts 6",
    "log 40/min",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_store_that_is_restored_decides_as_if_it_had_never_stopped(
        steps in prop::collection::vec((0..LIMITS.len() + 2, 0_u8..5, 1_u64..6, 0_u64..400, 0_u8..12), 1..150),
    ) {
        let clock = clock();
        let names = [&LIMITS[..], &["concurrent 4 ttl 2s", "fixed 30/min"]].concat();
        let limits: Vec<Limit> = names.iter().map(|limit| limit.parse().unwrap()).collect();
        let (slots, reserved) = (LIMITS.len(), LIMITS.len() + 1);
        let mut receipts = Vec::new();
        let lasting = MemoryStore::with_clock_and_cap(clock.clone(), KEYS);
        let mut restarted = MemoryStore::with_clock_and_cap(clock.clone(), KEYS);
        for (limit, key, cost, millis, restart) in steps {
            clock.advance(Micros::from_millis(millis));
            if restart == 0 {
                restarted = restored(&clock, KEYS, &saved(&restarted)).store;
            }
            if restart < 4 && !receipts.is_empty() {
                let (one, other, actual): (Receipt, Receipt, u64) = receipts.swap_remove(usize::from(key) % receipts.len());
                if restart == 1 {
                    prop_assert_eq!(lasting.renew(&one), restarted.renew(&other));
                }
                prop_assert_eq!(lasting.settle(&one, &[actual]), restarted.settle(&other, &[actual]));
            }
            let (rule, key) = (RuleId::new(names[limit]), Key::of([&[key]]));
            let mut charge = Charge::new(&rule, &key, &limits[limit]).cost(if limit == slots { 1 } else { cost });
            if limit == reserved {
                charge = charge.reserve(Micros::from_secs(3));
            }
            let (one, other) = (lasting.decide(&[charge]).unwrap(), restarted.decide(&[charge]).unwrap());
            prop_assert_eq!(one.decisions, other.decisions);
            prop_assert_eq!(one.receipt.is_some(), other.receipt.is_some());
            if let (Some(one), Some(other)) = (one.receipt, other.receipt) {
                receipts.push((one, other, if limit == slots { 0 } else { cost / 2 }));
            }
        }
        // Recovered keys are left out.
        prop_assert!(restored(&clock, KEYS, &saved(&lasting)).store.stats().used <= lasting.stats().used);
    }
}

/// A store with state of every kind, and the receipts of a reservation and of a slot.
fn filled(clock: &ManualClock) -> (MemoryStore<ManualClock>, Receipt, Receipt) {
    let store = MemoryStore::with_clock_and_cap(clock.clone(), KEYS);
    for limit in LIMITS {
        let (rule, limit) = (RuleId::new(limit), limit.parse().unwrap());
        for key in ["alice", "bob"] {
            assert!(store.decide(&[Charge::new(&rule, &Key::from(key), &limit)]).unwrap().is_allowed());
        }
    }
    let (rule, key) = (RuleId::new("held"), Key::from("alice"));
    let (slots, tokens): (Limit, Limit) = ("concurrent 2 ttl 1min".parse().unwrap(), "fixed 100/day".parse().unwrap());
    let slot = store.decide(&[Charge::new(&rule, &key, &slots)]).unwrap().receipt.unwrap();
    let other = RuleId::new("reserved");
    let reserved = Charge::new(&other, &key, &tokens).cost(60).reserve(Micros::from_secs(60));
    let reserved = store.decide(&[reserved]).unwrap().receipt.unwrap();
    (store, reserved, slot)
}

#[test]
fn reservations_and_slots_are_settled_once_after_a_restart() {
    let clock = clock();
    let (store, reserved, slot) = filled(&clock);
    let bytes = saved(&store);
    let Restored { store, counts, note, saved_at, .. } = restored(&clock, KEYS, &bytes);
    assert_eq!((counts.keys, counts.reservations), (2 * LIMITS.len() as u64 + 2, 1));
    assert_eq!((note.as_slice(), saved_at), (&b"a note"[..], clock.now()));
    assert_eq!(store.settle(&reserved, &[10]), Settlement::Settled { given_back: 50, charged: 0 });
    assert_eq!(store.settle(&reserved, &[10]), Settlement::Gone);
    assert!(store.renew(&slot));
    assert_eq!(store.settle(&slot, &[0]), Settlement::Settled { given_back: 1, charged: 0 });
    assert_eq!(store.settle(&slot, &[0]), Settlement::Gone);
    // Receipt ids are never reused.
    let (rule, limit) = (RuleId::new("held"), "concurrent 2 ttl 1min".parse().unwrap());
    let next = store.decide(&[Charge::new(&rule, &Key::from("alice"), &limit)]).unwrap().receipt.unwrap();
    assert!(next.id != slot.id && next.id != reserved.id);
    // State that has expired or recovered meanwhile does not come back.
    clock.advance(Micros::from_secs(40 * 86_400));
    assert_eq!(restored(&clock, KEYS, &bytes).store.settle(&reserved, &[10]), Settlement::Gone);
    let later = restored(&clock, KEYS, &saved(&restored(&clock, KEYS, &bytes).store));
    assert_eq!((later.counts.keys, later.counts.reservations), (0, 0));
}

#[test]
fn bytes_that_are_not_a_whole_snapshot_are_refused() {
    let clock = clock();
    let bytes = saved(&filled(&clock).0);
    let read = |mut bytes: &[u8]| MemoryStore::restore(clock.clone(), KEYS, &mut bytes).map(|_| ());
    for end in 0..bytes.len() {
        let error = read(&bytes[..end]).unwrap_err();
        let is_expected = match error {
            SnapshotError::Foreign => end < MAGIC.len(),
            SnapshotError::Torn => end >= MAGIC.len(),
            _ => false,
        };
        assert!(is_expected, "{end}: {error}");
    }
    for index in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[index] ^= 0x10;
        assert!(read(&damaged).is_err(), "{index}");
    }
    assert!(matches!(read(b"{\"json\": true, \"more\": 1}"), Err(SnapshotError::Foreign)));
    let mut newer = bytes.clone();
    newer[MAGIC.len()] = 2;
    let error = read(&newer).unwrap_err();
    assert!(
        error.to_string().starts_with("it has version 2 of the format, and this program reads version 1"),
        "{error}"
    );
    assert!(read(&bytes).is_ok());
}

#[test]
fn a_smaller_store_takes_what_it_has_room_for() {
    let clock = clock();
    let store = MemoryStore::with_clock_and_cap(clock.clone(), KEYS);
    let (rule, limit) = (RuleId::new("rule"), "fixed 5/day".parse().unwrap());
    for number in 0..20_000_u32 {
        store.decide(&[Charge::new(&rule, &Key::of([&number.to_le_bytes()]), &limit)]).unwrap();
    }
    let bytes = saved(&store);
    let same = restored(&clock, KEYS, &bytes);
    assert_eq!((same.counts.keys, same.dropped), (20_000, 0));
    assert_eq!(same.store.usage_by_rule(), store.usage_by_rule());
    let smaller = restored(&clock, 1_000, &bytes);
    assert_eq!((smaller.counts.keys, smaller.dropped), (20_000, 19_000));
    assert_eq!(smaller.store.stats().used, 1_000);
    // With more shards, keys would not be found.
    let larger = restored(&clock, 10 * KEYS, &bytes);
    for number in 0..20_000_u32 {
        let key = Key::of([&number.to_le_bytes()]);
        assert_eq!(larger.store.peek_one(&Charge::new(&rule, &key, &limit).cost(0)).remaining, 4);
    }
}

#[test]
fn a_store_is_saved_while_it_is_used() {
    let clock = clock();
    let store = MemoryStore::with_clock_and_cap(clock.clone(), KEYS);
    let (rule, limit): (_, Limit) = (RuleId::new("rule"), "fixed 1000000/day".parse().unwrap());
    std::thread::scope(|scope| {
        for thread in 0..2_u32 {
            let (store, rule, limit) = (&store, &rule, &limit);
            scope.spawn(move || {
                for number in 0..40_000_u32 {
                    let key = Key::of([(number % 5_000 * 2 + thread).to_le_bytes()]);
                    store.decide(&[Charge::new(rule, &key, limit)]).unwrap();
                }
            });
        }
        for _ in 0..20 {
            let restored = restored(&clock, KEYS, &saved(&store));
            assert!(restored.counts.keys <= 10_000);
        }
    });
    let whole = restored(&clock, KEYS, &saved(&store)).store;
    for number in 0..10_000_u32 {
        let key = Key::of([number.to_le_bytes()]);
        assert_eq!(whole.peek_one(&Charge::new(&rule, &key, &limit).cost(0)).remaining, 1_000_000 - 8);
    }
}
