//! Getting requests to a server and answers back, in time or not at all.
//!
//! A [`Link`] owns its connections: it makes them, watches them, and makes them anew. A call takes its place in a bounded
//! queue. While a batch is on its way the next one gathers; a link that is idle sends at once. A call that has not been
//! answered by its deadline fails then, and says whether it may have run all the same: one that still waited for its turn
//! is never sent. When a server does not answer, a breaker lets calls fail at once and probes until it does.
//!
//! A call that certainly did not run is sent once more where that helps: if the server had lost its script, if the
//! connection broke before the whole of it was sent, if a cluster says that it belongs elsewhere. A call that may have run
//! is never sent again.

mod address;
mod batch;
mod breaker;
mod call;
mod cluster;
mod endpoint;
mod error;
mod fault;
mod flight;
mod greeting;
mod line;
mod queue;
mod resp;
mod script;
mod sentinel;
mod session;
mod settings;
mod slots;
mod stats;
mod stream;
mod sync;
mod times;
mod tls;
mod topology;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Clock;
use tokio::runtime::Handle;
use tokio::time::Instant;

pub use self::address::Address;
pub(crate) use self::endpoint::{Announcements, Endpoint};
pub(crate) use self::fault::Redirection;
pub(crate) use self::resp::{Bound, Reply};
pub(crate) use self::session::{Commands, Session};

pub use self::breaker::{BreakerSettings, BreakerState};
pub use self::error::{Cause, LinkError, Unreachable};
pub use self::fault::{Code, Fault};
pub use self::settings::{Batch, Login, Settings, SettingsError};
pub use self::slots::slot_of;
pub use self::stats::{LinkCounts, LinkStats, ServerStats};
pub use self::times::CallTimes;
pub use self::tls::Tls;

use self::batch::Composer;
use self::call::{Berth, Deadline, Outcome};
use self::cluster::Cluster;
use self::line::{Line, Plan, Way};
use self::script::Script;
use self::sentinel::Sentinels;
use self::session::Connector;
use self::settings::Servers;
use self::times::Times;
use crate::frame::Frame;

/// A longer deadline than this is as good as none.
const FOREVER: Duration = Duration::from_secs(24 * 60 * 60);

/// The way to Redis, whichever kind it is. Share it by reference or in an `Arc`; when it is dropped, its connections end.
pub struct Link {
    route: Route,
    times: Times,
}

enum Route {
    One(Line),
    Cluster(Cluster),
}

impl Link {
    /// Begins to connect, and returns at once. `script` is what every call runs; it is told to use the server's clock.
    ///
    /// # Errors
    /// If the settings make no sense, or there is no Tokio runtime to run on.
    pub fn open(settings: Settings, script: &str) -> Result<Link, SettingsError> {
        Link::open_with(settings, Script::new(script, None))
    }

    /// As [`Link::open`], but the script is told to use `clock`, which is read once for every call of the script.
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
        let plan = Plan { settings: Arc::new(settings), connector, composer, runtime };
        let route = match servers {
            Servers::Standalone(address) => Route::One(Line::open(&plan, Way::Fixed(address), None)),
            Servers::Sentinel { primary, sentinels, login } => {
                let watch = Sentinels::watch(&plan.runtime, &primary, &sentinels, plan.connector.clone(), login);
                Route::One(Line::open(&plan, Way::Sentinel(watch), None))
            }
            Servers::Cluster(nodes) => Route::Cluster(Cluster::open(&plan, nodes)),
        };
        Ok(Link { route, times: Times::default() })
    }

    /// Runs a request, and waits for its answer no longer than `deadline`. Dropping the future before its turn has come
    /// means that it never runs.
    ///
    /// # Errors
    /// If it was not answered. The error says whether it may have run.
    pub async fn call(&self, frame: Frame, deadline: Duration) -> Result<Vec<u8>, LinkError> {
        let begun = Instant::now();
        let result = self.run(frame, Deadline::after(deadline.min(FOREVER), begun)).await;
        self.times.note(begun.elapsed(), &result);
        result
    }

    async fn run(&self, frame: Frame, deadline: Deadline) -> Result<Vec<u8>, LinkError> {
        match &self.route {
            Route::Cluster(cluster) => cluster.call(frame, deadline).await,
            Route::One(line) => match line.call(frame, Berth::default(), deadline).await {
                Outcome::Answered(answer) => Ok(answer),
                Outcome::Failed(error) => Err(error),
                Outcome::Redirected(fault, _) => Err(LinkError::NotRun(Cause::Refused(fault))),
            },
        }
    }

    /// Whether the keys of one call have to lie in one slot.
    #[must_use]
    pub const fn is_cluster(&self) -> bool {
        matches!(self.route, Route::Cluster(_))
    }

    /// How long calls took, and why some of them failed.
    #[must_use]
    pub fn times(&self) -> CallTimes {
        self.times.shown()
    }

    /// How the link is, and what it has done.
    #[must_use]
    pub fn stats(&self) -> LinkStats {
        let servers = match &self.route {
            Route::One(line) => vec![line.stats()],
            Route::Cluster(cluster) => cluster.stats(),
        };
        LinkStats { servers }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
