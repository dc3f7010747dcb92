//! Connections that become something else.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use http::header::UPGRADE;
use http::{Extensions, Method, Request};

/// What a request holds that asks for an upgrade, such as a WebSocket: slots and reserved costs. A service finds it in the
/// request's extensions if there is anything to hold.
///
/// The body of a response to an upgrade is empty, and ends long before the connection does. Whoever runs the upgraded
/// connection therefore keeps a clone, and drops it when the connection ends: all is given back with the last clone, or
/// with the body of the response, whichever is later.
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
    _held: Arc<dyn Any + Send + Sync>,
}

impl UpgradeHold {
    /// Leaves the service a way to keep what the request holds.
    pub(crate) fn leave(extensions: &mut Extensions, held: Arc<dyn Any + Send + Sync>) {
        extensions.insert(UpgradeHold { _held: held });
    }
}

impl fmt::Debug for UpgradeHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpgradeHold").finish_non_exhaustive()
    }
}

/// Whether the request asks for its connection to become something else.
pub(crate) fn is_asked_for<B>(request: &Request<B>) -> bool {
    request.method() == Method::CONNECT || request.headers().contains_key(UPGRADE)
}
