//! Responses that Tidegate sends itself: their bodies, and cross-origin access to them.

use std::sync::Arc;

use http::{HeaderMap, Method};
use tidegate_http::{Cors, DenialBodies};

/// Settings of the responses that Tidegate sends itself.
#[derive(Clone, Debug, Default)]
pub struct LocalReplies {
    /// Bodies of denials.
    pub bodies: Arc<DenialBodies>,
    /// Cross-origin access; `None` if no origin is configured.
    pub cors: Option<Arc<Cors>>,
    /// Whether the rules apply to preflights of these origins.
    pub limit_preflights: bool,
}

impl LocalReplies {
    /// Whether a request is a preflight that is exempt from the rules.
    pub(crate) fn passes_preflight(&self, method: &Method, headers: &HeaderMap) -> bool {
        !self.limit_preflights && self.cors.as_ref().is_some_and(|cors| cors.is_preflight(method, headers))
    }

    /// Adds CORS headers to a response, if the origin is allowed.
    pub(crate) fn share(&self, request: &HeaderMap, answer: &mut HeaderMap) {
        if let Some(cors) = &self.cors {
            cors.write(cors.reader(request).as_ref(), answer);
        }
    }
}
