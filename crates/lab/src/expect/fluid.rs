//! The fluid model: treats requests as a fluid that flows through a limit.

use std::collections::VecDeque;

use tidegate_core::limit::{Algorithm, Rate, Windows};
use tidegate_core::{Limit, Micros, Timestamp};

use super::mean::{ClientKind, Crowd};

/// Upper bound of the steps over all kinds of clients.
const MOST_STEPS: u64 = 4_000_000;
/// Steps in the shortest phase.
const FINENESS: u64 = 64;

/// A limit in the fluid model.
#[derive(Clone, Debug)]
pub(super) struct Fluid {
    model: FluidModel,
    /// The time scale of the limit in microseconds. Steps must be shorter.
    pace: u64,
}

#[derive(Clone, Debug)]
enum FluidModel {
    /// A leaky bucket that loses `drain` per microsecond.
    Bucket { capacity: f64, drain: f64, level: f64 },
    /// A fixed window.
    Window { limit: f64, windows: Windows, ends: Timestamp, spent: f64 },
    /// A sliding window, with the amount that passed in each step, the latest last.
    Sliding { limit: f64, window: u64, passed: VecDeque<(u64, f64)>, sum: f64 },
}

impl Fluid {
    pub(super) fn new(limit: &Limit, holding: Option<Micros>) -> Fluid {
        let bucket = |capacity: u64, rate: Rate| {
            let drain = rate.tokens() as f64 / rate.period().get() as f64;
            let model = FluidModel::Bucket { capacity: capacity as f64, drain, level: 0.0 };
            // The time in which the bucket empties.
            Fluid { model, pace: super::drain(limit, None).get() }
        };
        let sliding = |limit: u64, window: u64| {
            let model = FluidModel::Sliding { limit: limit as f64, window, passed: VecDeque::new(), sum: 0.0 };
            Fluid { model, pace: window }
        };
        match limit.algorithm() {
            Algorithm::TokenBucket(it) => bucket(it.capacity(), it.refill()),
            Algorithm::Gcra(it) => bucket(it.capacity(), it.rate()),
            Algorithm::Meter(it) => bucket(it.capacity(), it.outflow()),
            Algorithm::Shaper(it) => bucket(it.capacity(), it.outflow()),
            Algorithm::FixedWindow(it) => {
                let windows = it.windows();
                let model =
                    FluidModel::Window { limit: it.limit() as f64, windows, ends: Timestamp::EPOCH, spent: 0.0 };
                Fluid { model, pace: super::drain(limit, None).get() }
            }
            // A sliding counter admits as much as a log would if the previous window had been even.
            Algorithm::SlidingWindow(it) => sliding(it.limit(), it.window().get()),
            Algorithm::SlidingLog(it) => sliding(it.limit(), it.window().get()),
            Algorithm::Concurrency(it) => {
                let held = holding.map_or(it.ttl(), |holding| holding.min(it.ttl()));
                sliding(it.slots(), held.get().max(1))
            }
        }
    }

    /// The admitted cost of all clients of a crowd.
    pub(super) fn accepted(&self, crowd: &Crowd, start: Timestamp, length: Micros) -> f64 {
        let kinds = crowd.kinds().len().max(1) as u64;
        let finest = self.pace.min(crowd.finest.get()).max(1);
        let wanted = (length.get() / finest).saturating_add(1).saturating_mul(FINENESS);
        let steps = wanted.clamp(1, (MOST_STEPS / kinds).max(1_000));
        let of = |kind: &ClientKind| f64::from(kind.clients) * self.clone().through(crowd, kind, start, length, steps);
        crowd.kinds().iter().map(of).sum()
    }

    /// The admitted cost of one client.
    fn through(mut self, crowd: &Crowd, kind: &ClientKind, start: Timestamp, length: Micros, steps: u64) -> f64 {
        let whole = u128::from(length.get());
        let instant = |step: u64| Micros::new(u64::try_from(whole * u128::from(step) / u128::from(steps)).unwrap_or(0));
        let (mut asked, mut admitted) = (0.0, 0.0);
        for step in 1..=steps {
            let (from, to) = (instant(step - 1), instant(step));
            let by_now = crowd.asked(kind, to);
            admitted += self.pour(by_now - asked, start + from, start + to);
            asked = by_now;
        }
        admitted
    }

    /// Adds the cost requested between two instants. Returns the admitted cost.
    fn pour(&mut self, asked: f64, from: Timestamp, to: Timestamp) -> f64 {
        match &mut self.model {
            FluidModel::Bucket { capacity, drain, level } => {
                if *capacity <= 0.0 {
                    return 0.0;
                }
                let drained = *drain * to.since(from).get() as f64;
                let through = asked.min(*capacity - *level + drained).max(0.0);
                *level = (*level + through - drained).max(0.0);
                through
            }
            FluidModel::Window { limit, windows, ends, spent } => {
                if from >= *ends {
                    *spent = 0.0;
                    *ends = match windows {
                        Windows::Every(window) => from + Micros::new(window.get() - from.as_micros() % window.get()),
                        Windows::Calendar(calendar) => calendar.around(from).1,
                    };
                }
                let through = asked.min(*limit - *spent);
                *spent += through;
                through
            }
            FluidModel::Sliding { limit, window, passed, sum } => {
                while let Some(&(at, cost)) = passed.front()
                    && at + *window <= from.as_micros()
                {
                    passed.pop_front();
                    *sum = if passed.is_empty() { 0.0 } else { *sum - cost };
                }
                let through = asked.min(*limit - *sum).max(0.0);
                if through > 0.0 {
                    passed.push_back((from.as_micros(), through));
                    *sum += through;
                }
                through
            }
        }
    }
}
