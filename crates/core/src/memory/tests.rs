use super::*;
use crate::clock::ManualClock;
use crate::contract::{Subject, races};
use crate::limit::Limit;
use crate::now_or_later::now_or_never;
use crate::time::Micros;

struct InMemory {
    store: MemoryStore<ManualClock>,
    clock: ManualClock,
}

impl InMemory {
    fn new() -> InMemory {
        let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
        InMemory { store: MemoryStore::with_clock(clock.clone()), clock }
    }
}

fn finish<F: Future>(future: F) -> F::Output {
    now_or_never(future).expect("a store in memory never waits")
}

impl Subject for InMemory {
    type Store = MemoryStore<ManualClock>;

    fn store(&self) -> &Self::Store {
        &self.store
    }

    fn clock(&self) -> &ManualClock {
        &self.clock
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        finish(future)
    }
}

crate::store_contract!(InMemory::new());

mod leases;

/// A store that checks first and charges later, as if the lock were released in between.
struct TornStore(InMemory);

impl Store for TornStore {
    fn decide_into(
        &self,
        question: Question<'_>,
        answer: &mut Answer,
    ) -> NowOrLater<Result<(), StoreError>, impl Future<Output = Result<(), StoreError>> + Send> {
        answer.decisions = self.0.store.peek(question.counting);
        std::thread::yield_now();
        if answer.is_allowed() {
            for charge in question.counting {
                self.0.store.adjust(charge, Adjustment::Penalty);
            }
        }
        NowOrLater::ready(Ok(()))
    }

    async fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Result<Settlement, StoreError> {
        Ok(self.0.store.settle(receipt, actual))
    }

    async fn renew(&self, receipt: &Receipt) -> Result<bool, StoreError> {
        Ok(self.0.store.renew(receipt))
    }

    async fn peek(&self, charges: &[Charge<'_>]) -> Result<Decisions, StoreError> {
        Ok(self.0.store.peek(charges))
    }

    async fn adjust(&self, charge: &Charge<'_>, adjustment: Adjustment) -> Result<Decision, StoreError> {
        Ok(self.0.store.adjust(charge, adjustment))
    }

    async fn reset(&self, rule: &RuleId, key: &Key<'_>) -> Result<bool, StoreError> {
        Ok(self.0.store.reset(rule, key))
    }
}

struct TornSubject(TornStore);

impl Subject for TornSubject {
    type Store = TornStore;

    fn store(&self) -> &TornStore {
        &self.0
    }

    fn clock(&self) -> &ManualClock {
        &self.0.0.clock
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        finish(future)
    }
}

#[test]
#[should_panic(expected = "left: ")]
fn the_check_for_races_catches_a_store_that_checks_before_it_charges() {
    races::parallel_requests_are_admitted_exactly_up_to_the_limit(&TornSubject(TornStore(InMemory::new())));
}

fn small(max_keys: usize) -> (MemoryStore<ManualClock>, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    (MemoryStore::with_clock_and_cap(clock.clone(), max_keys), clock)
}

#[test]
fn keys_that_have_recovered_are_swept_in_passing() {
    let (store, clock) = small(100_000);
    let (rule, limit) = (RuleId::new("rule"), "1/s".parse().unwrap());
    for number in 0..50_000 {
        store.decide(&[Charge::new(&rule, &Key::from(&format!("old {number}")), &limit)]).unwrap();
    }
    assert_eq!(store.stats().keys, 50_000);
    clock.advance(Micros::from_secs(10));
    for number in 0..50_000 {
        store.decide(&[Charge::new(&rule, &Key::from(&format!("new {number}")), &limit)]).unwrap();
    }
    let stats = store.stats();
    assert!(stats.keys < 60_000, "{stats:?}");
    assert_eq!(stats.keys as u64 + stats.swept, 100_000);
    assert_eq!((stats.evicted, stats.overflowed), (0, 0));
}

#[test]
fn writes_to_known_keys_sweep_too_and_give_memory_back() {
    let (store, clock) = small(100_000);
    let (rule, limit) = (RuleId::new("rule"), "1/s".parse().unwrap());
    for number in 0..50_000 {
        store.decide(&[Charge::new(&rule, &Key::from(&format!("old {number}")), &limit)]).unwrap();
    }
    let full = store.stats().table_bytes;
    for _ in 0..4000 {
        clock.advance(Micros::from_secs(10));
        for number in 0..1_000 {
            store.decide(&[Charge::new(&rule, &Key::from(&format!("old {number}")), &limit)]).unwrap();
        }
    }
    let stats = store.stats();
    assert!(stats.keys < 5_000, "{stats:?}");
    assert!(stats.table_bytes < full / 3, "{stats:?}");
}

#[test]
fn past_the_cap_recovered_keys_make_room_and_debtors_stay() {
    let (store, clock) = small(1_000);
    let rule = RuleId::new("rule");
    let (slow, quick) = ("1/h".parse().unwrap(), "1/s".parse().unwrap());
    let debtors: Vec<_> = (0..500).map(|number| Key::of([format!("debtor {number}")])).collect();
    for debtor in &debtors {
        assert!(store.decide(&[Charge::new(&rule, debtor, &slow)]).unwrap().is_allowed());
    }
    let flood = |from: usize| {
        for number in from..from + 100_000 {
            store.decide(&[Charge::new(&rule, &Key::from(&format!("flood {number}")), &quick)]).unwrap();
        }
    };
    flood(0);
    let stats = store.stats();
    assert!(stats.keys <= 1_001 && stats.overflowed > 90_000, "{stats:?}");
    clock.advance(Micros::from_secs(2));
    flood(100_000);
    let stats = store.stats();
    assert!(stats.keys <= 1_001 && stats.evicted > 0, "{stats:?}");
    for debtor in &debtors {
        assert!(!store.decide(&[Charge::new(&rule, debtor, &slow)]).unwrap().is_allowed());
    }
}

#[test]
fn keys_that_found_no_room_share_one_bucket_per_rule() {
    // The first rule takes ten, and the second takes three of the remaining ones.
    let (store, _clock) = small(15);
    let (one, other, limit) = (RuleId::new("one"), RuleId::new("other"), "1/h burst 3".parse().unwrap());
    let admitted = |rule: &RuleId, name: &str, number: usize| {
        store.decide(&[Charge::new(rule, &Key::from(&format!("{name} {number}")), &limit)]).unwrap().is_allowed()
    };
    for number in 0..10 {
        assert!(admitted(&one, "known", number));
    }
    assert_eq!((0..100).filter(|&number| admitted(&one, "new", number)).count(), 3);
    assert_eq!((0..100).filter(|&number| admitted(&other, "new", number)).count(), 3 + 3);
    assert!(admitted(&one, "known", 0), "a key that is known keeps its own bucket");
    assert_eq!(store.stats().keys, 10 + 3 + 2);
    let usage: Vec<_> = store.usage_by_rule().into_iter().map(|usage| (usage.rule, usage.used)).collect();
    assert!(usage.len() == 2 && usage.contains(&(Some(one), 10)) && usage.contains(&(Some(other), 3)), "{usage:?}");
}

#[test]
fn a_flood_under_one_rule_leaves_the_keys_of_another_apart() {
    let (store, _clock) = small(20_000);
    let (flood, login) = (RuleId::new("by-api-key"), RuleId::new("login"));
    let (long, limit) = ("1000/day".parse().unwrap(), "5/min".parse().unwrap());
    for number in 0..30_000 {
        let key = Key::from(&format!("random {number}")).owned();
        assert!(number > 1_000 || store.decide(&[Charge::new(&flood, &key, &long)]).unwrap().is_allowed());
        store.decide(&[Charge::new(&flood, &key, &long)]).unwrap();
    }
    assert!(store.stats().overflowed > 0);
    for number in 0..3_000 {
        let address = Key::from(&format!("address {number}")).owned();
        assert!(store.decide(&[Charge::new(&login, &address, &limit)]).unwrap().is_allowed(), "address {number}");
    }
    let stats = store.stats();
    assert!(stats.used <= stats.max_keys && stats.max_keys == 20_000, "{stats:?}");
}

#[test]
fn a_hold_on_a_shared_bucket_is_refunded_to_it() {
    let (store, _clock) = small(600);
    let (rule, limit) = (RuleId::new("rule"), "1/h burst 3".parse().unwrap());
    let slots = "concurrent 2 ttl 1h".parse().unwrap();
    let slots_rule = RuleId::new("slots");
    for rule in [&rule, &slots_rule] {
        let overflowed = store.overflowed();
        for number in (0..).take_while(|_| store.overflowed() == overflowed) {
            let one_off = Key::from(&format!("one-off {number}")).owned();
            store.peek(&[Charge::new(rule, &one_off, &limit)]);
            if store.overflowed() == overflowed {
                store.decide(&[Charge::new(rule, &one_off, &limit)]).unwrap();
            }
        }
    }
    let key = Key::from("new");
    let charges = [
        Charge::new(&rule, &key, &limit).cost(3).reserve(Micros::from_secs(60)),
        Charge::new(&slots_rule, &key, &slots).cost(2),
    ];
    let receipt = store.decide(&charges).unwrap().receipt.unwrap();
    assert!(!store.decide(&charges).unwrap().is_allowed());
    assert!(store.renew(&receipt));
    assert_eq!(store.settle(&receipt, &[0, 0]), Settlement::Settled { given_back: 5, charged: 0 });
    assert!(store.decide(&charges).unwrap().is_allowed());
}

#[test]
fn reservations_are_bounded_too() {
    let (store, clock) = small(300);
    let (rule, limit) = (RuleId::new("rule"), "1000/h".parse().unwrap());
    let key = Key::from("alice");
    let charge = Charge::new(&rule, &key, &limit).reserve(Micros::from_secs(60));
    let held = (0..300).take_while(|_| store.decide(&[charge]).is_ok()).count();
    assert_eq!(store.decide(&[charge]), Err(StoreError::Full));
    assert_eq!(store.stats().reservations, held);
    let units = 1 + held * usize::try_from(holds::Holds::UNITS).unwrap();
    assert_eq!(store.stats().used, units);
    assert!((150..=201).contains(&units), "{units}");
    let other = RuleId::new("other");
    let other = Charge { rule: &other, ..charge };
    assert!(store.decide(&[other]).unwrap().is_allowed(), "another rule has room");
    clock.advance(Micros::from_secs(60));
    assert!(store.decide(&[charge]).unwrap().is_allowed(), "expired ones make room");
}

#[test]
fn keys_under_any_number_of_limits_are_swept() {
    let (store, clock) = small(8_000);
    let rule = RuleId::new("rule");
    for tokens in 1..=500 {
        let (key, limit) =
            (Key::from(&format!("old {tokens}")).owned(), format!("{tokens}/h burst 2").parse().unwrap());
        assert!(store.decide(&[Charge::new(&rule, &key, &limit)]).unwrap().is_allowed());
    }
    assert_eq!(store.stats().keys, 500);
    clock.advance(Micros::from_secs(3_600));
    let limit = "1/h".parse().unwrap();
    for number in 0..1_000 {
        store.decide(&[Charge::new(&rule, &Key::from(&format!("new {number}")), &limit)]).unwrap();
    }
    let stats = store.stats();
    assert_eq!((stats.keys, stats.swept), (1_000, 500));
}

#[test]
fn limits_that_no_key_is_under_any_more_are_forgotten() {
    let (store, _clock) = small(8);
    let (rule, key) = (RuleId::new("rule"), Key::from("alice"));
    for tokens in 1..5_000 {
        let limit = format!("{tokens}/h burst 2").parse().unwrap();
        store.decide(&[Charge::new(&rule, &key, &limit)]).unwrap();
    }
    assert!(store.lock_number(0).known_limits() <= 17);
}

/// A check reads without the lock. Its read is valid only if the shard has not changed since.
#[test]
fn any_change_of_a_shard_invalidates_a_read_without_the_lock() {
    let (store, _clock) = small(100);
    let (rule, limit) = (RuleId::new("rule"), "1/h burst 9".parse().unwrap());
    let (key, neighbour) = (Key::from("alice"), Key::from("bob"));
    let take = |key: &Key<'_>| store.decide(&[Charge::new(&rule, key, &limit)]).unwrap();
    take(&key);
    let address = store.fingerprints.hash(key.borrow()).under(&rule);
    let fingerprint = store.fingerprints.of(&rule, key.borrow());
    let penalize = |key: &Key<'_>| store.adjust(&Charge::new(&rule, key, &limit), Adjustment::Penalty);
    let changes: [&dyn Fn() -> bool; 4] =
        [&|| take(&key).is_allowed(), &|| take(&neighbour).is_allowed(), &|| store.reset(&rule, &neighbour), &|| {
            penalize(&key).is_allowed()
        }];
    for change in changes {
        let read = store.begin_read(address);
        let version = read.version();
        assert!(read.find_packed(fingerprint, &limit).is_some() && read.is_still(version));
        assert!(change());
        assert!(!read.is_still(version) && read.lock_at(version, &store.shared).is_none());
    }
    let read = store.begin_read(address);
    let version = read.version();
    assert!(!store.decide(&[Charge::new(&rule, &key, &limit).cost(9)]).unwrap().is_allowed());
    assert!(read.is_still(version), "a denial changes nothing");
}

/// Requests share some of their keys, which are in different shards. Each request is charged to all of its keys or to none.
#[test]
fn parallel_requests_over_keys_in_several_shards_charge_all_or_none() {
    const CLIENTS: u8 = 4;
    const REQUESTS: u32 = 60_000;
    let store = InMemory::new().store;
    let [few, most, all] = ["1/h burst 40000", "gcra 1/h burst 130000", "fixed 150000/year"]
        .map(|limit| (RuleId::new(limit), limit.parse::<Limit>().unwrap()));
    let (host, everyone) = (Key::from("host"), Key::GLOBAL);
    let spent = |(rule, limit): &(RuleId, Limit), key: &Key<'_>| {
        limit.capacity() - store.peek(&[Charge::new(rule, key, limit).cost(0)])[0].remaining
    };
    let ask = |client: u8| {
        let client = Key::of([[client]]);
        let charges = [(&few, &client), (&most, &host), (&all, &everyone)];
        let charges = charges.map(|((rule, limit), key)| Charge::new(rule, key, limit));
        let ask = |_: &u32| store.decide(&charges).unwrap().is_allowed();
        (0..REQUESTS).filter(ask).count() as u64
    };
    let barrier = std::sync::Barrier::new(usize::from(CLIENTS));
    let admitted: Vec<u64> = std::thread::scope(|scope| {
        let asking = (0..CLIENTS).map(|client| {
            let (ask, barrier) = (&ask, &barrier);
            scope.spawn(move || {
                barrier.wait();
                ask(client)
            })
        });
        asking.collect::<Vec<_>>().into_iter().map(|asking| asking.join().unwrap()).collect()
    });
    assert_eq!(admitted.iter().sum::<u64>(), 130_000);
    assert_eq!((spent(&most, &host), spent(&all, &everyone)), (130_000, 130_000));
    for (client, &admitted) in (0..CLIENTS).zip(&admitted) {
        assert_eq!(spent(&few, &Key::of([[client]])), admitted);
    }
}

/// `Arena::maintain` asserts that the thread that starts another thread holds no lock. Growth by single keys, growth by
/// requests over several shards, and sweeps all request maintenance.
#[test]
fn the_thread_that_prepares_rows_is_started_while_no_lock_is_held() {
    let (store, clock) = small(1 << 23);
    let (rule, other, limit) = (RuleId::new("rule"), RuleId::new("other"), "1/s".parse().unwrap());
    let grow = |from: u64, to: u64| {
        for number in from..to {
            let (one, two) = (Key::from(number), Key::from(number | 1 << 40));
            store.decide(&[Charge::new(&rule, &one, &limit)]).unwrap();
            store.decide(&[Charge::new(&rule, &two, &limit), Charge::new(&other, &one, &limit)]).unwrap();
        }
    };
    grow(0, 60_000);
    while !store.arena.has_prepared_rows() {
        std::thread::yield_now();
    }
    let full = store.stats().table_bytes;
    clock.advance(Micros::from_secs(10));
    for round in 0..40 {
        clock.advance(Micros::from_secs(round));
        grow(0, 20_000);
    }
    assert!(store.stats().table_bytes < full, "tables have shrunk");
}

/// The modules that a source file imports from this crate, excluding tests.
fn imports(source: &str) -> Vec<&str> {
    let code = source.split("mod tests {").next().unwrap_or_default();
    let paths = code.lines().filter_map(|line| line.strip_prefix("use super::").or(line.strip_prefix("use crate::")));
    paths.filter_map(|path| path.split([':', ';']).next()).collect()
}

#[test]
fn the_arena_imports_nothing_of_keys_and_the_table_nothing_of_limits() {
    assert_eq!(imports(include_str!("arena.rs")), ["layout", "pages"]);
    assert_eq!(imports(include_str!("slots.rs")), ["arena", "layout", "pages"]);
    assert_eq!(imports(include_str!("table.rs")), ["displaced", "layout", "slots"]);
    assert_eq!(imports(include_str!("displaced.rs")), ["slots"]);
}
