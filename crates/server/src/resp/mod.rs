//! Redis-protocol listener.
//!
//! Serves any Redis client: `CL.THROTTLE` as in redis-cell, with the limit in the command, and `TG.*` commands, which
//! apply the rules. Supports RESP2 and RESP3.
//!
//! A connection (`connection.rs`) parses requests (`request.rs`), executes all complete commands (`command/`) and
//! writes all replies at once. A store in this process decides synchronously. A remote store is called for all commands
//! concurrently, and replies keep the order of the commands.

mod buffers;
mod command;
mod connection;
mod idle_detector;
mod inline;
mod limit_cache;
mod reply;
mod request;
mod session;
mod settings;
mod transaction;
mod word_span;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use tidegate_core::RuleId;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::request::{ProtocolError, RequestBounds};
pub(crate) use self::settings::DEFAULT_USER;
pub use self::settings::{Settings, Users};
pub use self::transaction::TransactionBounds;

#[cfg(test)]
pub(crate) use self::command::with_facts;
use self::connection::RespConnection;
use self::session::RespSession;
use crate::auth_throttle::AuthThrottle;
use crate::engine::{Engine, THROTTLE_RULE};

/// Serves connections of Redis clients.
pub struct RespServer {
    engine: Arc<Engine>,
    settings: ArcSwap<Settings>,
    throttle: RuleId,
    began: Instant,
    ids: AtomicU64,
    open: AtomicUsize,
    commands: AtomicU64,
    guesses: AuthThrottle,
}

impl RespServer {
    /// A server that decides with `engine`.
    #[must_use]
    pub fn new(engine: Arc<Engine>, settings: Settings) -> RespServer {
        RespServer {
            engine,
            settings: ArcSwap::from_pointee(settings),
            throttle: RuleId::new(THROTTLE_RULE),
            began: Instant::now(),
            ids: AtomicU64::new(1),
            open: AtomicUsize::new(0),
            commands: AtomicU64::new(0),
            guesses: AuthThrottle::new(),
        }
    }

    /// Applies new settings to further requests. Authenticated connections stay authenticated.
    pub fn apply(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    /// Serves one connection until the client disconnects, violates the protocol or is idle for too long, or until
    /// `stop`. Requests received before `stop` are still answered.
    pub async fn serve(
        &self,
        io: impl AsyncRead + AsyncWrite + Unpin + Send,
        peer: SocketAddr,
        stop: CancellationToken,
    ) {
        let _open = OpenConnectionCount::count(&self.open);
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        RespConnection::new(self, RespSession::new(id, peer, self.settings.load_full()), io).serve(stop).await;
    }
}

/// Counts a connection as open until dropped.
struct OpenConnectionCount<'d>(&'d AtomicUsize);

impl OpenConnectionCount<'_> {
    fn count(open: &AtomicUsize) -> OpenConnectionCount<'_> {
        open.fetch_add(1, Ordering::Relaxed);
        OpenConnectionCount(open)
    }
}

impl Drop for OpenConnectionCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
