//! A limiter whose store fails on demand.

use tidegate_core::contract::faulty::{Fault, Faulty};
use tidegate_core::store::now_or_never;
use tidegate_core::{ManualClock, MemoryStore, Micros, Timestamp};
use tidegate_rules::{DecidedBy, Health, Limiter, Request, RuleSet, Ruling};

pub(crate) struct Stage {
    pub(crate) limiter: Limiter<Faulty<MemoryStore<ManualClock>>, ManualClock>,
    pub(crate) clock: ManualClock,
}

#[track_caller]
pub(crate) fn rules(text: &str) -> RuleSet {
    RuleSet::parse("rules.yaml", text).unwrap_or_else(|findings| panic!("{findings}")).rules
}

pub(crate) fn finish<A: IntoFuture>(answer: A) -> A::Output {
    now_or_never(answer).expect("a store in memory never waits")
}

impl Stage {
    #[track_caller]
    pub(crate) fn new(text: &str) -> Stage {
        crate::failing::log::listen();
        let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
        let store = Faulty::new(MemoryStore::with_clock(clock.clone()));
        Stage { limiter: Limiter::with_clock(rules(text), store, clock.clone()), clock }
    }

    pub(crate) fn fail(&self, fault: impl Into<Option<Fault>>) {
        self.limiter.store().fail(fault);
    }

    pub(crate) fn wait(&self, millis: u64) {
        self.clock.advance(Micros::from_millis(millis));
    }

    pub(crate) fn check(&self, request: &Request) -> Ruling<'static> {
        finish(self.limiter.check(request))
    }

    /// Sends Alice's next request.
    pub(crate) fn alice(&self) -> Ruling<'static> {
        self.check(&alice())
    }

    /// The number of Alice's requests, at most `most`, that are admitted before one is denied.
    pub(crate) fn admitted(&self, most: usize) -> usize {
        (0..most).take_while(|_| self.alice().is_allowed()).count()
    }

    pub(crate) fn health(&self) -> Health {
        self.limiter.health()
    }

    pub(crate) fn report(&self) -> usize {
        finish(self.limiter.report_local())
    }
}

pub(crate) fn alice() -> Request {
    Request::new("GET", "/").user("alice")
}

pub(crate) fn by(ruling: &Ruling<'_>) -> Vec<DecidedBy> {
    ruling.ruled.iter().map(|ruled| ruled.by).collect()
}

pub(crate) const OUTAGES: [Fault; 4] = [Fault::Unreachable, Fault::Failed, Fault::QuestionLost, Fault::AnswerLost];
