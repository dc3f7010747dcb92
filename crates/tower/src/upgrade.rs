//! Upgraded connections, such as WebSockets, that outlive their response.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use http::header::UPGRADE;
use http::{Extensions, Method, Request};

/// The slots and reserved costs of a request that asks for an upgrade, such as a WebSocket. The layer inserts it into the
/// request's extensions if the request holds any.
///
/// The body of a response to an upgrade is empty, and ends long before the connection does. Keep a clone for as long as the
/// upgraded connection lives: slots and costs are released when the last clone and the response's body have been dropped.
///
/// ```
/// use http::{Request, Response, StatusCode};
/// use tidegate_tower::UpgradeHold;
///
/// async fn websocket(request: Request<()>) -> Response<()> {
///     let hold = request.extensions().get::<UpgradeHold>().cloned();
///     tokio::spawn(async move {
///         // … the upgraded connection runs, and ends …
///         drop(hold);
///     });
///     let mut response = Response::new(());
///     *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
///     response
/// }
/// # let _ = websocket;
/// ```
#[derive(Clone)]
pub struct UpgradeHold {
    _hold: Arc<dyn Any + Send + Sync>,
}

impl UpgradeHold {
    pub(crate) fn insert(extensions: &mut Extensions, hold: Arc<dyn Any + Send + Sync>) {
        extensions.insert(UpgradeHold { _hold: hold });
    }
}

impl fmt::Debug for UpgradeHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpgradeHold").finish_non_exhaustive()
    }
}

/// Whether the request asks for an upgrade or a tunnel.
pub(crate) fn is_requested<B>(request: &Request<B>) -> bool {
    request.method() == Method::CONNECT || request.headers().contains_key(UPGRADE)
}
