//! The Redis client: batched calls of one script, with deadlines and a circuit breaker.
//!
//! A [`Link`] opens its connections, monitors them, and replaces them. Calls wait in a bounded queue. While a batch is in
//! flight, the next one is collected; an idle link sends immediately. A call that is not answered by its deadline fails,
//! and the error states whether the call may have run. If it is still queued then, it is never sent. When a server does not
//! answer, a circuit breaker makes calls fail immediately, and probes the server until it answers.
//!
//! A call that certainly did not run is sent once more if that helps: if the server had lost its script, if the connection
//! broke before the whole call was sent, or if a cluster redirects it. A call that may have run is never sent again.

mod abort_on_drop;
mod address;
mod batch;
mod breaker;
mod call;
mod cluster;
mod connection;
mod connection_config;
mod connection_io;
mod dialer;
mod endpoint;
mod error;
mod greeting;
mod in_flight;
mod queue;
mod resp;
mod script;
mod sentinel;
mod server_error;
mod server_generation;
mod session;
mod settings;
mod settings_error;
mod shared;
mod slot_owners;
mod stats;
mod stream;
mod sync;
mod times;
mod tls;
mod topology;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Clock;
use tokio::runtime::Handle;
use tokio::time::Instant;

pub use self::address::Address;
pub(crate) use self::endpoint::{Announcements, Endpoint};
pub(crate) use self::resp::{Bound, RespReply};
pub(crate) use self::server_error::Redirection;
pub(crate) use self::session::{Commands, Session};
pub(crate) use self::slot_owners::SlotOwners;

pub use self::breaker::{BreakerSettings, BreakerState};
pub use self::dialer::Dialer;
pub use self::error::{Cause, LinkError, Unreachable};
pub use self::server_error::{ErrorCode, ServerError};
pub use self::settings::{BatchSettings, Login, Settings};
pub use self::settings_error::SettingsError;
pub use self::stats::{LinkCounts, LinkStats, ServerStats};
pub use self::times::CallTimes;
pub use self::tls::Tls;

use self::batch::Composer;
use self::call::{CallDeadline, CallOutcome, SlotRoute};
use self::cluster::Cluster;
use self::connection::{Connection, ServerSource};
use self::connection_config::ConnectionConfig;
use self::script::Script;
use self::sentinel::Sentinels;
use self::server_generation::ServerGeneration;
use self::session::Connector;
use self::settings::Servers;
use self::times::CallHistograms;
use crate::frame::Frame;

/// The longest deadline. Longer ones are reduced to it.
const FOREVER: Duration = Duration::from_secs(24 * 60 * 60);

/// A client of a standalone Redis, a primary behind Sentinel, or a Cluster. Share it by reference or in an `Arc`. Its
/// connections are closed when it is dropped.
pub struct Link {
    route: Destination,
    times: CallHistograms,
    generation: ServerGeneration,
}

enum Destination {
    One(Connection),
    Cluster(Cluster),
}

impl Link {
    /// Starts to connect in the background. Every call runs `script`, which uses the server's clock.
    ///
    /// # Errors
    /// Fails if the settings are invalid, or there is no Tokio runtime.
    pub fn open(settings: Settings, script: &str) -> Result<Link, SettingsError> {
        Link::open_with(settings, Script::new(script, None))
    }

    /// Like [`Link::open`], but the script uses `clock`, which is read once for every call of the script.
    ///
    /// # Errors
    /// As [`Link::open`].
    pub fn open_with_clock(
        settings: Settings,
        script: &str,
        clock: impl Clock + 'static,
    ) -> Result<Link, SettingsError> {
        Link::open_with(settings, Script::new(script, Some(Arc::new(clock))))
    }

    fn open_with(settings: Settings, script: Script) -> Result<Link, SettingsError> {
        settings.check()?;
        let runtime = Handle::try_current().map_err(|_| SettingsError::NoRuntime)?;
        let connector = Connector::new(&settings)?;
        let by_slot = matches!(settings.servers, Servers::Cluster(_));
        let composer = Composer { script, by_slot };
        let servers = settings.servers.clone();
        let generation = ServerGeneration::default();
        let settings = Arc::new(settings);
        let config = ConnectionConfig { settings, connector, composer, runtime, generation: generation.clone() };
        let route = match servers {
            Servers::Standalone(address) => {
                Destination::One(Connection::open(&config, ServerSource::Fixed(address), None))
            }
            Servers::Sentinel { primary, sentinels, login } => {
                let watch = Sentinels::watch(&config.runtime, &primary, &sentinels, config.connector.clone(), login);
                Destination::One(Connection::open(&config, ServerSource::Sentinel(watch), None))
            }
            Servers::Cluster(nodes) => Destination::Cluster(Cluster::open(&config, nodes)),
        };
        Ok(Link { route, times: CallHistograms::default(), generation })
    }

    /// Runs a request, and waits for its answer until `deadline`. If the future is dropped while the request is queued, the
    /// request never runs.
    ///
    /// # Errors
    /// Fails if the request was not answered. The error states whether the request may have run.
    pub async fn call(&self, frame: Frame, deadline: Duration) -> Result<Vec<u8>, LinkError> {
        self.run(frame, deadline, None).await
    }

    /// Like [`Link::call`], but the request does not run if a server has been replaced since the link had this
    /// [generation](Link::server_generation).
    ///
    /// # Errors
    /// As [`Link::call`].
    pub async fn call_in_generation(
        &self,
        frame: Frame,
        deadline: Duration,
        generation: u64,
    ) -> Result<Vec<u8>, LinkError> {
        self.run(frame, deadline, Some(generation)).await
    }

    async fn run(&self, frame: Frame, deadline: Duration, generation: Option<u64>) -> Result<Vec<u8>, LinkError> {
        let begun = Instant::now();
        let result = self.route(frame, CallDeadline::after(deadline.min(FOREVER), begun), generation).await;
        self.times.note(begun.elapsed(), &result);
        result
    }

    async fn route(&self, frame: Frame, deadline: CallDeadline, generation: Option<u64>) -> Result<Vec<u8>, LinkError> {
        match &self.route {
            Destination::Cluster(cluster) => cluster.call(frame, deadline, generation).await,
            Destination::One(connection) => {
                match connection.call(frame, SlotRoute::default(), deadline, generation).await {
                    CallOutcome::Answered(answer) => Ok(answer),
                    CallOutcome::Failed(error) => Err(error),
                    CallOutcome::Redirected(fault, _) => Err(LinkError::NotRun(Cause::Refused(fault))),
                }
            }
        }
    }

    /// Number of times that a server was replaced by another one, which may lack recent changes. This is assumed if the server has
    /// another run id, does not return its run id after a reconnect, or serves a slot of the cluster that another node
    /// served.
    ///
    /// Increases before anything is sent to the new server.
    #[must_use]
    pub fn server_generation(&self) -> u64 {
        self.generation.get()
    }

    /// Returns `true` if all keys of a call must be in one slot.
    #[must_use]
    pub const fn is_cluster(&self) -> bool {
        matches!(self.route, Destination::Cluster(_))
    }

    /// Durations of calls, and the causes of failures.
    #[must_use]
    pub fn times(&self) -> CallTimes {
        self.times.shown()
    }

    /// The state of the link, and its counters.
    #[must_use]
    pub fn stats(&self) -> LinkStats {
        match &self.route {
            Destination::One(connection) => LinkStats { servers: vec![connection.stats()], topology_failure: None },
            Destination::Cluster(cluster) => cluster.stats(),
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
