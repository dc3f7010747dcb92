//! What a service may say of a request besides its response.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

use http::request::Parts;

/// Keeps what a request holds, its slots and reserved costs, beyond the end of its response.
///
/// For services whose work only begins with the response, as it does when a connection is upgraded. Put a clone into the
/// response's extensions and drop the other one when the work is done.
///
/// ```
/// use http::{Response, StatusCode};
/// use tidegate_tower::Lasting;
///
/// let lasting = Lasting::new();
/// let mut response = Response::new(());
/// *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
/// response.extensions_mut().insert(lasting.clone());
/// # let the_other_protocol = || ();
/// let work = move || {
///     the_other_protocol();
///     drop(lasting);
/// };
/// # work();
/// ```
#[derive(Clone, Default)]
pub struct Lasting(Arc<OnceLock<Box<dyn Any + Send + Sync>>>);

impl Lasting {
    /// Keeps nothing yet.
    #[must_use]
    pub fn new() -> Lasting {
        Lasting::default()
    }

    pub(crate) fn keep(&self, held: impl Any + Send + Sync) {
        // Whoever puts one into several responses keeps what the first one held.
        let _ = self.0.set(Box::new(held));
    }
}

impl fmt::Debug for Lasting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lasting").field("keeps", &self.0.get().is_some()).finish()
    }
}

/// Says that nobody has served a request, and nobody ever saw it: all that it was charged is given back.
///
/// For services that pass requests on, and could not. It goes into the response's extensions, with the request's head, from
/// which whom it was charged to is worked out again: the head must still say the same of that.
#[derive(Clone, Debug)]
pub struct NotServed(pub(crate) Arc<Parts>);

impl NotServed {
    /// Of the request with this head.
    #[must_use]
    pub fn new(head: Parts) -> NotServed {
        NotServed(Arc::new(head))
    }
}
