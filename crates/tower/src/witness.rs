//! Who sees what is decided.

use tidegate_core::Ruling;
use tidegate_http::HttpFacts;

/// Sees each decision, for metrics and logs, before the request goes on.
///
/// A closure that takes a [`Ruling`] is one. What also wants to know whom a request comes from, or how long it took to decide,
/// implements it.
pub trait Witness: Send + Sync {
    /// The limiter is about to be asked. What is noted comes back with the decision.
    fn asking(&self) -> Note {
        Note::default()
    }

    /// The limiter has decided.
    fn decided(&self, facts: &HttpFacts<'_>, ruling: &Ruling<'_>, note: Note);
}

/// What a [`Witness`] wants to have at hand when a request is decided. Reading a clock costs as much as deciding a limit, so who
/// sees many may want to do it for a few that stand for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// How many requests this one stands for; none if it is not looked at.
    pub weight: u32,
    /// What its clock said.
    pub reading: u64,
}

impl<F: Fn(&Ruling<'_>) + Send + Sync> Witness for F {
    fn decided(&self, _: &HttpFacts<'_>, ruling: &Ruling<'_>, _: Note) {
        self(ruling);
    }
}
