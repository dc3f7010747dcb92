//! Traffic as averages: the expected cost of each kind of client over time.

use std::collections::BTreeSet;
use std::rc::Rc;

use tidegate_core::{Micros, Timestamp};

use crate::traffic::{Spacing, Traffic, scaled};

/// The mean number of requests up to a time after the start.
type Mean = Rc<dyn Fn(Micros) -> f64>;

/// One source of requests, and the share that each client has in it.
#[derive(Clone)]
struct MeanSource {
    mean: Mean,
    /// The mean cost of a request.
    cost: f64,
    /// The cost of each request, if they are a Poisson process and cost the same.
    random_cost: Option<u64>,
    /// Ranges of clients: the first number, the count, and the share of each client.
    shares: Vec<(u32, u32, f64)>,
}

/// Clients that behave alike.
pub(super) struct ClientKind {
    pub(super) clients: u32,
    /// The sources that these clients belong to, with the share of each client.
    parts: Vec<(usize, f64)>,
}

/// All sources of some traffic, and its kinds of clients.
pub(super) struct Crowd {
    sources: Vec<MeanSource>,
    kinds: Vec<ClientKind>,
    /// The shortest phase of any source.
    pub(super) finest: Micros,
}

impl Crowd {
    pub(super) fn of(traffic: &Traffic, start: Timestamp, length: Micros) -> Crowd {
        let mut finest = length;
        let sources = sources(traffic, start, &mut finest);
        // Between two of these numbers, all clients have the same share in every source.
        let ends = sources.iter().flat_map(|source| &source.shares).flat_map(|(first, size, _)| [*first, first + size]);
        let ends: Vec<u32> = ends.collect::<BTreeSet<u32>>().into_iter().collect();
        let kinds = ends.windows(2).filter_map(|pair| {
            let [from, to] = pair else { return None };
            let share = |source: &MeanSource| {
                let inside = source.shares.partition_point(|(first, ..)| first <= from).checked_sub(1)?;
                let (first, size, share) = source.shares[inside];
                (from - first < size).then_some(share)
            };
            let parts: Vec<_> =
                sources.iter().enumerate().filter_map(|(n, source)| Some((n, share(source)?))).collect();
            (!parts.is_empty()).then_some(ClientKind { clients: to - from, parts })
        });
        let kinds = kinds.collect();
        Crowd { sources, kinds, finest }
    }

    pub(super) fn arrivals(&self, by: Micros) -> f64 {
        self.sources.iter().map(|source| (source.mean)(by)).sum()
    }

    pub(super) fn cost(&self, by: Micros) -> f64 {
        self.sources.iter().map(|source| (source.mean)(by) * source.cost).sum()
    }

    /// The cost of every request, if all are random and cost the same.
    pub(super) fn random_cost(&self) -> Option<u64> {
        let (first, rest) = self.sources.split_first()?;
        first.random_cost.filter(|cost| rest.iter().all(|source| source.random_cost == Some(*cost)))
    }

    pub(super) fn kinds(&self) -> &[ClientKind] {
        &self.kinds
    }

    /// The expected cost that a client of this kind has requested up to `by` after the start.
    pub(super) fn asked(&self, kind: &ClientKind, by: Micros) -> f64 {
        let of = |(source, share): &(usize, f64)| {
            let source = &self.sources[*source];
            (source.mean)(by) * share * source.cost
        };
        kind.parts.iter().map(of).sum()
    }
}

fn sources(traffic: &Traffic, start: Timestamp, finest: &mut Micros) -> Vec<MeanSource> {
    let alone = |mean: Mean| vec![MeanSource { mean, cost: 1.0, random_cost: None, shares: vec![(0, 1, 1.0)] }];
    match traffic {
        Traffic::Flow { shape, spacing } => {
            let (shape, random_cost) = (*shape, (*spacing == Spacing::Random).then_some(1));
            *finest = shape.shortest_phase().map_or(*finest, |phase| phase.min(*finest));
            let sources = alone(Rc::new(move |by| shape.count_by(by)));
            sources.into_iter().map(|source| MeanSource { random_cost, ..source }).collect()
        }
        &Traffic::Spike { count, at, within } => {
            *finest = if within.is_zero() { *finest } else { within.min(*finest) };
            alone(Rc::new(move |by| match by.get().checked_sub(at.get()) {
                None | Some(0) => 0.0,
                Some(since) if since >= within.get() => count as f64,
                Some(since) => count as f64 * since as f64 / within.get() as f64,
            }))
        }
        &Traffic::Boundary { count, window } => {
            let length = window.get().max(2);
            let near = (length / 1_000).max(1);
            let first = length - start.as_micros() % length;
            *finest = Micros::new(near).min(*finest);
            alone(Rc::new(move |by| {
                let Some(since) = by.get().checked_sub(first.saturating_sub(near)) else { return 0.0 };
                let whole = since / (2 * length);
                let part = (since % (2 * length)).min(2 * near);
                (whole as f64 + part as f64 / (2 * near) as f64) * 2.0 * count as f64
            }))
        }
        Traffic::Recorded(trace) => {
            let cost = trace.mean_cost();
            let by_client = trace.shares();
            let trace = trace.clone();
            let mean: Mean = Rc::new(move |by| trace.count_by(by) as f64);
            let shares = by_client.into_iter().zip(0..).map(|(share, client)| (client, 1, share)).collect();
            vec![MeanSource { mean, cost, random_cost: None, shares }]
        }
        Traffic::Clients { of, popularity, first } => {
            let mut begins = *first;
            let mut shares = Vec::new();
            for (size, share) in popularity.groups() {
                shares.push((begins, size, share));
                begins += size;
            }
            let inner = sources(of, start, finest);
            inner.into_iter().map(|source| MeanSource { shares: shares.clone(), ..source }).collect()
        }
        Traffic::Costing { of, cost } => {
            let costing = |source: MeanSource| {
                let random_cost = source.random_cost.map(|_| *cost);
                MeanSource { cost: *cost as f64, random_cost, ..source }
            };
            sources(of, start, finest).into_iter().map(costing).collect()
        }
        Traffic::Scaled { of, thousandths } => {
            let factor = *thousandths;
            let mut inside = scaled(*finest, factor, 1_000);
            let inner = sources(of, start, &mut inside);
            *finest = scaled(inside, 1_000, factor).min(*finest).max(Micros::new(1));
            let quicker = |source: MeanSource| {
                let mean = source.mean;
                MeanSource { mean: Rc::new(move |by| mean(scaled(by, factor, 1_000))), ..source }
            };
            inner.into_iter().map(quicker).collect()
        }
        Traffic::Merged(parts) => parts.iter().flat_map(|part| sources(part, start, finest)).collect(),
        Traffic::Sequence(parts) => {
            let mut begins = Micros::ZERO;
            let mut all = Vec::new();
            for (part, lasts) in parts {
                let (from, lasts) = (begins, *lasts);
                let mut inside = lasts.min(*finest);
                for source in sources(part, start + from, &mut inside) {
                    let mean = source.mean;
                    let later = move |by: Micros| mean(Micros::new(by.get().saturating_sub(from.get())).min(lasts));
                    all.push(MeanSource { mean: Rc::new(later), ..source });
                }
                // A part of almost no length is a step change, which the model's steps need not resolve.
                *finest = inside.max(Micros::new(finest.get() / 10_000)).min(*finest);
                begins = Micros::new(begins.get().saturating_add(lasts.get()));
            }
            all
        }
    }
}
