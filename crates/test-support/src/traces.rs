//! Random traces: operations on a key and moves of the clock.

use proptest::prelude::*;
use proptest::sample::Index;
use tidegate_core::{Decision, Limit, Micros, Timestamp};

use crate::limits::span_of;

const MILLI: u64 = 1_000;
const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600 * SECOND;
const YEAR: u64 = 365 * 24 * HOUR;

/// The last instant of a trace: the year 2223, so that no window or wait exceeds the last possible instant. `extremes.rs`
/// tests that.
const LAST: u64 = 8_000_000_000_000_000;

/// A move of the clock before an operation.
#[derive(Clone, Copy, Debug)]
pub enum ClockMove {
    Stand,
    Ahead(u64),
    Back(u64),
    /// By this many 64ths of the characteristic span of the limit.
    AheadBy(u64),
    BackBy(u64),
    /// By the wait of the last denial, less this many microseconds.
    Retry {
        short: u64,
    },
}

/// A cost in relation to the capacity.
#[derive(Clone, Copy, Debug)]
pub enum Cost {
    Exactly(u64),
    /// This many 64ths of the capacity.
    Share(u64),
    All,
    OneMoreThanAll,
}

impl Cost {
    pub fn of(self, limit: &Limit) -> u64 {
        match self {
            Cost::Exactly(cost) => cost,
            Cost::Share(share) => scale(limit.capacity(), share),
            Cost::All => limit.capacity(),
            Cost::OneMoreThanAll => limit.capacity() + 1,
        }
    }
}

/// An operation on a key. `which` selects one of the earlier charges.
#[derive(Clone, Copy, Debug)]
pub enum KeyOperation {
    Decide(Cost),
    Penalize(Cost),
    Credit(Cost),
    Refund { which: Index, cost: Cost },
    Renew { which: Index },
}

pub type Step = (ClockMove, KeyOperation);

/// The clock of a trace.
#[derive(Clone, Copy, Debug)]
pub struct TraceClock {
    now: u64,
    retry: u64,
}

impl TraceClock {
    pub fn at(now: u64) -> TraceClock {
        TraceClock { now, retry: 0 }
    }

    pub fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }

    pub fn go(&mut self, by: ClockMove, limit: &Limit) -> Timestamp {
        let span = |share| scale(span_of(limit), share);
        self.now = match by {
            ClockMove::Stand => self.now,
            ClockMove::Ahead(micros) => self.now + micros,
            ClockMove::Back(micros) => self.now.saturating_sub(micros),
            ClockMove::AheadBy(share) => self.now + span(share),
            ClockMove::BackBy(share) => self.now.saturating_sub(span(share)),
            ClockMove::Retry { short } => self.now + self.retry.saturating_sub(short),
        }
        .min(LAST);
        self.now()
    }

    /// Remembers the wait of a denial, for [`ClockMove::Retry`].
    pub fn remember_wait(&mut self, decision: &Decision) {
        self.retry = decision.retry_after().map_or(0, Micros::get);
    }
}

fn scale(whole: u64, share: u64) -> u64 {
    u64::try_from(u128::from(whole) * u128::from(share) / 64).unwrap()
}

pub fn starts() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0), 3 => Just(1_772_366_399_123_456), 2 => 0..LAST]
}

/// Moves of a clock that never steps back.
pub fn moves_ahead() -> impl Strategy<Value = ClockMove> {
    prop_oneof![
        6 => Just(ClockMove::Stand),
        2 => (1_u64..50).prop_map(ClockMove::Ahead),
        1 => (1..100 * MILLI).prop_map(ClockMove::Ahead),
        1 => (1..100 * SECOND).prop_map(ClockMove::Ahead),
        1 => (1..100 * HOUR).prop_map(ClockMove::Ahead),
        1 => (YEAR..20 * YEAR).prop_map(ClockMove::Ahead),
        6 => (0_u64..80).prop_map(ClockMove::AheadBy),
        1 => (80_u64..200).prop_map(ClockMove::AheadBy),
        5 => (0_u64..3).prop_map(|short| ClockMove::Retry { short }),
    ]
}

/// Moves of a clock that also steps back, slightly or by years.
pub fn moves() -> impl Strategy<Value = ClockMove> {
    prop_oneof![
        16 => moves_ahead(),
        1 => (1_u64..50).prop_map(ClockMove::Back),
        1 => (1..100 * SECOND).prop_map(ClockMove::Back),
        1 => (HOUR..20 * YEAR).prop_map(ClockMove::Back),
        3 => (0_u64..400).prop_map(ClockMove::BackBy),
    ]
}

pub fn costs() -> impl Strategy<Value = Cost> {
    prop_oneof![
        1 => Just(Cost::Exactly(0)),
        8 => Just(Cost::Exactly(1)),
        4 => (2_u64..6).prop_map(Cost::Exactly),
        6 => (0_u64..=64).prop_map(Cost::Share),
        2 => Just(Cost::All),
        1 => Just(Cost::OneMoreThanAll),
        1 => prop_oneof![Just(u64::MAX), any::<u64>()].prop_map(Cost::Exactly),
    ]
}

fn ops() -> impl Strategy<Value = KeyOperation> {
    prop_oneof![
        12 => costs().prop_map(KeyOperation::Decide),
        2 => costs().prop_map(KeyOperation::Penalize),
        1 => costs().prop_map(KeyOperation::Credit),
        2 => (any::<Index>(), costs()).prop_map(|(which, cost)| KeyOperation::Refund { which, cost }),
        1 => any::<Index>().prop_map(|which| KeyOperation::Renew { which }),
    ]
}

/// All operations, on a clock that also steps back.
pub fn traces() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((moves(), ops()), 1..60)
}

/// All operations, on a clock that never steps back.
pub fn traces_ahead() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((moves_ahead(), ops()), 1..60)
}

/// Requests only, on a clock that never steps back.
pub fn requests_ahead() -> impl Strategy<Value = Vec<(ClockMove, Cost)>> {
    prop::collection::vec((moves_ahead(), costs()), 1..80)
}
