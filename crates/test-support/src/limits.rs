//! Limits of every algorithm, from one per month to ten million per second.

use proptest::prelude::*;
use proptest::sample::select;
use tidegate_core::limit::{
    Algorithm, Calendar, Concurrency, FixedWindow, Gcra, Meter, Rate, Shaper, SlidingLog, SlidingWindow, TokenBucket,
    Windows,
};
use tidegate_core::time::MAX_EXACT;
use tidegate_core::{Limit, Micros};

const SECOND: u64 = 1_000_000;
const DAY: u64 = 86_400 * SECOND;

/// The parameters of a token bucket, GCRA, meter or shaper.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    pub capacity: u64,
    pub rate: Rate,
}

impl Bucket {
    pub fn token_bucket(self) -> Limit {
        TokenBucket::new(self.capacity, self.rate).unwrap().into()
    }

    pub fn gcra(self) -> Limit {
        Gcra::new(self.capacity, self.rate).unwrap().into()
    }

    pub fn meter(self) -> Limit {
        Meter::new(self.capacity, self.rate).unwrap().into()
    }

    pub fn shaper(self) -> Limit {
        Shaper::new(self.capacity, self.rate).unwrap().into()
    }

    /// The time in which a full bucket drains, rounded up.
    pub fn recovery(self) -> u64 {
        let drops = u128::from(self.capacity) * u128::from(self.rate.period().get());
        u64::try_from(drops.div_ceil(u128::from(self.rate.tokens()))).unwrap()
    }
}

fn rates() -> impl Strategy<Value = Rate> {
    let month = 30 * DAY;
    let common = select(vec![
        (1, month),
        (1, DAY),
        (300, 3 * 3_600 * SECOND),
        (100, 60 * SECOND),
        (1, SECOND),
        (3, SECOND),
        (7, SECOND),
        (1_000, SECOND),
        (999_983, SECOND),
        (10_000_000, SECOND),
        (1, 1),
        (7, 3),
        (4_294_967_295, 2),
    ]);
    let odd = (1_u64..2_000_000, 1_u64..100_000_000);
    prop_oneof![4 => common, 1 => odd].prop_map(|(tokens, period)| Rate::new(tokens, Micros::new(period)).unwrap())
}

/// The largest capacity of a bucket with this rate.
pub fn most_tokens(rate: Rate) -> u64 {
    (MAX_EXACT / 2 - 1) / rate.drops_per_token()
}

pub fn buckets() -> impl Strategy<Value = Bucket> {
    rates().prop_flat_map(|rate| {
        let most = most_tokens(rate);
        let capacity = prop_oneof![
            1 => Just(0),
            2 => Just(1),
            6 => 2_u64..12,
            3 => 12_u64..5_000,
            1 => 0..=most,
            1 => Just(most),
        ];
        capacity.prop_map(move |capacity| Bucket { capacity: capacity.min(most), rate })
    })
}

fn windows() -> impl Strategy<Value = u64> {
    let common = select(vec![1_000, SECOND, 60 * SECOND, 3_600 * SECOND, DAY, 30 * DAY, 366 * DAY]);
    prop_oneof![3 => common, 1 => 1_000_u64..10_000_000]
}

fn counts(most: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        1 => Just(0),
        1 => Just(1),
        6 => 2_u64..12,
        3 => 12_u64..2_000,
        1 => Just(most),
    ]
    .prop_map(move |count| count.min(most))
}

pub fn fixed_windows() -> impl Strategy<Value = FixedWindow> {
    let most = MAX_EXACT / 2;
    (counts(most), windows()).prop_map(|(limit, window)| FixedWindow::new(limit, Micros::new(window)).unwrap())
}

pub fn calendar_windows() -> impl Strategy<Value = FixedWindow> {
    let calendars = select(vec![Calendar::Day, Calendar::Week, Calendar::Month, Calendar::Year]);
    (counts(MAX_EXACT / 2), calendars).prop_map(|(limit, calendar)| FixedWindow::calendar(limit, calendar).unwrap())
}

/// A window of `parts` parts, or of fewer if they do not divide it.
fn sliding(limit: u64, window: u64, parts: u32) -> SlidingWindow {
    let divides = |parts: &u32| window.is_multiple_of(u64::from(*parts)) && window / u64::from(*parts) >= 1_000;
    let parts = (1..=parts).rev().find(divides).unwrap();
    let most = (MAX_EXACT / 4 / (window / u64::from(parts))).min(1 << 40);
    SlidingWindow::with_parts(limit.min(most), Micros::new(window), parts).unwrap()
}

pub fn sliding_windows_of_one_part() -> impl Strategy<Value = SlidingWindow> {
    (counts(1 << 40), windows()).prop_map(|(limit, window)| sliding(limit, window, 1))
}

pub fn sliding_windows_of_several_parts() -> impl Strategy<Value = SlidingWindow> {
    let parts = select(vec![2, 3, 4, 6, 10, 60]);
    (counts(1 << 40), windows(), parts).prop_map(|(limit, window, parts)| sliding(limit, window, parts))
}

pub fn sliding_windows() -> impl Strategy<Value = SlidingWindow> {
    prop_oneof![sliding_windows_of_one_part(), sliding_windows_of_several_parts()]
}

pub fn sliding_logs() -> impl Strategy<Value = SlidingLog> {
    (counts(1_000_000), windows()).prop_map(|(limit, window)| SlidingLog::new(limit, Micros::new(window)).unwrap())
}

pub fn concurrencies() -> impl Strategy<Value = Concurrency> {
    (counts(1_000_000), windows()).prop_map(|(slots, ttl)| Concurrency::new(slots, Micros::new(ttl)).unwrap())
}

/// Limits of every algorithm.
pub fn any_limit() -> impl Strategy<Value = Limit> {
    prop_oneof![
        8 => any_spending_limit(),
        1 => concurrencies().prop_map(Limit::from),
    ]
}

/// Limits of every algorithm that counts spending: all but concurrency.
pub fn any_spending_limit() -> impl Strategy<Value = Limit> {
    prop_oneof![
        buckets().prop_map(Bucket::token_bucket),
        buckets().prop_map(Bucket::gcra),
        buckets().prop_map(Bucket::meter),
        buckets().prop_map(Bucket::shaper),
        fixed_windows().prop_map(Limit::from),
        calendar_windows().prop_map(Limit::from),
        sliding_windows_of_one_part().prop_map(Limit::from),
        sliding_windows_of_several_parts().prop_map(Limit::from),
        sliding_logs().prop_map(Limit::from),
    ]
}

/// The parameters of a limit that is a bucket.
pub fn bucket_of(limit: &Limit) -> Option<Bucket> {
    let (capacity, rate) = match limit.algorithm() {
        Algorithm::TokenBucket(limit) => (limit.capacity(), limit.refill()),
        Algorithm::Gcra(limit) => (limit.capacity(), limit.rate()),
        Algorithm::Meter(limit) => (limit.capacity(), limit.outflow()),
        Algorithm::Shaper(limit) => (limit.capacity(), limit.outflow()),
        _ => return None,
    };
    Some(Bucket { capacity, rate })
}

/// The characteristic span of a limit: its window, its lease, or the time in which it recovers.
pub fn span_of(limit: &Limit) -> u64 {
    match limit.algorithm() {
        Algorithm::FixedWindow(limit) => match limit.windows() {
            Windows::Every(window) => window.get(),
            Windows::Calendar(calendar) => calendar.longest().get(),
        },
        Algorithm::SlidingWindow(limit) => limit.window().get(),
        Algorithm::SlidingLog(limit) => limit.window().get(),
        Algorithm::Concurrency(limit) => limit.ttl().get(),
        _ => bucket_of(limit).unwrap().recovery(),
    }
}

/// The same limit with another capacity, at most the largest that it can have.
pub fn with_capacity(limit: &Limit, capacity: u64) -> Limit {
    let up_to = |most: u64| capacity.min(most);
    match *limit.algorithm() {
        Algorithm::TokenBucket(limit) => {
            let rate = limit.refill();
            Bucket { capacity: up_to(most_tokens(rate)), rate }.token_bucket()
        }
        Algorithm::Gcra(limit) => {
            let rate = limit.rate();
            Bucket { capacity: up_to(most_tokens(rate)), rate }.gcra()
        }
        Algorithm::Meter(limit) => {
            let rate = limit.outflow();
            Bucket { capacity: up_to(most_tokens(rate)), rate }.meter()
        }
        Algorithm::Shaper(limit) => {
            let rate = limit.outflow();
            Bucket { capacity: up_to(most_tokens(rate)), rate }.shaper()
        }
        Algorithm::FixedWindow(limit) => match limit.windows() {
            Windows::Every(window) => FixedWindow::new(up_to(MAX_EXACT / 2), window).unwrap().into(),
            Windows::Calendar(calendar) => FixedWindow::calendar(up_to(MAX_EXACT / 2), calendar).unwrap().into(),
        },
        Algorithm::SlidingWindow(limit) => sliding(capacity, limit.window().get(), limit.parts()).into(),
        Algorithm::SlidingLog(limit) => SlidingLog::new(up_to(1_000_000), limit.window()).unwrap().into(),
        Algorithm::Concurrency(limit) => Concurrency::new(up_to(1_000_000), limit.ttl()).unwrap().into(),
    }
}
