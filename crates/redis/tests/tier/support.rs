//! A tier in front of a store in memory, with one clock for both.

use tidegate_core::contract::faulty::Faulty;
use tidegate_core::store::{Answer, now_or_never};
use tidegate_core::{Charge, ManualClock, MemoryStore, Micros, Store, Timestamp};
use tidegate_redis::tier::{Settings, Tier};

pub(crate) type Behind = Faulty<MemoryStore<ManualClock>>;

pub(crate) struct Tiered {
    pub(crate) tier: Tier<Behind, ManualClock>,
    pub(crate) clock: ManualClock,
}

pub(crate) fn start() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_700_000_000))
}

impl Tiered {
    pub(crate) fn new() -> Tiered {
        Tiered::with(Settings::default())
    }

    pub(crate) fn with(settings: Settings) -> Tiered {
        let clock = start();
        let behind = Faulty::new(MemoryStore::with_clock(clock.clone()));
        Tiered { tier: Tier::with_clock(behind, settings, clock.clone()), clock }
    }

    pub(crate) fn decide(&self, charges: &[Charge<'_>]) -> Answer {
        finish(self.tier.decide(charges)).unwrap()
    }

    pub(crate) fn is_allowed(&self, charge: Charge<'_>) -> bool {
        self.decide(&[charge]).is_allowed()
    }

    /// Whether a request is answered without asking the store.
    pub(crate) fn spares(&self, charges: &[Charge<'_>]) -> bool {
        let before = self.tier.behind().questions();
        self.decide(charges);
        self.tier.behind().questions() == before
    }

    pub(crate) fn wait(&self, millis: u64) {
        self.clock.advance(Micros::from_millis(millis));
    }
}

pub(crate) fn finish<A: IntoFuture>(answer: A) -> A::Output {
    now_or_never(answer).expect("a store in memory never waits")
}
