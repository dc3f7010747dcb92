//! Analytic expectations for a limit under some traffic.
//!
//! Bounds are strict for any traffic; tests check the simulation against them. Other numbers are estimates. They treat
//! requests as a liquid that flows at the traffic's mean rate, and random traffic under a concurrency limit by Erlang's
//! loss formula. For evenly spaced traffic the estimate is right to a few requests. For random traffic close to the limit
//! it is slightly too high.

mod fluid;
mod loss;
mod mean;

use serde::Serialize;
use tidegate_core::limit::{Algorithm, Rate, Windows};
use tidegate_core::{Limit, Micros, Timestamp};

use self::fluid::Fluid;
use self::loss::LossSystem;
use self::mean::Crowd;
use crate::traffic::Traffic;

/// The expected result of one limit under some traffic.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Expectation {
    /// The mean number of requests.
    pub arrivals: f64,
    /// Their mean total cost.
    pub cost: f64,
    /// An upper bound of the admitted cost over all clients, for any traffic. `None` if there is no such bound.
    pub ceiling: Option<u64>,
    /// The cost that is likely to be admitted.
    pub accepted: f64,
    /// The share of the cost that is likely to be admitted.
    pub acceptance: f64,
    /// The time in which an exhausted limit recovers fully, in microseconds.
    pub drain: u64,
    /// The most that one client can be admitted in a single window. `None` if there is no such bound.
    pub worst_window: Option<WorstWindow>,
}

/// An upper bound of the cost that can pass in any span of some length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WorstWindow {
    /// The length in microseconds: the window or the period of the limit.
    pub length: u64,
    /// The bound.
    pub most: u64,
}

/// The expectation for traffic under a limit in `[start, start + length)`. Under a concurrency limit each request holds its
/// slots for `holding`, which defaults to the lease.
#[must_use]
pub fn expect(
    traffic: &Traffic,
    limit: &Limit,
    start: Timestamp,
    length: Micros,
    holding: Option<Micros>,
) -> Expectation {
    let crowd = Crowd::of(traffic, start, length);
    let cost = crowd.cost(length);
    let ceiling = ceiling(limit, start, length, holding).map(|most| most.saturating_mul(u64::from(traffic.clients())));
    let accepted = match LossSystem::of(limit, &crowd, holding) {
        Some(system) => system.accepted(&crowd, length),
        None => Fluid::new(limit, holding).accepted(&crowd, start, length),
    };
    let accepted = accepted.min(cost).min(ceiling.map_or(f64::INFINITY, |most| most as f64));
    Expectation {
        arrivals: crowd.arrivals(length),
        cost,
        ceiling,
        accepted,
        acceptance: if cost > 0.0 { accepted / cost } else { 1.0 },
        drain: drain(limit, holding).get(),
        worst_window: worst_window(limit),
    }
}

/// The tokens that a rate adds in `span`, rounded down.
fn brought(rate: Rate, span: u64) -> u64 {
    let exact = u128::from(span) * u128::from(rate.tokens()) / u128::from(rate.period().get());
    u64::try_from(exact).unwrap_or(u64::MAX)
}

/// The most that one client can be admitted in `[start, start + length)`.
#[must_use]
pub fn ceiling(limit: &Limit, start: Timestamp, length: Micros, holding: Option<Micros>) -> Option<u64> {
    // The last instant of the span, which excludes its end.
    let Some(span) = length.get().checked_sub(1) else { return Some(0) };
    let last = start + Micros::new(span);
    let bucket = |burst: u64, rate: Rate| {
        // A bucket of capacity 0 admits nothing, at any rate.
        if burst == 0 { 0 } else { burst.saturating_add(brought(rate, span)) }
    };
    Some(match limit.algorithm() {
        Algorithm::TokenBucket(it) => bucket(it.capacity(), it.refill()),
        Algorithm::Gcra(it) => bucket(it.capacity(), it.rate()),
        Algorithm::Meter(it) => bucket(it.capacity(), it.outflow()),
        Algorithm::Shaper(it) => bucket(it.capacity(), it.outflow()),
        Algorithm::FixedWindow(it) => {
            let windows = match it.windows() {
                Windows::Every(window) => last.as_micros() / window.get() - start.as_micros() / window.get() + 1,
                Windows::Calendar(calendar) => {
                    let ends = |at: &Timestamp| Some(calendar.around(*at).1).filter(|end| end > at && *end <= last);
                    1 + std::iter::successors(ends(&start), ends).count() as u64
                }
            };
            it.limit().saturating_mul(windows)
        }
        Algorithm::SlidingWindow(it) => {
            // At most the limit in each window-long span of whole parts.
            let part = it.window().get() / u64::from(it.parts()).max(1);
            let parts = last.as_micros() / part - start.as_micros() / part + 1;
            it.limit().saturating_mul(parts.div_ceil(u64::from(it.parts())))
        }
        Algorithm::SlidingLog(it) => it.limit().saturating_mul(length.get().div_ceil(it.window().get())),
        Algorithm::Concurrency(it) => {
            let held = holding.map_or(it.ttl(), |holding| holding.min(it.ttl())).get();
            // Requests that take no time hold no slots.
            return span.checked_div(held).map(|turns| it.slots().saturating_mul(turns + 1));
        }
    })
}

/// The time until the charges of a client that has just exhausted the limit have all expired.
#[must_use]
pub fn drain(limit: &Limit, holding: Option<Micros>) -> Micros {
    let bucket = |capacity: u64, rate: Rate| {
        let drops = u128::from(capacity) * u128::from(rate.drops_per_token());
        let micros = drops.div_ceil(u128::from(rate.drops_per_micro()));
        Micros::new(u64::try_from(micros).unwrap_or(u64::MAX))
    };
    match limit.algorithm() {
        Algorithm::TokenBucket(it) => bucket(it.capacity(), it.refill()),
        Algorithm::Gcra(it) => bucket(it.capacity(), it.rate()),
        Algorithm::Meter(it) => bucket(it.capacity(), it.outflow()),
        Algorithm::Shaper(it) => bucket(it.capacity(), it.outflow()),
        Algorithm::FixedWindow(it) => match it.windows() {
            Windows::Every(window) => window,
            Windows::Calendar(calendar) => calendar.longest(),
        },
        // A charge at the start of a part counts until a window after the end of that part.
        Algorithm::SlidingWindow(it) => {
            Micros::new(it.window().get() + it.window().get() / u64::from(it.parts()).max(1))
        }
        Algorithm::SlidingLog(it) => it.window(),
        Algorithm::Concurrency(it) => holding.map_or(it.ttl(), |holding| holding.min(it.ttl())),
    }
}

/// The most that one client can be admitted in any span as long as the limit's window or period.
#[must_use]
pub fn worst_window(limit: &Limit) -> Option<WorstWindow> {
    // A span excludes its end, so the last token of the rate arrives just too late.
    let bucket = |capacity: u64, rate: Rate| WorstWindow {
        length: rate.period().get(),
        most: if capacity == 0 { 0 } else { capacity.saturating_add(rate.tokens() - 1) },
    };
    Some(match limit.algorithm() {
        Algorithm::TokenBucket(it) => bucket(it.capacity(), it.refill()),
        Algorithm::Gcra(it) => bucket(it.capacity(), it.rate()),
        Algorithm::Meter(it) => bucket(it.capacity(), it.outflow()),
        Algorithm::Shaper(it) => bucket(it.capacity(), it.outflow()),
        Algorithm::FixedWindow(it) => match it.windows() {
            Windows::Every(window) => WorstWindow { length: window.get(), most: it.limit().saturating_mul(2) },
            // A long window can span a whole short month and parts of both its neighbours.
            Windows::Calendar(calendar) => {
                WorstWindow { length: calendar.longest().get(), most: it.limit().saturating_mul(3) }
            }
        },
        Algorithm::SlidingWindow(it) => {
            WorstWindow { length: it.window().get(), most: it.limit().saturating_mul(2).saturating_sub(1) }
        }
        Algorithm::SlidingLog(it) => WorstWindow { length: it.window().get(), most: it.limit() },
        Algorithm::Concurrency(_) => return None,
    })
}
