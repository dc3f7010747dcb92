//! Waiting for the capacity of a host, which is its adaptive limit on requests in flight.

use std::sync::Arc;

use tidegate_core::adaptive::LimitController;
use tidegate_core::priority::Priority;
use tokio::time::Instant;

use super::turn::Entry;
use super::wait::{PacedCall, Pacer, QueuedPlace};
use crate::BoxError;
use crate::concurrency::{HostBusy, HostConcurrency, HostPermit, HostRoom};
use crate::counters::HostCounters;
use crate::deadline::last_instant;
use crate::hosts::Host;

impl Pacer {
    /// Delays a request that has its turn until the host has room for it.
    pub(super) async fn within_capacity<'p>(
        &'p self,
        controller: &LimitController,
        mut in_flight: PacedCall<'p>,
        priority: Priority,
    ) -> Result<PacedCall<'p>, BoxError> {
        let clock = &self.environment.clock;
        let (host, deadline) = (in_flight.host, in_flight.time.deadline);
        let new = || Arc::new(HostConcurrency::new(controller.clone(), &self.concurrency, clock));
        let concurrency = host.concurrency.get_or_init(new);
        let since = clock.now();
        loop {
            match concurrency.try_acquire(priority) {
                HostRoom::Granted(permit) => return Ok(in_flight.permitted(permit)),
                HostRoom::Shadow(permit) => {
                    HostCounters::add(&host.counters.shadow_waits);
                    return Ok(in_flight.permitted(permit));
                }
                HostRoom::Full => {}
            }
            // The turn is only valid now. After the wait, the request would count in a time that has passed.
            in_flight.unsend();
            in_flight.has_waited = true;
            let permit = self.wait_for_room(host, concurrency, priority, since, deadline).await?;
            let turn = &in_flight.turn;
            match self.is_paced.then(|| host.pace.enter(|| turn.route(), turn.tokens, clock.now())) {
                Some(Entry::Queued(place)) => {
                    drop(permit);
                    HostCounters::add(&host.counters.waits);
                    in_flight.sent = Some(self.wait(QueuedPlace { host, place }, since, deadline).await?);
                }
                entry => {
                    if let Some(Entry::Sent(sent)) = entry {
                        in_flight.sent = Some(sent);
                    }
                    return Ok(in_flight.permitted(permit));
                }
            }
        }
    }

    async fn wait_for_room(
        &self,
        host: &Host,
        concurrency: &Arc<HostConcurrency>,
        priority: Priority,
        since: Instant,
        deadline: Option<Instant>,
    ) -> Result<HostPermit, HostBusy> {
        let clock = &self.environment.clock;
        let last = last_instant(since, self.longest, deadline);
        HostCounters::add(&host.counters.waits);
        let began = clock.now();
        let waiting = host.counters.begin_wait();
        let permit = concurrency.acquire(priority, last).await;
        drop(waiting);
        let waited = clock.now().saturating_duration_since(began);
        host.counters.waited(waited);
        permit.ok_or_else(|| {
            HostCounters::add(&host.counters.busy_refusals);
            tracing::debug!(host = %host.name, ?waited, "not sending: the host is busy");
            HostBusy { host: host.name.to_string(), waited }
        })
    }
}
