//! State of a client's session.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::limit_cache::LimitCache;
use super::reply::RespProtocol;
use super::request::RequestBounds;
use super::settings::{DEFAULT_USER, Settings, UNAUTHENTICATED_BOUNDS};
use super::transaction::Transaction;

/// Session of one connection.
pub(super) struct RespSession {
    pub(super) id: u64,
    pub(super) peer: SocketAddr,
    pub(super) protocol: RespProtocol,
    /// Authenticated user; `None` before authentication.
    pub(super) user: Option<Box<[u8]>>,
    /// Number of failed attempts to authenticate.
    pub(super) auth_failures: u32,
    /// Whether the delay before the next attempt to authenticate has passed.
    pub(super) has_waited: bool,
    /// Name of the client, and name and version of its library.
    pub(super) name: Box<[u8]>,
    pub(super) lib_name: Box<[u8]>,
    pub(super) lib_version: Box<[u8]>,
    /// Cache of the limits in the client's commands.
    pub(super) limits: LimitCache,
    /// Commands queued since `MULTI`.
    pub(super) transaction: Option<Box<Transaction>>,
    /// Settings that apply to this connection.
    pub(super) settings: Arc<Settings>,
}

impl RespSession {
    pub(super) fn new(id: u64, peer: SocketAddr, settings: Arc<Settings>) -> RespSession {
        RespSession {
            id,
            peer,
            protocol: RespProtocol::default(),
            user: user_at_first(&settings),
            auth_failures: 0,
            has_waited: false,
            name: Box::default(),
            lib_name: Box::default(),
            lib_version: Box::default(),
            limits: LimitCache::default(),
            transaction: None,
            settings,
        }
    }

    /// Resets the session to its initial state. Cached limits are kept.
    pub(super) fn reset(&mut self) {
        self.protocol = RespProtocol::default();
        self.user = user_at_first(&self.settings);
        self.name = Box::default();
        self.transaction = None;
    }

    /// Adopts changed settings.
    #[inline]
    pub(super) fn follow(&mut self, settings: &ArcSwap<Settings>) {
        let present = settings.load();
        if !Arc::ptr_eq(&present, &self.settings) {
            self.settings = Arc::clone(&present);
            // Cached limits contain the failure policy, which may have changed.
            self.limits = LimitCache::default();
        }
    }

    pub(super) fn bounds(&self) -> RequestBounds {
        match self.user {
            Some(_) => self.settings.bounds,
            None => UNAUTHENTICATED_BOUNDS,
        }
    }
}

/// The initial user: without passwords, every client is authenticated.
fn user_at_first(settings: &Settings) -> Option<Box<[u8]>> {
    settings.users.is_empty().then(|| DEFAULT_USER.as_bytes().into())
}
