//! Token bucket, GCRA, meter and shaper: spending that drains at a rate.

use super::{Model, ModelMark, least};
use tidegate_test_support::limits::Bucket;

/// Counts in units. A token is as many units as its period has microseconds, and each microsecond drains as many units as
/// the rate has tokens. Nothing is reduced or rounded.
#[derive(Clone)]
pub(crate) struct BucketModel {
    capacity: u64,
    token: i128,
    micro: i128,
    is_shaper: bool,
    history: Vec<BucketEvent>,
}

#[derive(Clone, Copy)]
struct BucketEvent {
    at: i128,
    what: EventKind,
}

#[derive(Clone, Copy)]
enum EventKind {
    Spent(i128),
    GivenBack(i128),
    /// The clock had stepped back so far that the debt exceeded its bound.
    Cut,
}

/// Spending as a line: a value at some instant, which falls with time.
#[derive(Clone, Copy, Default)]
struct SpendingLine {
    level: i128,
    at: i128,
}

impl BucketModel {
    pub(crate) fn new(bucket: Bucket) -> BucketModel {
        let Bucket { capacity, rate } = bucket;
        let (token, micro) = (i128::from(rate.period().get()), i128::from(rate.tokens()));
        BucketModel { capacity, token, micro, is_shaper: false, history: Vec::new() }
    }

    pub(crate) fn shaper(bucket: Bucket) -> BucketModel {
        BucketModel { is_shaper: true, ..BucketModel::new(bucket) }
    }

    fn full(&self) -> i128 {
        i128::from(self.capacity) * self.token
    }

    fn units(&self, cost: u64) -> i128 {
        i128::from(cost) * self.token
    }

    fn line(&self) -> SpendingLine {
        self.history.iter().fold(SpendingLine::default(), |line, event| {
            let level = self.read(line, event.at);
            let level = match event.what {
                EventKind::Spent(units) => (level + units).min(2 * self.full()),
                EventKind::GivenBack(units) => (level - units).max(0),
                EventKind::Cut => 2 * self.full(),
            };
            SpendingLine { level, at: event.at }
        })
    }

    fn read(&self, line: SpendingLine, now: i128) -> i128 {
        (line.level - self.micro * (now - line.at)).max(0)
    }

    fn spent(&self, now: u64) -> i128 {
        self.read(self.line(), i128::from(now))
    }

    fn add(&mut self, now: u64, what: EventKind) {
        self.history.push(BucketEvent { at: i128::from(now), what });
    }

    /// The end of the queue: the instant at which everything has drained, in units.
    fn end(&self) -> i128 {
        let line = self.line();
        line.at * self.micro + line.level
    }
}

impl Model for BucketModel {
    fn limit(&self) -> u64 {
        self.capacity
    }

    fn fits(&self, cost: u64, now: u64) -> bool {
        self.spent(now) + self.units(cost) <= self.full()
    }

    fn counts(&self, now: u64) -> bool {
        self.spent(now) > 0
    }

    fn resync(&mut self, now: u64) -> bool {
        let ahead = self.spent(now) > 2 * self.full();
        if ahead {
            self.add(now, EventKind::Cut);
        }
        ahead
    }

    fn charge(&mut self, cost: u64, now: u64, _id: u128) -> ModelMark {
        self.add(now, EventKind::Spent(self.units(cost)));
        self.end()
    }

    fn refund(&mut self, cost: u64, spot: ModelMark, now: u64, _id: u128) -> u64 {
        // Only the last request in a queue can leave it.
        if self.is_shaper && spot != self.end() { 0 } else { self.give_back(cost, now) }
    }

    fn credit(&mut self, cost: u64, now: u64) -> u64 {
        if self.is_shaper { 0 } else { self.give_back(cost, now) }
    }

    fn delay(&self, now: u64) -> u64 {
        if self.is_shaper { least(|wait| self.spent(now + wait) == 0) } else { 0 }
    }
}

impl BucketModel {
    fn give_back(&mut self, cost: u64, now: u64) -> u64 {
        let before = self.spent(now);
        self.add(now, EventKind::GivenBack(self.units(cost)));
        u64::try_from((before - self.spent(now) + self.token - 1) / self.token).unwrap()
    }
}
