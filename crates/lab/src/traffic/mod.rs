//! Who asks for how much, and when.
//!
//! A model of traffic is data. With a length and a seed it becomes arrivals, in order, and the same ones on every machine
//! ([`random`](crate::random) says why). Models are written as text, too:
//!
//! ```text
//! steady 20/s                              evenly apart
//! poisson 20/s                             by chance
//! square 100/s 5/s every 10s               5 s at the one rate, 5 s at the other, and again
//! ramp 0/s 200/s over 1min                 from one rate to the other; then it stays there
//! on-off 50/s on 2s off 8s                 bursts with silence between
//! spike 500 at 30s within 1s               so many at once, or within a span
//! boundary 100 every 1min                  so many just before a window ends, and as many just after
//! ```
//!
//! Behind any of these: `random` (flows by chance instead of evenly), `clients 1000` (each arrival is one of so many, all
//! alike), `clients 1000 zipf 1.1` (some more popular than others), `as 7` (the first of them is number 7), `cost 5`,
//! `times 2` (twice the load), `for 30s`. Parts follow each other with `then`, and happen at the same time with `+`:
//!
//! ```text
//! poisson 200/s clients 500 zipf 1 + boundary 100 every 1s as 9000
//! steady 10/s for 1min then spike 1000 then steady 10/s
//! ```

mod flow;
mod notation;
mod popularity;
mod trace;

pub use flow::{Shape, Spacing};
pub use notation::TrafficError;
pub use popularity::Popularity;
pub use trace::{Trace, TraceError};

use std::fmt;
use std::iter::Peekable;
use std::sync::Arc;

use tidegate_core::{Micros, Timestamp};

use self::flow::Flow;
use crate::random::Random;

/// One request: when, by whom, and what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When it comes.
    pub at: Timestamp,
    /// Who sends it. Clients are numbered from 0.
    pub client: u32,
    /// What it costs.
    pub cost: u64,
}

/// Where arrivals begin unless told otherwise: at a midnight where minutes, hours, days, weeks and months all begin.
pub const START: Timestamp = Timestamp::from_secs(1_767_225_600);

/// The most clients that one model can have.
pub const MOST_CLIENTS: u32 = 10_000_000;

/// A model of traffic.
#[derive(Clone, Debug, PartialEq)]
pub enum Traffic {
    /// At a rate that may change with time.
    Flow {
        /// The rate over time.
        shape: Shape,
        /// How arrivals lie apart.
        spacing: Spacing,
    },
    /// So many at once.
    Spike {
        /// How many.
        count: u64,
        /// When they begin.
        at: Micros,
        /// Over which span they are spread, evenly.
        within: Micros,
    },
    /// An attack on fixed windows: at the end of every other one, `count` arrive in its last thousandth and `count` in the
    /// first thousandth of the next. Windows are those that the engine counts from the epoch.
    Boundary {
        /// How many arrive on each side.
        count: u64,
        /// The length of the windows.
        window: Micros,
    },
    /// What was recorded.
    Recorded(Arc<Trace>),
    /// The same, by many clients.
    Clients {
        /// What arrives.
        of: Box<Traffic>,
        /// Who sends it.
        popularity: Popularity,
        /// The number of the first client.
        first: u32,
    },
    /// The same at another cost.
    Costing {
        /// What arrives.
        of: Box<Traffic>,
        /// What each costs.
        cost: u64,
    },
    /// The same, quicker: `thousandths / 1000` times as many in the same time.
    Scaled {
        /// What arrives.
        of: Box<Traffic>,
        /// How much quicker, in thousandths.
        thousandths: u32,
    },
    /// All of these at the same time.
    Merged(Vec<Traffic>),
    /// One after the other, each for so long.
    Sequence(Vec<(Traffic, Micros)>),
}

/// Arrivals in order.
pub type Arrivals = Box<dyn Iterator<Item = Arrival> + Send>;

impl Traffic {
    /// The arrivals within `length`, from [`START`] on.
    #[must_use]
    pub fn arrivals(&self, length: Micros, seed: u64) -> Arrivals {
        self.arrivals_from(START, length, seed)
    }

    /// The arrivals in `[start, start + length)`.
    #[must_use]
    pub fn arrivals_from(&self, start: Timestamp, length: Micros, seed: u64) -> Arrivals {
        let end = start + length;
        match self {
            Traffic::Flow { shape, spacing } => {
                let arrive = move |at: u64| Arrival { at: start + Micros::new(at), client: 0, cost: 1 };
                Box::new(Flow::new(shape, *spacing, seed).take_while(move |&at| at < length.get()).map(arrive))
            }
            Traffic::Spike { count, at, within } => {
                let (count, within, first) = (*count, within.get(), start + *at);
                let nth = move |n: u64| {
                    let offset = u128::from(n) * u128::from(within) / u128::from(count.max(1));
                    let offset = u64::try_from(offset).unwrap_or(u64::MAX);
                    Arrival { at: first + Micros::new(offset), client: 0, cost: 1 }
                };
                Box::new((0..count).map(nth).take_while(move |arrival| arrival.at < end))
            }
            Traffic::Boundary { count, window } => Box::new(boundary(*count, *window, start, end)),
            Traffic::Recorded(trace) => Box::new(Trace::within(trace, start, length)),
            Traffic::Clients { of, popularity, first } => {
                let (mut random, first) = (Random::seeded(Random::branch(seed, 0)), *first);
                let draw = popularity.draws();
                let who = move |arrival| Arrival { client: first + draw.draw(&mut random), ..arrival };
                Box::new(of.arrivals_from(start, length, Random::branch(seed, 1)).map(who))
            }
            Traffic::Costing { of, cost } => {
                let cost = *cost;
                Box::new(of.arrivals_from(start, length, seed).map(move |arrival| Arrival { cost, ..arrival }))
            }
            Traffic::Scaled { of, thousandths } => {
                let factor = *thousandths;
                let sooner = move |arrival: Arrival| {
                    let since = scaled(arrival.at.since(start), 1_000, factor);
                    Arrival { at: start + since, ..arrival }
                };
                let length = scaled(length, factor, 1_000);
                Box::new(of.arrivals_from(start, length, seed).map(sooner))
            }
            Traffic::Merged(parts) => {
                let seeded = parts.iter().zip(0..);
                let parts =
                    seeded.map(|(part, n)| part.arrivals_from(start, length, Random::branch(seed, n)).peekable());
                Box::new(Merged { parts: parts.collect() })
            }
            Traffic::Sequence(parts) => {
                let mut begins = start;
                let mut all = Vec::with_capacity(parts.len());
                for ((part, lasts), number) in parts.iter().zip(0..) {
                    let lasts = Micros::new(lasts.get().min(end.since(begins).get()));
                    all.push((part.clone(), begins, lasts, Random::branch(seed, number)));
                    begins = begins + lasts;
                }
                Box::new(
                    all.into_iter().flat_map(|(part, begins, lasts, seed)| part.arrivals_from(begins, lasts, seed)),
                )
            }
        }
    }

    /// How many turns the traffic takes within `length`: from one rate to the next, from one window to the next. Making
    /// arrivals takes time for each of them, even for those that bring nobody.
    #[must_use]
    pub fn turns(&self, length: Micros) -> u64 {
        match self {
            // A ramp has one end, and takes no further turn.
            Traffic::Flow { shape: Shape::Ramp { .. }, .. } => 2,
            Traffic::Flow { shape, .. } => {
                shape.shortest_phase().map_or(1, |phase| 2 * (length.get() / phase.get().max(1)) + 1)
            }
            Traffic::Boundary { window, .. } => length.get() / window.get().max(1) + 1,
            Traffic::Spike { .. } | Traffic::Recorded(_) => 1,
            Traffic::Clients { of, .. } | Traffic::Costing { of, .. } => of.turns(length),
            Traffic::Scaled { of, thousandths } => of.turns(scaled(length, *thousandths, 1_000)),
            Traffic::Merged(parts) => parts.iter().map(|part| part.turns(length)).fold(0, u64::saturating_add),
            Traffic::Sequence(parts) => {
                let of = |(part, lasts): &(Traffic, Micros)| part.turns(length.min(*lasts));
                parts.iter().map(of).fold(0, u64::saturating_add)
            }
        }
    }

    /// One more than the highest number of a client.
    #[must_use]
    pub fn clients(&self) -> u32 {
        match self {
            Traffic::Flow { .. } | Traffic::Spike { .. } | Traffic::Boundary { .. } => 1,
            Traffic::Recorded(trace) => trace.clients(),
            Traffic::Clients { popularity, first, .. } => first.saturating_add(popularity.clients()),
            Traffic::Costing { of, .. } | Traffic::Scaled { of, .. } => of.clients(),
            Traffic::Merged(parts) => parts.iter().map(Traffic::clients).max().unwrap_or(1),
            Traffic::Sequence(parts) => parts.iter().map(|(part, _)| part.clients()).max().unwrap_or(1),
        }
    }
}

/// `span · by / of`, rounded down.
pub(crate) fn scaled(span: Micros, by: u32, of: u32) -> Micros {
    let exact = u128::from(span.get()) * u128::from(by) / u128::from(of.max(1));
    Micros::new(u64::try_from(exact).unwrap_or(u64::MAX))
}

/// The attack on the windows' ends between `start` and `end`.
fn boundary(count: u64, window: Micros, start: Timestamp, end: Timestamp) -> impl Iterator<Item = Arrival> + Send {
    let length = window.get().max(2);
    let near = (length / 1_000).max(1);
    let first = start.as_micros() / length + 1;
    let boundaries = (first..).step_by(2).map(move |n| n.saturating_mul(length));
    let boundaries = boundaries.take_while(move |&boundary| boundary <= end.as_micros().saturating_add(near));
    let around = move |boundary: u64| {
        (0..count.saturating_mul(2)).map(move |n| {
            let before = boundary - near;
            // Over both thousandths; what comes at the boundary itself belongs to the next window.
            let offset = u128::from(n) * u128::from(near) / u128::from(count.max(1));
            Timestamp::from_micros(before.saturating_add(u64::try_from(offset).unwrap_or(0)))
        })
    };
    let all = boundaries.flat_map(around).filter(move |&at| at >= start && at < end);
    all.map(|at| Arrival { at, client: 0, cost: 1 })
}

/// Several streams as one; of arrivals at the same instant, the earlier part's come first.
struct Merged {
    parts: Vec<Peekable<Arrivals>>,
}

impl Iterator for Merged {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let heads = self.parts.iter_mut().enumerate();
        let heads = heads.filter_map(|(number, part)| part.peek().map(|arrival| (arrival.at, number)));
        let (_, first) = heads.min()?;
        self.parts.get_mut(first)?.next()
    }
}

/// As it is read.
impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        notation::write(self, f)
    }
}
