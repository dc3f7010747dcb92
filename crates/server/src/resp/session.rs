//! What a connection has said about itself.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::limits::Limits;
use super::reply::Protocol;
use super::request::Bounds;
use super::settings::{BOUNDS_OF_STRANGERS, DEFAULT_USER, Settings};
use super::transaction::Transaction;

/// What is known of the client at the other end of one connection.
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) peer: SocketAddr,
    pub(super) protocol: Protocol,
    /// As whom it has come in; `None` if it has yet to show a password.
    pub(super) user: Option<Box<[u8]>>,
    /// How many wrong passwords it has shown.
    pub(super) auth_failures: u32,
    /// Whether it has waited for the password to be looked at that it shows next.
    pub(super) has_waited: bool,
    /// What it calls itself, and what library it uses.
    pub(super) name: Box<[u8]>,
    pub(super) lib_name: Box<[u8]>,
    pub(super) lib_version: Box<[u8]>,
    /// The limits that it brings.
    pub(super) limits: Limits,
    /// What it has queued since `MULTI`.
    pub(super) transaction: Option<Box<Transaction>>,
    /// How the door behaves towards it.
    pub(super) settings: Arc<Settings>,
}

impl Session {
    pub(super) fn new(id: u64, peer: SocketAddr, settings: Arc<Settings>) -> Session {
        Session {
            id,
            peer,
            protocol: Protocol::default(),
            user: user_at_first(&settings),
            auth_failures: 0,
            has_waited: false,
            name: Box::default(),
            lib_name: Box::default(),
            lib_version: Box::default(),
            limits: Limits::default(),
            transaction: None,
            settings,
        }
    }

    /// As it was when the client connected, but for the limits, which are worth keeping.
    pub(super) fn reset(&mut self) {
        self.protocol = Protocol::default();
        self.user = user_at_first(&self.settings);
        self.name = Box::default();
        self.transaction = None;
    }

    /// Takes notice of settings that have changed.
    #[inline]
    pub(super) fn follow(&mut self, settings: &ArcSwap<Settings>) {
        let present = settings.load();
        if !Arc::ptr_eq(&present, &self.settings) {
            self.settings = Arc::clone(&present);
            // They know what to do without the store, which may be something else now.
            self.limits = Limits::default();
        }
    }

    pub(super) fn bounds(&self) -> Bounds {
        match self.user {
            Some(_) => self.settings.bounds,
            None => BOUNDS_OF_STRANGERS,
        }
    }
}

/// Where there are no passwords, everyone has come in.
fn user_at_first(settings: &Settings) -> Option<Box<[u8]>> {
    settings.users.is_empty().then(|| DEFAULT_USER.as_bytes().into())
}
