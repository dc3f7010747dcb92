//! The configuration of connections.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::batch::Composer;
use super::server_generation::ServerGeneration;
use super::session::Connector;
use super::settings::Settings;

/// The configuration shared by all connections of a link.
#[derive(Clone)]
pub(super) struct ConnectionConfig {
    pub(super) settings: Arc<Settings>,
    pub(super) connector: Connector,
    pub(super) composer: Composer,
    pub(super) runtime: Handle,
    pub(super) generation: ServerGeneration,
}
