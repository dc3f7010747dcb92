//! Requests that are never refused under overload.

use std::sync::Arc;

use http::Method;
use http::request::Parts;

/// Requests that are never shed, not even by rules, and are exempt from the adaptive limit.
#[derive(Clone, Debug, Default)]
pub struct OverloadExempt {
    /// Paths that are exempt with any method.
    pub paths: Arc<[String]>,
    /// Path that is exempt for health checks, which are GET and HEAD requests.
    pub health_path: Option<Arc<str>>,
}

impl OverloadExempt {
    pub(super) fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.health_path.is_none()
    }

    pub(super) fn covers(&self, head: &Parts) -> bool {
        let path = head.uri.path();
        // A probe is sent with GET. Other methods at its path may well be expensive.
        let is_health_check = || {
            matches!(head.method, Method::GET | Method::HEAD)
                && self.health_path.as_deref().is_some_and(|own| own == path)
        };
        self.paths.iter().any(|exempt| exempt == path) || is_health_check()
    }
}
