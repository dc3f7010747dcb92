//! Who sees what is decided.

use tidegate_core::Ruling;
use tidegate_http::HttpFacts;

/// Sees each decision, for metrics and logs, before the request goes on.
///
/// A closure that takes a [`Ruling`] is one. What also wants to know whom a request comes from, or how long it took to decide,
/// implements it.
pub trait Witness: Send + Sync {
    /// The limiter is about to be asked. What is returned comes back with the decision: a reading of a clock, say.
    fn asking(&self) -> u64 {
        0
    }

    /// The limiter has decided.
    fn decided(&self, facts: &HttpFacts<'_>, ruling: &Ruling<'_>, asking: u64);
}

impl<F: Fn(&Ruling<'_>) + Send + Sync> Witness for F {
    fn decided(&self, _: &HttpFacts<'_>, ruling: &Ruling<'_>, _: u64) {
        self(ruling);
    }
}
