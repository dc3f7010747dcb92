//! Decides the arrivals of a run.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::future::join_all;
use tidegate_core::store::Answer;
use tidegate_core::{Charge, Key, Limit, Micros, Receipt, RuleId, Store, StoreError};
use tidegate_lab::simulate::{Simulation, Totals};
use tidegate_lab::traffic::Arrival;
use tidegate_redis::RedisStore;
use tokio::time::Instant;

use super::batch::EventBatch;
use super::run_request::{RunRequest, StoreChoice};

/// Decides arrivals in memory or in Redis.
pub(super) enum RunDecider {
    /// In virtual time.
    Memory(Box<Simulation>),
    /// In real time.
    Redis(Box<RedisRun>),
}

impl RunDecider {
    pub(super) fn of(request: &RunRequest, redis: Option<&Arc<RedisStore>>) -> RunDecider {
        match (&request.store, redis) {
            (StoreChoice::Redis(name), Some(store)) => {
                RunDecider::Redis(Box::new(RedisRun::new(Arc::clone(store), name, &request.limits, request.holding)))
            }
            (StoreChoice::Redis(_) | StoreChoice::Memory, _) => {
                let simulation = || match request.holding {
                    Some(holding) => Simulation::new(&request.limits).holding(holding),
                    None => Simulation::new(&request.limits),
                };
                // Invalid combinations of servers and limits were rejected when the request was parsed.
                let served = request.server.and_then(|server| simulation().serving(server, &request.adaptations).ok());
                let leased = || simulation().leasing(&request.fleets, request.seed);
                RunDecider::Memory(Box::new(served.unwrap_or_else(leased)))
            }
        }
    }

    /// Decides arrivals in order, and adds them to a batch.
    pub(super) async fn take(
        &mut self,
        arrivals: &[Arrival],
        start: u64,
        batch: &mut EventBatch,
    ) -> Result<(), StoreError> {
        for arrival in arrivals {
            batch.arrived(arrival, arrival.at.as_micros().saturating_sub(start));
        }
        match self {
            RunDecider::Memory(simulation) => {
                for arrival in arrivals {
                    simulation.take(arrival);
                    for (number, column) in batch.limits.iter_mut().enumerate() {
                        let Some(decision) = simulation.decisions().get(number) else { continue };
                        column.decided(decision);
                        column.push_state(simulation, number, arrival, start);
                    }
                }
                Ok(())
            }
            RunDecider::Redis(run) => run.take(arrivals, batch).await,
        }
    }

    /// Skips an arrival that was sent before. In memory it is decided again; in Redis it is charged already.
    pub(super) fn skip(&mut self, arrival: &Arrival) {
        match self {
            RunDecider::Memory(simulation) => {
                simulation.take(arrival);
            }
            RunDecider::Redis(_) => {}
        }
    }

    /// Whether the decisions are the same each time.
    pub(super) const fn is_repeatable(&self) -> bool {
        matches!(self, RunDecider::Memory(_))
    }

    /// Continues the totals from before the skipped arrivals.
    pub(super) fn go_on_from(&mut self, totals: Vec<Totals>) {
        match self {
            RunDecider::Memory(_) => {}
            RunDecider::Redis(run) => run.totals = totals,
        }
    }

    pub(super) fn totals(&self) -> &[Totals] {
        match self {
            RunDecider::Memory(simulation) => simulation.totals(),
            RunDecider::Redis(run) => &run.totals,
        }
    }
}

/// A run with its state in Redis.
pub(super) struct RedisRun {
    store: Arc<RedisStore>,
    limits: Vec<(RuleId, Limit)>,
    totals: Vec<Totals>,
    holding: Option<Micros>,
    /// Held slots, and when to release them.
    held: VecDeque<(Instant, Receipt)>,
}

impl RedisRun {
    fn new(store: Arc<RedisStore>, name: &str, limits: &[Limit], holding: Option<Micros>) -> RedisRun {
        let rule = |number: usize| RuleId::new(&format!("lab-{name}-{number}"));
        let totals = vec![Totals::default(); limits.len()];
        let limits = limits.iter().enumerate().map(|(number, limit)| (rule(number), *limit)).collect();
        RedisRun { store, limits, totals, holding, held: VecDeque::new() }
    }

    async fn take(&mut self, arrivals: &[Arrival], batch: &mut EventBatch) -> Result<(), StoreError> {
        self.give_back().await?;
        let clients: Vec<String> = arrivals.iter().map(|arrival| arrival.client.to_string()).collect();
        let keys: Vec<Key<'_>> = clients.iter().map(|client| Key::of([client.as_str()])).collect();
        // Each limit decides each arrival in a separate call: in one call, a denial by one limit would charge none of
        // them.
        let (store, limits) = (&self.store, &self.limits);
        let asking = arrivals.iter().zip(&keys).flat_map(|(arrival, key)| {
            limits.iter().map(move |(rule, limit)| async move {
                let mut answer = Answer::default();
                let charge = [Charge::new(rule, key, limit).cost(arrival.cost)];
                store.decide_into((&charge).into(), &mut answer).await?;
                Ok::<_, StoreError>(answer)
            })
        });
        let answers = join_all(asking).await;
        for (arrival, answers) in arrivals.iter().zip(answers.chunks(self.limits.len().max(1))) {
            for ((answer, column), totals) in answers.iter().zip(&mut batch.limits).zip(&mut self.totals) {
                let answer = answer.as_ref().map_err(Clone::clone)?;
                let Some(decision) = answer.decisions.first() else { continue };
                column.decided(decision);
                column.push_spent(decision);
                totals.add(arrival, decision);
                if let (Some(receipt), Some(holding)) = (&answer.receipt, self.holding) {
                    self.held.push_back((Instant::now() + holding.into(), receipt.clone()));
                }
            }
        }
        Ok(())
    }

    async fn give_back(&mut self) -> Result<(), StoreError> {
        let now = Instant::now();
        while let Some((_, receipt)) = self.held.pop_front_if(|(until, _)| *until <= now) {
            self.store.settle(&receipt, &vec![0; receipt.held.len()]).await?;
        }
        Ok(())
    }
}
