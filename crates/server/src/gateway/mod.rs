//! The gateway: a reverse proxy that forwards the requests that the middleware allows.
//!
//! A connection (`connections.rs`, `connection_settings.rs`, `downstream.rs`) delivers requests. Ambiguous framing is
//! detected as bytes are read (`checked_io.rs`, `framing.rs`), and ambiguous paths are refused before any decision. The
//! connection's service (`service.rs`) identifies the client of each request (`header_sanitizer.rs`,
//! `proxy_identity.rs`) and passes the request to `tidegate-tower`'s layer, which answers denied requests and passes
//! allowed ones to `forward.rs`. That module finds the route (`forwarder.rs`, `route.rs`), chooses an address
//! (`upstream_group.rs`, `health.rs`, `concurrency.rs`; `shedding.rs` refuses requests under overload), takes a
//! connection to it (`upstream.rs`, `dial.rs`, `upstream_conn.rs`), rewrites the head (`head.rs`), retries where that
//! is safe (`attempts.rs`, `retry_budget.rs`, `retry_head.rs`), and returns the response with a streamed body
//! (`response_body.rs`, `client_body.rs`), or an upgraded connection (`upgrades.rs`, `tunnel.rs`). Failures, and which
//! side is at fault, are in `failure.rs`.

mod address;
mod attempts;
mod body_pace;
mod checked_io;
mod client_body;
mod concurrency;
mod connection_settings;
mod connections;
mod dial;
mod downstream;
mod failure;
mod forward;
mod forwarded_body;
mod forwarder;
mod framing;
#[cfg(test)]
mod fuzz;
mod head;
mod header_sanitizer;
mod health;
mod logged_request;
mod observed_request;
mod observer;
mod overload_exempt;
mod probe;
mod proxy_identity;
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

pub use self::address::{AddressError, UpstreamAddress};
use self::body_pace::BodyPace;
pub use self::concurrency::UpstreamLimit;
use self::connections::GatewayConnections;
pub use self::overload_exempt::OverloadExempt;
pub(crate) use self::route::PATH_POLICIES;
pub use self::route::Route;
pub use self::shedding::Shedding;
pub use self::upgrades::Upgrades;
use crate::access_log::AccessLog;
use crate::api::AuthHeaders;
use crate::certificate_authorities::CertificateAuthorities;
use crate::engine::Engine;
use crate::identity::{CertificateName, TokenIdentity};
use crate::listen::{PeerAddress, Stream};
use crate::local_replies::LocalReplies;

/// Settings of the gateway.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Routes of requests.
    pub routes: Vec<Route>,
    /// Trusted proxies: client addresses and identities are taken from their headers.
    pub proxies: TrustedProxies,
    /// Style of the rate-limit headers that clients receive.
    pub style: HeaderStyle,
    /// Format of the gateway's own responses, and the origins whose scripts may read them.
    pub answers: LocalReplies,
    /// Headers in which trusted proxies identify clients.
    pub auth_headers: AuthHeaders,
    /// Whether the name in `Authorization: Basic` is the user.
    pub basic: bool,
    /// Name in a client certificate that identifies the user; `None` if certificates do not identify users.
    pub client_certificate: Option<CertificateName>,
    /// Header in which clients send their API key.
    pub api_key_header: Option<HeaderName>,
    /// Header with a request's priority, from trusted proxies and to upstreams.
    pub priority_header: Option<HeaderName>,
    /// Maximum size of a request's head.
    pub header_bytes: usize,
    /// Timeout for receiving a head, and idle timeout of connections.
    pub header_time: Duration,
    /// Maximum number of concurrent requests on an HTTP/2 connection.
    pub streams: u32,
    /// Whether upstreams receive the client's `Host`.
    pub keep_host: bool,
    /// Allowed upgrade protocols, unless a route overrides them.
    pub upgrades: Upgrades,
    /// Path policy, unless a route overrides it.
    pub paths: PathPolicy,
    /// Whether headers are forwarded if their name contains an underscore.
    pub underscores: bool,
    /// Whether `Via` is added.
    pub via: bool,
    /// Maximum time that a client may leave a response unread.
    pub write_time: Duration,
    /// Timeout for the part of a body that rules inspect.
    pub inspection_time: Duration,
    /// Timeout for receiving a request's body.
    pub body_time: Duration,
    /// Minimum average rate of a request's body, in bytes per second; 0 for no minimum.
    pub body_rate: u64,
    /// Time at the start of a body during which the minimum rate does not apply.
    pub body_grace: Duration,
    /// Idle timeout of upgraded connections.
    pub tunnel_idle_time: Duration,
    /// Idle time after which TCP keepalive probes an upstream; zero to disable it.
    pub keepalive_time: Duration,
    /// Timeout for connecting to an upstream.
    pub connect_time: Duration,
    /// Timeout for an upstream to begin its response.
    pub response_time: Duration,
    /// Maximum time without data in the middle of a response.
    pub stall_time: Duration,
    /// Idle timeout of pooled upstream connections.
    pub pool_idle_time: Duration,
    /// Maximum number of idle connections to one address.
    pub pool_idle_connections: usize,
    /// Maximum number of retries of a request.
    pub retries: u32,
    /// Maximum number of retries, as a percentage of requests.
    pub retry_percent: u32,
    /// The adaptive limit on requests in flight at each address; `None` if there is none.
    pub concurrency: Option<UpstreamLimit>,
    /// Load shedding; `None` if it is off.
    pub shedding: Option<Shedding>,
    /// Requests that are never shed, not even by rules, and are exempt from the adaptive limit.
    pub overload_exempt: OverloadExempt,
    /// Initial backoff time of a failing address.
    pub backoff_time: Duration,
    /// Path of health checks; `None` to disable them.
    pub health_path: Option<PathAndQuery>,
    /// Interval between health checks.
    pub health_interval: Duration,
    /// Whether charges are refunded for requests that reach no upstream.
    pub refund_unserved: bool,
    /// Trusted authorities for the certificates of upstreams.
    pub trust: CertificateAuthorities,
    /// Access log, if enabled.
    pub access_log: Option<Arc<AccessLog>>,
}

impl Settings {
    /// Settings with these routes, and defaults otherwise.
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
            overload_exempt: OverloadExempt::default(),
            backoff_time: Duration::from_secs(1),
            health_path: None,
            health_interval: Duration::from_secs(5),
            refund_unserved: true,
            trust: CertificateAuthorities::web(),
            access_log: None,
        }
    }

    /// These settings, with those of `next` that need no restart.
    fn reloaded(&self, next: &Settings) -> Settings {
        Settings {
            proxies: next.proxies.clone(),
            style: next.style,
            answers: next.answers.clone(),
            auth_headers: next.auth_headers.clone(),
            header_bytes: next.header_bytes,
            header_time: next.header_time,
            streams: next.streams,
            write_time: next.write_time,
            ..self.clone()
        }
    }

    /// Minimum rate of request bodies.
    const fn body_pace(&self) -> BodyPace {
        BodyPace { time: self.body_time, rate: self.body_rate, grace: self.body_grace }
    }

    /// Whether there are any upstreams.
    #[must_use]
    pub const fn has_upstreams(&self) -> bool {
        !self.routes.is_empty()
    }
}

/// The gateway. Clones share its state; each serves a connection.
#[derive(Clone)]
pub struct GatewayServer(Arc<GatewayConnections>);

impl GatewayServer {
    /// A gateway that decides with `engine`, and verifies `tokens` if given. Maintains its upstreams until `stop` is
    /// cancelled.
    ///
    /// Needs a Tokio runtime.
    #[must_use]
    pub fn open(
        engine: &Arc<Engine>,
        settings: Settings,
        tokens: Option<TokenIdentity>,
        stop: &CancellationToken,
    ) -> GatewayServer {
        GatewayServer(Arc::new(GatewayConnections::new(engine, settings, tokens, stop)))
    }

    /// Applies to new connections those of these settings that need no restart: trusted proxies and their headers,
    /// style and form of responses, and limits on connections. Connections to upstreams keep their settings.
    pub(crate) fn apply(&self, settings: &Settings) {
        self.0.apply(settings);
    }

    /// Serves a connection until it closes. On `stop`, finishes the current requests and closes it.
    pub async fn serve(self, stream: Stream, peer: PeerAddress, stop: CancellationToken) {
        self.0.serve(stream, peer, stop).await;
    }
}
