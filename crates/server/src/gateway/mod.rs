//! The gateway: a reverse proxy in which the middleware decides what goes on.
//!
//! A connection (`connections.rs`, `downstream.rs`) brings requests; those that can be read in two ways are noticed as their bytes
//! come (`checked_io.rs`, `framing.rs`), and paths that can be are refused before anything is decided. Its service (`service.rs`)
//! identifies the client of each (`header_sanitizer.rs`, `proxy_identity.rs`) and hands it to `tidegate-tower`'s layer, which
//! answers those that the rules deny, and passes the others on to `forward.rs`. That finds the route (`route.rs`), chooses an
//! address (`upstream_group.rs`, `health.rs`, `concurrency.rs`; `shedding.rs` refuses requests under overload), takes a
//! connection to it (`upstream.rs`, `dial.rs`, `upstream_conn.rs`), writes the head for upstreams (`head.rs`), tries again
//! where that is safe (`attempts.rs`, `retry_budget.rs`, `retry_head.rs`), and returns the response with its body as it comes
//! (`response_body.rs`, `client_body.rs`), or a connection that now speaks another protocol (`upgrades.rs`, `tunnel.rs`).
//! Failures on the way, and whose fault each is, are in `failure.rs`.

mod address;
mod attempts;
mod body_pace;
mod checked_io;
mod client_body;
mod concurrency;
mod connections;
mod dial;
mod downstream;
mod failure;
mod forward;
mod framing;
#[cfg(test)]
mod fuzz;
mod head;
mod header_sanitizer;
mod health;
mod logged_request;
mod observed_request;
mod observer;
mod probe;
mod proxy_identity;
mod request_body;
mod response_body;
mod retry_budget;
mod retry_head;
mod route;
mod service;
mod shedding;
mod tunnel;
mod unread_responses;
mod upgrades;
mod upstream;
mod upstream_conn;
mod upstream_group;
mod upstream_io;

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use http::uri::PathAndQuery;
use tidegate_http::{HeaderStyle, TrustedProxies};
use tidegate_rules::PathPolicy;
use tokio_util::sync::CancellationToken;

pub use self::address::{Address, AddressError};
use self::body_pace::BodyPace;
pub use self::concurrency::Concurrency;
use self::connections::GatewayConnections;
pub(crate) use self::route::PATH_POLICIES;
pub use self::route::Route;
pub use self::shedding::Shedding;
pub use self::upgrades::Upgrades;
use crate::access_log::AccessLog;
use crate::api::AuthHeaders;
use crate::certificate_authorities::CertificateAuthorities;
use crate::engine::Engine;
use crate::identity::{CertificateName, Tokens};
use crate::listen::{Peer, Stream};
use crate::local_replies::LocalReplies;

/// The settings of the gateway.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The routes of requests.
    pub routes: Vec<Route>,
    /// Trusted proxies: client addresses and identities are taken from their headers.
    pub proxies: TrustedProxies,
    /// The headers that clients see.
    pub style: HeaderStyle,
    /// The form of the gateway's own answers, and the origins whose scripts may read them.
    pub answers: LocalReplies,
    /// The headers in which trusted proxies say who a client is.
    pub auth_headers: AuthHeaders,
    /// Whether the name in `Authorization: Basic` is the user.
    pub basic: bool,
    /// The name of a client certificate that is the user; `None` if none is.
    pub client_certificate: Option<CertificateName>,
    /// The header in which clients send their API key.
    pub api_key_header: Option<HeaderName>,
    /// The header with a request's priority, from trusted proxies and to upstreams.
    pub priority_header: Option<HeaderName>,
    /// The most bytes of a request's head.
    pub header_bytes: usize,
    /// The time for a head to come, and for a connection to be idle.
    pub header_time: Duration,
    /// The most requests at once on one HTTP/2 connection.
    pub streams: u32,
    /// Whether upstreams see the `Host` that the client asked for.
    pub keep_host: bool,
    /// The protocols that connections may change to, where a route does not say otherwise.
    pub upgrades: Upgrades,
    /// The policy for paths with several spellings, where a route does not say otherwise.
    pub paths: PathPolicy,
    /// Whether headers pass whose names have an underscore.
    pub underscores: bool,
    /// Whether `Via` is added.
    pub via: bool,
    /// The time for which a client may leave a response unread.
    pub write_time: Duration,
    /// The time for the part of a body that rules look into.
    pub inspection_time: Duration,
    /// The time for a request's body.
    pub body_time: Duration,
    /// The least bytes of a body a second, on average; 0 if any speed will do.
    pub body_rate: u64,
    /// The time at the beginning for which a body may be slower than that.
    pub body_grace: Duration,
    /// The time for which an upgraded connection may be silent.
    pub tunnel_idle_time: Duration,
    /// The time of silence after which TCP keepalive asks whether an upstream is there; zero if it never asks.
    pub keepalive_time: Duration,
    /// The time to connect.
    pub connect_time: Duration,
    /// The time for an upstream to begin its response.
    pub response_time: Duration,
    /// The time for which a response may stand still in the middle.
    pub stall_time: Duration,
    /// The time for which an idle connection to an upstream is kept.
    pub pool_idle_time: Duration,
    /// The most idle connections to one address that are kept.
    pub pool_idle_connections: usize,
    /// The most retries of a request.
    pub retries: u32,
    /// The most retries among a hundred requests.
    pub retry_percent: u32,
    /// The adaptive limit on requests in flight at each address; `None` if there is none.
    pub concurrency: Option<Concurrency>,
    /// Load shedding; `None` if it is off.
    pub shedding: Option<Shedding>,
    /// Paths whose requests are never shed, nor held to the adaptive limit.
    pub overload_exempt: Arc<[String]>,
    /// The time for which an address that fails rests at first.
    pub backoff_time: Duration,
    /// The path of health checks; `None` if there are none.
    pub health_path: Option<PathAndQuery>,
    /// The time between two health checks.
    pub health_interval: Duration,
    /// Whether requests that reach no upstream get back what they were charged.
    pub refund_unserved: bool,
    /// The authorities for the certificates of upstreams.
    pub trust: CertificateAuthorities,
    /// The access log, if there is one.
    pub access_log: Option<Arc<AccessLog>>,
}

impl Settings {
    /// Forwards along these routes, with the defaults for the rest.
    #[must_use]
    pub fn new(routes: Vec<Route>) -> Settings {
        Settings {
            routes,
            proxies: TrustedProxies::none(),
            style: HeaderStyle::default(),
            answers: LocalReplies::default(),
            auth_headers: AuthHeaders::default(),
            basic: false,
            client_certificate: None,
            api_key_header: None,
            priority_header: None,
            header_bytes: 16 * 1_024,
            header_time: Duration::from_secs(20),
            streams: 128,
            keep_host: true,
            underscores: false,
            upgrades: Upgrades::default(),
            paths: PathPolicy::Canonical,
            via: false,
            write_time: Duration::from_secs(30),
            inspection_time: Duration::from_secs(20),
            body_time: Duration::from_secs(24 * 60 * 60),
            body_rate: 500,
            body_grace: Duration::from_secs(20),
            tunnel_idle_time: Duration::from_secs(60 * 60),
            keepalive_time: Duration::from_secs(60),
            connect_time: Duration::from_secs(2),
            response_time: Duration::from_secs(60),
            stall_time: Duration::from_secs(60),
            pool_idle_time: Duration::from_secs(30),
            pool_idle_connections: 256,
            retries: 1,
            retry_percent: 20,
            concurrency: None,
            shedding: None,
            overload_exempt: Arc::default(),
            backoff_time: Duration::from_secs(1),
            health_path: None,
            health_interval: Duration::from_secs(5),
            refund_unserved: true,
            trust: CertificateAuthorities::web(),
            access_log: None,
        }
    }

    /// The least speed of requests' bodies.
    const fn body_pace(&self) -> BodyPace {
        BodyPace { time: self.body_time, rate: self.body_rate, grace: self.body_grace }
    }

    /// Whether there is any upstream.
    #[must_use]
    pub const fn has_upstreams(&self) -> bool {
        !self.routes.is_empty()
    }
}

/// The gateway: serves one connection after the other.
#[derive(Clone)]
pub struct GatewayServer(Arc<GatewayConnections>);

impl GatewayServer {
    /// A gateway that asks `engine`, and verifies `tokens` if there are any. Upstreams are looked after until `stop`.
    ///
    /// It needs a Tokio runtime.
    #[must_use]
    pub fn open(
        engine: &Arc<Engine>,
        settings: Settings,
        tokens: Option<Tokens>,
        stop: &CancellationToken,
    ) -> GatewayServer {
        GatewayServer(Arc::new(GatewayConnections::new(engine, settings, tokens, stop)))
    }

    /// Answers as these settings say from the next connection on: with their headers, bodies and origins. The rest of them needs a
    /// restart.
    pub(crate) fn apply(&self, settings: &Settings) {
        self.0.apply(settings);
    }

    /// Serves a connection until it ends, or until it is told to stop and has finished what is in flight.
    pub async fn serve(self, stream: Stream, peer: Peer, stop: CancellationToken) {
        self.0.serve(stream, peer, stop).await;
    }
}
