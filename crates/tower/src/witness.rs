//! Who sees what is decided.

use http::request::Parts;
use tidegate_core::RuleId;
use tidegate_http::HttpFacts;
use tidegate_rules::Ruling;

/// Sees each decision, for metrics and logs, before the request goes on.
///
/// A closure that takes a [`Ruling`] is one. What also wants to know whom a request comes from, or how long it took to decide,
/// implements it.
pub trait Witness: Send + Sync {
    /// The limiter is about to be asked. What is noted comes back with the decision.
    fn asking(&self) -> Note {
        Note::default()
    }

    /// The limiter has decided the request with this head, of which it knew these facts.
    fn decided(&self, head: &Parts, facts: &HttpFacts<'_>, ruling: &Ruling<'_>, note: Note);

    /// A cost that was to be settled by the response stays as it was taken.
    fn unsettled(&self, limit: &RuleId, why: Unsettled) {
        let (_, _) = (limit, why);
    }

    /// A cost that was reserved at `taken`, to be settled by the response, is `actual` in the end. If nothing settled it, that is
    /// what was taken.
    fn settled(&self, limit: &RuleId, taken: u64, actual: u64) {
        let (_, _, _) = (limit, taken, actual);
    }

    /// A cost that was charged for good is refunded, because nothing was done for the request.
    fn refunded(&self, limit: &RuleId, cost: u64) {
        let (_, _) = (limit, cost);
    }
}

/// Why a cost that was to be settled by the response stays as it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unsettled {
    /// The response is compressed, although it was asked for as it is.
    Encoded,
    /// The response does not say it.
    Unsaid,
    /// The response broke off, or its client hung up, before it said it.
    BrokenOff,
    /// There was no response, and somebody may have had the request.
    Unanswered,
}

impl Unsettled {
    /// All of them, in their order.
    pub const ALL: [Unsettled; 4] =
        [Unsettled::Encoded, Unsettled::Unsaid, Unsettled::BrokenOff, Unsettled::Unanswered];

    /// A word for it, as metrics say it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Unsettled::Encoded => "encoded",
            Unsettled::Unsaid => "unsaid",
            Unsettled::BrokenOff => "broken_off",
            Unsettled::Unanswered => "unanswered",
        }
    }
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
    fn decided(&self, _: &Parts, _: &HttpFacts<'_>, ruling: &Ruling<'_>, _: Note) {
        self(ruling);
    }
}
