//! The door for clients of Redis.
//!
//! Any client of Redis can ask: `CL.THROTTLE` as redis-cell's, with the limit in the command, and `TG.CHECK` and its kin by
//! the rules. Both versions of the protocol are spoken.
//!
//! A connection (`connection.rs`) reads what has come (`request.rs`), answers every command that is whole (`command/`) and
//! writes all replies at once. What the store in this process decides is decided there and then. What a store elsewhere
//! decides is asked for all commands together, in their order, and answered in their order.

mod command;
mod connection;
mod inline;
mod limits;
mod reply;
mod request;
mod session;
mod settings;
mod transaction;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use tidegate_core::RuleId;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::request::{Bounds, ProtocolError};
pub(crate) use self::settings::DEFAULT_USER;
pub use self::settings::{Settings, Users};
pub use self::transaction::TransactionBounds;

#[cfg(test)]
pub(crate) use self::command::with_facts;
use self::connection::Connection;
use self::session::Session;
use crate::auth_throttle::AuthThrottle;
use crate::engine::{Engine, THROTTLE_RULE};

/// Answers clients of Redis, as many connections as it is given.
pub struct Door {
    engine: Arc<Engine>,
    settings: ArcSwap<Settings>,
    throttle: RuleId,
    began: Instant,
    ids: AtomicU64,
    open: AtomicUsize,
    commands: AtomicU64,
    guesses: AuthThrottle,
}

impl Door {
    /// A door to `engine`.
    #[must_use]
    pub fn new(engine: Arc<Engine>, settings: Settings) -> Door {
        Door {
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

    /// Behaves as `settings` say from the next requests on. Whoever has come in stays in, whatever passwords there are now.
    pub fn apply(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    /// Answers one connection until the client leaves, breaks the protocol or says nothing for too long, or until `stop`,
    /// when what was asked is still answered.
    pub async fn serve(
        &self,
        io: impl AsyncRead + AsyncWrite + Unpin + Send,
        peer: SocketAddr,
        stop: CancellationToken,
    ) {
        let _open = Open::count(&self.open);
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        Connection::new(self, Session::new(id, peer, self.settings.load_full()), io).serve(stop).await;
    }
}

/// Counts a connection for as long as it is there.
struct Open<'d>(&'d AtomicUsize);

impl Open<'_> {
    fn count(open: &AtomicUsize) -> Open<'_> {
        open.fetch_add(1, Ordering::Relaxed);
        Open(open)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
