//! Priorities of requests.

use http::{Extensions, Method};
use tidegate_rules::Priority;

/// The priority of a request: the [`Priority`] in its extensions, where [`RateLimitLayer`](crate::RateLimitLayer)
/// stores it. Without one, the priority of safe requests (GET, HEAD, OPTIONS) is normal, and that of all others is
/// high.
#[must_use]
pub fn request_priority(method: &Method, extensions: &Extensions) -> Priority {
    match extensions.get::<Priority>() {
        Some(priority) => *priority,
        None => Priority::of_method(method.as_str()),
    }
}
