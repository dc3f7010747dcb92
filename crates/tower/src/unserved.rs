//! Requests for which nothing was done.

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
