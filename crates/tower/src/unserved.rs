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

/// Says that whoever would have served a request may have had it, but has not answered: the response that carries this in its
/// extensions was made on their behalf, such as a proxy's own 502 or 504.
///
/// Reserved costs stay as they were taken, whatever the status of the response. Slots are freed when its body has ended.
///
/// ```
/// use http::{Response, StatusCode};
/// use tidegate_tower::Unanswered;
///
/// let mut response = Response::new("the upstream did not answer in time");
/// *response.status_mut() = StatusCode::GATEWAY_TIMEOUT;
/// response.extensions_mut().insert(Unanswered);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered;

/// Whether a request has got to whoever serves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Arrival {
    /// Nothing is known.
    #[default]
    Unknown,
    /// It may have, or may come back unsent.
    Possible,
    /// It has.
    Certain,
}

thread_local! {
    static ARRIVAL: Cell<Arrival> = const { Cell::new(Arrival::Unknown) };
}

impl Unserved {
    /// Says that somebody has the request, so that it is too late to call it unserved. A service calls this while its future is
    /// polled, if it can: what was kept of the request to give it back is let go of then, and not only when the response is there.
    ///
    /// Reserved costs stay as they were taken if the client goes away before there is a response.
    pub fn rule_out() {
        ARRIVAL.set(Arrival::Certain);
    }

    /// Says that somebody may have the request, as [`rule_out`](Unserved::rule_out) does, while the response may still say that it is
    /// unserved.
    pub fn doubt() {
        ARRIVAL.set(ARRIVAL.get().max(Arrival::Possible));
    }

    /// Polls the future of a service, and says what it knows of the request's arrival.
    pub(crate) fn watch<T>(poll: impl FnOnce() -> T) -> (T, Arrival) {
        // Whoever polls this may be polled by another layer, for a request of which this says nothing.
        let around = ARRIVAL.replace(Arrival::Unknown);
        let polled = poll();
        (polled, ARRIVAL.replace(around))
    }
}
