//! Waiting for the capacity of a host: the adaptive limit on its requests in flight.

use std::sync::Arc;

use tokio::time::Instant;

use super::host::Entry;
use super::routes::Route;
use super::wait::{InFlight, Pacer, QueuedPlace};
use crate::BoxError;
use crate::concurrency::{HostBusy, HostConcurrency, HostPermit};
use crate::counters::Counters;
use crate::hosts::Host;

impl Pacer {
    /// Holds a request that has its turn until the host has room for it.
    pub(super) async fn within_capacity<'p>(
        &'p self,
        mut in_flight: InFlight<'p>,
        route: Route,
        tokens: u64,
        deadline: Option<Instant>,
    ) -> Result<InFlight<'p>, BoxError> {
        let Some(controller) = &self.controller else { return Ok(in_flight) };
        let clock = &self.environment.clock;
        let host = Arc::clone(&in_flight.host);
        let new = || Arc::new(HostConcurrency::new(controller.clone(), Arc::clone(clock)));
        let concurrency = host.concurrency.get_or_init(new);
        let since = clock.now();
        loop {
            if let Some(permit) = concurrency.try_acquire() {
                in_flight.permit = Some(permit);
                return Ok(in_flight);
            }
            // The turn is for now. After the wait it would count in a time that has passed.
            drop(in_flight);
            let permit = self.wait_for_room(&host, concurrency, since, deadline).await?;
            in_flight = match host.pace.enter(route, tokens, clock.now()) {
                Entry::Sent(sent) => {
                    let mut in_flight = InFlight::new(self, Arc::clone(&host), sent);
                    in_flight.permit = Some(permit);
                    return Ok(in_flight);
                }
                Entry::Queued(place) => {
                    drop(permit);
                    let sent = self.wait(QueuedPlace { host: &host, place }, since, deadline).await?;
                    InFlight::new(self, Arc::clone(&host), sent)
                }
            };
        }
    }

    async fn wait_for_room(
        &self,
        host: &Host,
        concurrency: &Arc<HostConcurrency>,
        since: Instant,
        deadline: Option<Instant>,
    ) -> Result<HostPermit, HostBusy> {
        let clock = &self.environment.clock;
        let last = deadline.into_iter().chain([since + self.longest]).min().unwrap_or(since);
        Counters::add(&host.counters.waits);
        let began = clock.now();
        let permit = concurrency.acquire(last).await;
        let waited = clock.now().saturating_duration_since(began);
        host.counters.waited(waited);
        permit.ok_or_else(|| {
            Counters::add(&host.counters.busy_refusals);
            tracing::debug!(host = %host.name, ?waited, "not sending: the host is busy");
            HostBusy { host: host.name.to_string(), waited }
        })
    }
}
