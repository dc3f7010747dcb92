//! Markers for responses to requests that the upstream never received or never answered.

use std::cell::Cell;

/// Marks a response whose request was not served: it never reached its destination. A service, such as a proxy whose
/// upstream is down, inserts it into its response's extensions.
///
/// Slots and reserved costs are released in full. Other charges are refunded too if the layer is
/// [configured to](crate::RateLimitLayer::refund_unserved), unless they have expired: a charge to a fixed window that has
/// ended is not refunded.
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

/// Marks a response whose request may have reached its destination, which has not answered. A proxy inserts it into the
/// extensions of its own 502 or 504.
///
/// Reserved costs stay at their estimates for any status of the response. Slots are released when its body has ended.
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

/// Marks a response to a request that was refused under overload, in favour of others. The layers of this crate that refuse
/// requests insert it, and so does a proxy that sheds load itself.
///
/// Adaptive rates ignore the response. It does not measure the service, and counting it as an error would lower the rate
/// further. To refund the request's charges too, insert [`Unserved`] as well.
///
/// ```
/// use http::{Response, StatusCode};
/// use tidegate_tower::Shed;
///
/// let mut response = Response::new("too many requests are in flight");
/// *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
/// response.extensions_mut().insert(Shed);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shed;

/// Whether a request has reached its destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Delivery {
    /// The service has not reported anything.
    #[default]
    Unknown,
    /// The request may have arrived. The response may still be [`Unserved`].
    Possible,
    /// The request has arrived.
    Certain,
}

thread_local! {
    static DELIVERY: Cell<Delivery> = const { Cell::new(Delivery::Unknown) };
}

impl Unserved {
    /// Reports that the request has reached its destination, so that the response can no longer be [`Unserved`]. The
    /// layer then drops the data for a refund, instead of keeping it until the response.
    ///
    /// Must be called while the service's future is polled. If the client disconnects before the response, reserved
    /// costs stay as estimated.
    pub fn rule_out() {
        DELIVERY.set(Delivery::Certain);
    }

    /// Reports that the request may have reached its destination. Unlike after [`rule_out`](Unserved::rule_out), the
    /// response may still be [`Unserved`].
    pub fn doubt() {
        DELIVERY.set(DELIVERY.get().max(Delivery::Possible));
    }

    /// Runs `poll`, which polls a service's future, and returns what the service has reported during the poll.
    pub(crate) fn observe<T>(poll: impl FnOnce() -> T) -> (T, Delivery) {
        // Layers can be nested, so the reports to the outer layer must be preserved.
        let outer = DELIVERY.replace(Delivery::Unknown);
        let polled = poll();
        (polled, DELIVERY.replace(outer))
    }
}
