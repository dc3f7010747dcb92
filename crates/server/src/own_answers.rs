//! The answers that Tidegate gives in place of a service: how they are written, and which scripts may read them.

use std::sync::Arc;

use http::{HeaderMap, Method};
use tidegate_http::{Cors, DenialBodies};

/// The form of answers that come from Tidegate and not from a service.
#[derive(Clone, Debug, Default)]
pub struct OwnAnswers {
    /// The bodies of denials.
    pub bodies: Arc<DenialBodies>,
    /// The origins whose scripts may read them; `None` if the setting names none.
    pub cors: Option<Arc<Cors>>,
    /// Whether preflights of these origins meet the rules.
    pub limit_preflights: bool,
}

impl OwnAnswers {
    /// Whether a request is a preflight that does not meet the rules.
    pub(crate) fn passes_preflight(&self, method: &Method, headers: &HeaderMap) -> bool {
        !self.limit_preflights && self.cors.as_ref().is_some_and(|cors| cors.is_preflight(method, headers))
    }

    /// Makes an answer to a request readable to its origin, if that is allowed.
    pub(crate) fn share(&self, request: &HeaderMap, answer: &mut HeaderMap) {
        if let Some(cors) = &self.cors {
            cors.write(cors.reader(request).as_ref(), answer);
        }
    }
}
