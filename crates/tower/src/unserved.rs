//! Requests for which nothing was done.

use std::cell::Cell;

/// Says that nothing was done for a request: it never reached whoever would have served it. A service, such as a proxy whose
/// upstream is down, puts it into its response's extensions.
///
/// Slots are freed and reserved costs given back in full. What was charged for good is given back too, if the layer was
/// [told to](crate::RateLimitLayer::give_back_unserved), as far as it still counts: of a window that has passed, nothing.
///
/// ```
/// use http::{Response, StatusCode};
/// use tidegate_tower::Unserved;
///
/// let mut response = Response::new("the upstream is down");
/// *response.status_mut() = StatusCode::BAD_GATEWAY;
/// response.extensions_mut().insert(Unserved);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unserved;

thread_local! {
    static IS_RULED_OUT: Cell<bool> = const { Cell::new(false) };
}

impl Unserved {
    /// Says that somebody has the request, so that it is too late to call it unserved. A service calls this while its future is
    /// polled, if it can: what was kept of the request to give it back is let go of then, and not only when the response is there.
    pub fn rule_out() {
        IS_RULED_OUT.set(true);
    }

    /// Polls the future of a service, and says whether it [ruled this out](Unserved::rule_out).
    pub(crate) fn watch<T>(poll: impl FnOnce() -> T) -> (T, bool) {
        // Whoever polls this may be polled by another layer, for a request of which this says nothing.
        let around = IS_RULED_OUT.replace(false);
        let polled = poll();
        (polled, IS_RULED_OUT.replace(around))
    }
}
