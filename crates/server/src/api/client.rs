//! State that the requests of one connection share.

use std::sync::Arc;

use axum::Router;

use super::Api;
use crate::listen::{PeerAddress, RequestCount};

/// A client's connection, as seen by its requests.
pub(super) struct ApiClient {
    pub(super) peer: PeerAddress,
    pub(super) api: Arc<Api>,
    pub(super) router: Router,
    pub(super) requests: RequestCount,
}
