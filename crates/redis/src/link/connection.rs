//! The connection to one server: callers queue calls, and a background task connects, sends them and reconnects.

use std::future::poll_fn;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::abort_on_drop::AbortOnDrop;
use super::address::Address;
use super::breaker::{BreakerRefusal, BreakerSettings, BreakerState, Evidence, backoff};
use super::call::{Abandoned, Call, CallDeadline, CallOutcome, SlotRoute};
use super::connection_config::ConnectionConfig;
use super::connection_io::ConnectionIo;
use super::error::{Cause, LinkError, Unreachable};
use super::sentinel::Sentinels;
use super::server_generation::{LastServer, RunId};
use super::session::Session;
use super::shared::{EndReason, Shared, jitter};
use super::stats::ServerStats;
use crate::frame::Frame;

/// The connection to one server, which is re-established when it ends. Clones share it. It is closed when the last clone is
/// dropped.
#[derive(Clone)]
pub(super) struct Connection {
    shared: Arc<Shared>,
    _task: Arc<AbortOnDrop>,
}

/// The source of the server's address.
pub(super) enum ServerSource {
    Fixed(Address),
    Sentinel(Sentinels),
}

impl Connection {
    pub(super) fn open(
        config: &ConnectionConfig,
        source: ServerSource,
        topology_query: Option<Arc<Notify>>,
    ) -> Connection {
        let address = match &source {
            ServerSource::Fixed(address) => Some(address.clone()),
            ServerSource::Sentinel(_) => None,
        };
        let shared = Arc::new(Shared::new(&config.settings, address, topology_query));
        let driver =
            Driver { shared: shared.clone(), config: config.clone(), source, last_server: LastServer::default() };
        let task = config.runtime.spawn(driver.run());
        Connection { shared, _task: Arc::new(AbortOnDrop(task.abort_handle())) }
    }

    /// Queues a call and waits for its outcome, until its deadline. If `generation` is given, the call is sent only in that
    /// generation of servers.
    pub(super) async fn call(
        &self,
        frame: Frame,
        route: SlotRoute,
        deadline: CallDeadline,
        generation: Option<u64>,
    ) -> CallOutcome {
        let (mut call, waiting) = Call::new(frame, route, deadline);
        call.generation = generation;
        if let Err(cause) = self.shared.queue.push(call, Instant::now()) {
            self.shared.counts.not_run();
            return CallOutcome::Failed(LinkError::NotRun(cause));
        }
        let answered = timeout_at(deadline.at, poll_fn(|cx| waiting.poll(cx))).await;
        let outcome = answered.unwrap_or_else(|_| match waiting.abandon() {
            Abandoned::Done(outcome) => outcome,
            Abandoned::Sent => CallOutcome::Failed(LinkError::Unknown(Cause::Deadline)),
            Abandoned::NotSent => {
                self.shared.failed(1, Evidence::Slow(deadline.allowed), Cause::Deadline, Instant::now());
                CallOutcome::Failed(LinkError::NotRun(Cause::Deadline))
            }
        });
        match &outcome {
            CallOutcome::Answered(_) => self.shared.counts.answered(),
            CallOutcome::Redirected(..) => self.shared.counts.redirected(),
            CallOutcome::Failed(LinkError::NotRun(_)) => self.shared.counts.not_run(),
            CallOutcome::Failed(LinkError::Unknown(_)) => self.shared.counts.unknown(),
        }
        outcome
    }

    pub(super) fn is_connected(&self) -> bool {
        self.shared.is_connected()
    }

    /// The host of the server, if it has one.
    pub(super) fn host(&self) -> Option<Arc<str>> {
        self.shared.host()
    }

    pub(super) fn stats(&self) -> ServerStats {
        self.shared.stats()
    }
}

/// The task that owns the socket.
struct Driver {
    shared: Arc<Shared>,
    config: ConnectionConfig,
    source: ServerSource,
    last_server: LastServer,
}

impl Driver {
    async fn run(mut self) {
        // The number of consecutive connections that ended before the first reply.
        let mut useless_connections = 0;
        loop {
            self.wait_for_probe().await;
            let (session, address, run_id) = match self.connect().await {
                Ok(connected) => connected,
                Err(why) => {
                    self.shared.unreachable(why, Instant::now());
                    continue;
                }
            };
            if self.last_server.is_another(run_id) {
                self.config.generation.raise();
            }
            self.shared.connected(address.clone(), Instant::now());
            let (end, was_of_use) = self.serve(session, &address).await;
            self.shared.disconnected(end, Instant::now());
            useless_connections = if was_of_use { 0 } else { useless_connections + 1 };
            if useless_connections > 0 {
                let BreakerSettings { first_wait, longest_wait, .. } = self.config.settings.breaker;
                sleep(backoff(first_wait, longest_wait, useless_connections - 1, jitter())).await;
            }
        }
    }

    /// Waits until a probe is due while the breaker is open. Connecting serves as the probe.
    async fn wait_for_probe(&self) {
        while let (BreakerState::Open, Some(at)) = self.shared.breaker_state() {
            if at <= Instant::now() {
                break;
            }
            sleep_until(at).await;
        }
        self.shared.probing(Instant::now());
    }

    async fn connect(&mut self) -> Result<(Session, Address, RunId), Unreachable> {
        let (address, must_be_primary) = match &mut self.source {
            ServerSource::Fixed(address) => (address.clone(), false),
            ServerSource::Sentinel(sentinels) => (sentinels.find().await?, true),
        };
        let ConnectionConfig { settings, connector, composer, .. } = &self.config;
        let connect = async {
            let mut session = connector.connect(&address).await?;
            let run_id = session.greet_for_calls(&settings.login, &composer.script, must_be_primary).await?;
            Ok((session, run_id))
        };
        let (session, run_id) = connector.in_time(connect).await?;
        Ok((session, address, run_id))
    }

    /// Serves calls until the connection ends. Returns why it ended, and whether any reply was received.
    async fn serve(&mut self, session: Session, address: &Address) -> (EndReason, bool) {
        let mut io = ConnectionIo::new(session, &self.shared, &self.config);
        let end = match &mut self.source {
            ServerSource::Fixed(_) => io.serve().await,
            ServerSource::Sentinel(sentinels) => {
                tokio::select! {
                    end = io.serve() => end,
                    () = sentinels.named_another(address) => {
                        tracing::info!(from = %address, "sentinels name another primary");
                        io.retire().await
                    }
                }
            }
        };
        (end, io.end(end))
    }
}

impl Drop for Driver {
    /// Fails all remaining calls: the link or its runtime was dropped.
    fn drop(&mut self) {
        self.shared.queue.refuse(BreakerRefusal::All, Cause::Closed, Instant::now());
    }
}
