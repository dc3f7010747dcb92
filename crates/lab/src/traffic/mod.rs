//! Models of traffic: arrivals with a time, a client and a cost.
//!
//! A model with a length and a seed becomes a sequence of arrivals, which is the same on every machine (see
//! [`random`](crate::random)). Models have a notation:
//!
//! ```text
//! steady 20/s                              evenly spaced
//! poisson 20/s                             random
//! square 100/s 5/s every 10s               5 s at one rate, 5 s at the other, repeated
//! ramp 0/s 200/s over 1min                 from one rate to the other, which then stays
//! on-off 50/s on 2s off 8s                 bursts with silence between
//! spike 500 at 30s within 1s               500 at once, or within a span
//! boundary 100 every 1min                  100 just before the end of a window, and 100 just after
//! ```
//!
//! Options follow a model: `random` (random instead of even spacing), `clients 1000` (arrivals of 1000 clients, all equally
//! popular), `clients 1000 zipf 1.1` (some more popular than others), `as 7` (the first client has number 7), `cost 5`,
//! `times 2` (twice the load), `for 30s`. `then` joins parts one after the other, and `+` at the same time:
//!
//! ```text
//! poisson 200/s clients 500 zipf 1 + boundary 100 every 1s as 9000
//! steady 10/s for 1min then spike 1000 then steady 10/s
//! ```

mod flow;
mod notation;
mod popularity;
mod trace;

pub use flow::{FlowShape, Spacing};
use notation::FOREVER;
pub use notation::TrafficError;
pub use popularity::Popularity;
pub use trace::{Trace, TraceError};

use std::fmt;
use std::iter::Peekable;
use std::sync::Arc;

use tidegate_core::{Micros, Timestamp};

use self::flow::Flow;
use crate::random::Random;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The instant of arrival.
    pub at: Timestamp,
    /// The client's number, from 0.
    pub client: u32,
    /// The cost.
    pub cost: u64,
}

/// The default start: a midnight at which a minute, an hour, a day, a week and a month all begin.
pub const START: Timestamp = Timestamp::from_secs(1_767_225_600);

/// The most clients that one model can have.
pub const MOST_CLIENTS: u32 = 10_000_000;

/// A model of traffic.
#[derive(Clone, Debug, PartialEq)]
pub enum Traffic {
    /// Arrivals at a rate that may change over time.
    Flow {
        /// The rate over time.
        shape: FlowShape,
        /// The spacing of arrivals.
        spacing: Spacing,
    },
    /// A burst of arrivals.
    Spike {
        /// The number of arrivals.
        count: u64,
        /// The start of the burst.
        at: Micros,
        /// The span over which they are spread evenly.
        within: Micros,
    },
    /// An attack on fixed windows: `count` arrivals in the last thousandth of every other window, and `count` in the first
    /// thousandth of the next. Windows are aligned to the epoch, as in the engine.
    Boundary {
        /// The number of arrivals on each side.
        count: u64,
        /// The length of the windows.
        window: Micros,
    },
    /// Recorded arrivals.
    Recorded(Arc<Trace>),
    /// Traffic that is spread over many clients.
    Clients {
        /// The traffic.
        of: Box<Traffic>,
        /// The clients.
        popularity: Popularity,
        /// The number of the first client.
        first: u32,
    },
    /// Traffic at another cost.
    Costing {
        /// The traffic.
        of: Box<Traffic>,
        /// The cost of each arrival.
        cost: u64,
    },
    /// Traffic sped up: `thousandths / 1000` times as many arrivals in the same time.
    Scaled {
        /// The traffic.
        of: Box<Traffic>,
        /// The factor, in thousandths.
        thousandths: u32,
    },
    /// Several kinds of traffic at the same time.
    Merged(Vec<Traffic>),
    /// Several kinds of traffic one after the other, each with its length.
    Sequence(Vec<(Traffic, Micros)>),
}

/// Arrivals, in order.
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

    /// The time from the start to the end of the last part whose length is stated; `None` if none is.
    ///
    /// ```
    /// use tidegate_core::Micros;
    /// use tidegate_lab::traffic::Traffic;
    ///
    /// let traffic: Traffic = "steady 10/s for 5min then steady 20/s".parse()?;
    /// assert_eq!(traffic.stated_length(), Some(Micros::from_secs(300)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stated_length(&self) -> Option<Micros> {
        match self {
            Traffic::Flow { .. } | Traffic::Boundary { .. } => None,
            Traffic::Spike { at, within, .. } => Some(Micros::new(at.get().saturating_add(within.get()))),
            Traffic::Recorded(trace) => Some(trace.length()),
            Traffic::Clients { of, .. } | Traffic::Costing { of, .. } => of.stated_length(),
            Traffic::Scaled { of, thousandths } => of.stated_length().map(|length| scaled(length, 1_000, *thousandths)),
            Traffic::Merged(parts) => parts.iter().filter_map(Traffic::stated_length).max(),
            Traffic::Sequence(parts) => {
                let stated = parts.iter().map(|(_, lasts)| lasts.get()).filter(|&lasts| lasts < FOREVER.get());
                stated.reduce(u64::saturating_add).map(Micros::new)
            }
        }
    }

    /// Whether arrivals go on for as long as the run lasts.
    #[must_use]
    pub fn is_endless(&self) -> bool {
        match self {
            Traffic::Flow { .. } | Traffic::Boundary { .. } => true,
            Traffic::Spike { .. } | Traffic::Recorded(_) => false,
            Traffic::Clients { of, .. } | Traffic::Costing { of, .. } | Traffic::Scaled { of, .. } => of.is_endless(),
            Traffic::Merged(parts) => parts.iter().any(Traffic::is_endless),
            Traffic::Sequence(parts) => parts.iter().any(|(part, lasts)| *lasts == FOREVER && part.is_endless()),
        }
    }

    /// The number of phases and windows within `length`. Generating arrivals takes time for each of them, even without
    /// arrivals.
    #[must_use]
    pub fn phases(&self, length: Micros) -> u64 {
        match self {
            // A ramp ends once and does not repeat.
            Traffic::Flow { shape: FlowShape::Ramp { .. }, .. } => 2,
            Traffic::Flow { shape, .. } => {
                shape.shortest_phase().map_or(1, |phase| 2 * (length.get() / phase.get().max(1)) + 1)
            }
            Traffic::Boundary { window, .. } => length.get() / window.get().max(1) + 1,
            Traffic::Spike { .. } | Traffic::Recorded(_) => 1,
            Traffic::Clients { of, .. } | Traffic::Costing { of, .. } => of.phases(length),
            Traffic::Scaled { of, thousandths } => of.phases(scaled(length, *thousandths, 1_000)),
            Traffic::Merged(parts) => parts.iter().map(|part| part.phases(length)).fold(0, u64::saturating_add),
            Traffic::Sequence(parts) => {
                let of = |(part, lasts): &(Traffic, Micros)| part.phases(length.min(*lasts));
                parts.iter().map(of).fold(0, u64::saturating_add)
            }
        }
    }

    /// The highest client number plus one.
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

/// Computes `span · by / of`, rounded down.
pub(crate) fn scaled(span: Micros, by: u32, of: u32) -> Micros {
    let exact = u128::from(span.get()) * u128::from(by) / u128::from(of.max(1));
    Micros::new(u64::try_from(exact).unwrap_or(u64::MAX))
}

/// The arrivals of a boundary attack between `start` and `end`.
fn boundary(count: u64, window: Micros, start: Timestamp, end: Timestamp) -> impl Iterator<Item = Arrival> + Send {
    let length = window.get().max(2);
    let near = (length / 1_000).max(1);
    let first = start.as_micros() / length + 1;
    let boundaries = (first..).step_by(2).map(move |n| n.saturating_mul(length));
    let boundaries = boundaries.take_while(move |&boundary| boundary <= end.as_micros().saturating_add(near));
    let around = move |boundary: u64| {
        (0..count.saturating_mul(2)).map(move |n| {
            let before = boundary - near;
            // The arrivals are spread over both thousandths. An arrival at the boundary belongs to the next window.
            let offset = u128::from(n) * u128::from(near) / u128::from(count.max(1));
            Timestamp::from_micros(before.saturating_add(u64::try_from(offset).unwrap_or(0)))
        })
    };
    let all = boundaries.flat_map(around).filter(move |&at| at >= start && at < end);
    all.map(|at| Arrival { at, client: 0, cost: 1 })
}

/// Several streams merged into one. Of arrivals at the same instant, those of the earlier part come first.
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

/// Serialized as its notation.
impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        notation::write(self, f)
    }
}
