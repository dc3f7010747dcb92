//! Priorities of requests.

use http::{Extensions, Method};
use tidegate_rules::Priority;

/// The priority of a request: the [`Priority`] in its extensions, as [`RateLimitLayer`](crate::RateLimitLayer) leaves it there.
/// Without one, requests that read (GET, HEAD, OPTIONS) are normal, and others high.
#[must_use]
pub fn request_priority(method: &Method, extensions: &Extensions) -> Priority {
    match extensions.get::<Priority>() {
        Some(priority) => *priority,
        None => Priority::of_method(method.as_str()),
    }
}
